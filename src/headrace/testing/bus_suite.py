"""What every bus must do with appends, reads and changes, as tests; part of ``BusContract``.

Also what all suites of a bus have in common: streams, rows, and how a bus is opened.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus import (
    Appended,
    Bus,
    BusOptions,
    OffsetGoneError,
    Producer,
    Stream,
    StreamSettings,
    StreamSpec,
)
from headrace.clock import Clock
from headrace.errors import ClosedError, CorruptDataError, InvalidInputError
from headrace.faults import injected
from headrace.files import Files
from headrace.records.frame import encode_frame

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
SPEC = StreamSpec("events", 2, SCHEMA, "at", ("id",))
ME = Producer("job/output", "lineage-1")
LONG_S = 30.0


def rows(first: int, count: int, at: Sequence[int] | None = None) -> pa.RecordBatch:
    """Return rows with ids from ``first`` on; event times are 1000 + id unless given."""
    ids = list(range(first, first + count))
    times = [1000 + number for number in ids] if at is None else list(at)
    return pa.record_batch([ids, times, [f"n{number}" for number in ids]], schema=SCHEMA)


def everything(stream: Stream, partition: int = 0, **how: Any) -> list[dict[str, Any]]:
    """Return all rows of a partition."""
    found: list[dict[str, Any]] = []
    for part in stream.read(partition, 0, **how):
        found += part.batch.to_pylist()
    return found


def write_frames(path: Path, batches: Sequence[pa.RecordBatch]) -> list[tuple[int, int]]:
    """Write a file of frames, and return where each of them lies."""
    ranges, end = [], 0
    chunks: list[Any] = []
    for batch in batches:
        frame = encode_frame(batch)
        begin, end = end, end + sum(memoryview(chunk).nbytes for chunk in frame)
        chunks += frame
        ranges.append((begin, end))
    Files().write_new(path, chunks)
    return ranges


class CrashError(Exception):
    """Raised by a hook where a process would have died."""


class BusSuite(ABC):
    """How the suites of a bus open it; subclasses give ``open_bus`` and ``reopen``."""

    @abstractmethod
    def open_bus(self, folder: Path, options: BusOptions, clock: Clock | None = None) -> Bus:
        """Return a bus without streams, in a folder of its own."""

    @abstractmethod
    def reopen(
        self, bus: Bus, folder: Path, options: BusOptions, clock: Clock | None = None
    ) -> Bus:
        """Return a bus over the same streams that knows only what is durable."""

    options = BusOptions(batch_bytes=100_000, record_bytes=20_000, adopt_bytes=4096)

    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[Bus]:
        """Open an empty bus."""
        with self.open_bus(tmp_path / "bus", self.options) as bus:
            yield bus

    @pytest.fixture
    def stream(self, bus: Bus) -> Stream:
        """Create a stream of two partitions, with event time and key."""
        return bus.create(SPEC)


GOLDEN = {0: [], 1: [4], 2: [2, 6], 3: [3], 4: [1, 5, 7], 5: [], 6: [0], 7: [None]}


class AppendingContract(BusSuite):
    """Creation, batches, sequences, files of frames, keys, threads."""

    def test_a_stream_is_created_once(self, bus: Bus) -> None:
        """A second create answers the same stream, or is refused with what differs."""
        assert bus.names() == []
        bus.create(SPEC)
        assert bus.create(SPEC, exist_ok=True).spec == SPEC == bus.stream("events").spec
        assert bus.names() == ["events"]
        with pytest.raises(InvalidInputError, match="exists; open it"):
            bus.create(SPEC)
        other = StreamSpec("events", 3, SCHEMA, "at", ("id",))
        with pytest.raises(InvalidInputError, match="another partitions: found 2, expected 3"):
            bus.create(other, exist_ok=True)
        narrow = StreamSpec("events", 2, SCHEMA.remove(2), "at", ("id",))
        with pytest.raises(InvalidInputError, match=r"another schema: found .*name string"):
            bus.create(narrow, exist_ok=True)

    def test_an_unknown_stream_is_refused_with_near_names(self, bus: Bus) -> None:
        """The error names near streams and the command that creates one."""
        bus.create(SPEC)
        with pytest.raises(InvalidInputError, match=r"'events'\?.*headrace bus create event"):
            bus.stream("event")

    def test_an_empty_batch_does_nothing(self, stream: Stream) -> None:
        """The answer is the current end."""
        stream.append(0, rows(0, 3))
        assert Appended(3, 3, False) == stream.append(0, rows(0, 0), producer=ME, sequence=1)
        assert stream.ends() == [3, 0]

    def test_batches_are_cast_to_the_schema_or_refused(self, stream: Stream) -> None:
        """Columns are put in order and cast without loss; nothing else is appended."""
        table = pa.table({"name": ["a"], "at": pa.array([5], pa.int32()), "id": [1]})
        stream.append(0, table)
        assert everything(stream) == [{"id": 1, "at": 5, "name": "a"}]
        with pytest.raises(InvalidInputError, match=r"missing \['name'\]") as caught:
            stream.append(1, table.drop_columns("name"))
        assert caught.value.fields == {"stream": "events", "partition": 1}
        with pytest.raises(InvalidInputError, match=r"event time .* is null in row 1"):
            stream.append(0, rows(0, 2, [5, None]))  # type: ignore[list-item]
        with pytest.raises(InvalidInputError, match=r"outside the years 1 to 9999"):
            stream.append(0, rows(0, 1, [-(10**14)]))
        assert stream.ends() == [1, 0]

    def test_too_large_a_batch_is_refused_with_the_numbers(self, stream: Stream) -> None:
        """The error holds what was found and what is allowed."""
        with pytest.raises(
            InvalidInputError, match=r"10000 rows has \d+ bytes; .* 100000, the set"
        ):
            stream.append(0, rows(0, 10_000))
        assert stream.ends() == [0, 0]

    def test_too_large_a_record_is_refused_with_the_numbers(self, bus: Bus) -> None:
        """One record in the middle of small ones, with its row; at the limit it may be."""
        stream = bus.create(StreamSpec("wide", 1, pa.schema([("text", pa.string())])))
        texts = ["x"] * 700 + ["y" * (20_000 - 4)] + ["z"] * 500
        stream.append(0, pa.table({"text": texts}))
        texts[700] += "y"
        texts[900] = "w" * 30_000
        with pytest.raises(
            InvalidInputError, match=r"in row 700 .* 2000\d bytes; .* 20000, the se"
        ):
            stream.append(0, pa.table({"text": texts}))
        assert stream.ends() == [1201]

    def test_a_sequence_is_appended_once(self, bus: Bus, tmp_path: Path) -> None:
        """A repeated or older sequence answers the old offsets, also after a reopen."""
        stream = bus.create(SPEC)
        assert Appended(0, 2, False) == stream.append(0, rows(0, 2), producer=ME, sequence=3)
        assert Appended(2, 5, False) == stream.append(0, rows(2, 3), producer=ME, sequence=5)
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            stream = again.stream("events")
            for sequence, first, last in ((3, 0, 2), (5, 2, 5), (4, 5, 5)):
                answer = stream.append(0, rows(9, 1), producer=ME, sequence=sequence)
                assert Appended(first, last, True) == answer
            for other in (Producer("job/output", "lineage-2"), Producer("job/other", "lineage-1")):
                assert not stream.append(0, rows(5, 1), producer=other, sequence=3).duplicate
            assert not stream.append(1, rows(0, 1), producer=ME, sequence=3).duplicate
            assert stream.ends() == [7, 1]

    def test_how_far_a_stream_goes_as_of_a_sequence_is_known(
        self, bus: Bus, tmp_path: Path
    ) -> None:
        """Up to the first append above it, with the rows of others before that."""
        stream = bus.create(SPEC)
        for sequence in (3, 5, 8):
            stream.append(0, rows(sequence, 2), producer=ME, sequence=sequence)
            stream.append(0, rows(100, 1))
        expected = {2: (0, 2), 3: (3, 3), 4: (3, 4), 5: (6, 5), 8: (9, 8), 9: (9, 8)}
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            stream = again.stream("events")
            assert {at: stream.as_of(ME, at)[0] for at in expected} == expected
            assert stream.as_of(ME, 9)[1] == (0, -1)
            assert stream.as_of(Producer("job/other", "lineage-1"), 3)[0] == (9, -1)

    def test_a_sequence_needs_its_producer(self, stream: Stream) -> None:
        """One without the other is refused, and so is a negative sequence."""
        how: dict[str, Any]
        for how in ({"producer": ME}, {"sequence": 1}, {"producer": ME, "sequence": -1}):
            with pytest.raises(InvalidInputError, match="expected both"):
                stream.append(0, rows(0, 1), **how)

    @pytest.mark.parametrize("point", ["bus.frame_written", "bus.index_written"])
    def test_a_retry_after_a_crash_leaves_one_copy(self, stream: Stream, point: str) -> None:
        """Whatever step the append died at, the same sequence again makes it whole."""
        stream.append(0, rows(0, 2), producer=ME, sequence=1)

        def die(at: str) -> None:
            if at == point:
                raise CrashError(at)

        with injected(die, (point,)), pytest.raises(CrashError):
            stream.append(0, rows(2, 3), producer=ME, sequence=2)
        answer = stream.append(0, rows(2, 3), producer=ME, sequence=2)
        assert Appended(2, 5, point == "bus.index_written") == answer
        stream.append(0, rows(5, 1), producer=ME, sequence=3)
        assert list(range(6)) == [row["id"] for row in everything(stream)]

    def test_files_of_frames_are_appended(self, stream: Stream, tmp_path: Path) -> None:
        """Ranges of a file, or all of it, become one append each."""
        path = tmp_path / "frames"
        ranges = write_frames(path, [rows(0, 2), rows(2, 3), rows(5, 1)])
        answer = stream.append_file(0, path, [ranges[0], ranges[2]], producer=ME, sequence=1)
        assert Appended(0, 3, False) == answer
        again = stream.append_file(0, path, ranges, producer=ME, sequence=1)
        assert Appended(0, 3, True) == again
        assert Appended(3, 9, False) == stream.append_file(0, path)
        assert Appended(9, 9, False) == stream.append_file(0, path, [])
        stream.append(0, rows(6, 1))
        ids = [row["id"] for row in everything(stream)]
        assert ids == [0, 1, 5, 0, 1, 2, 3, 4, 5, 6]
        assert [row["id"] for row in everything(stream)[5:8]] == [2, 3, 4]
        assert stream.time_range(0) == (1000, 1006)

    def test_a_large_file_is_appended_whole(self, stream: Stream, tmp_path: Path) -> None:
        """A file beyond ``adopt_bytes`` reads like any other append."""
        path = tmp_path / "frames"
        write_frames(path, [rows(0, 500), rows(500, 500)])
        assert Appended(0, 1000, False) == stream.append_file(0, path, producer=ME, sequence=1)
        assert Appended(0, 1000, True) == stream.append_file(0, path, producer=ME, sequence=1)
        stream.append(0, rows(1000, 1))
        assert list(range(1001)) == [row["id"] for row in everything(stream)]
        (found,) = stream.read(0, 700, 701)
        assert found.batch.column("id").to_pylist() == [700]

    def test_a_bad_range_of_a_file_is_refused(self, stream: Stream, tmp_path: Path) -> None:
        """A range that is not one of whole frames of this schema appends nothing."""
        path = tmp_path / "frames"
        (begin, end), _ = write_frames(path, [rows(0, 2), rows(2, 3)])
        for wrong in ((begin, end - 64), (begin, 1 << 30), (-64, end)):
            with pytest.raises(InvalidInputError, match="range"):
                stream.append_file(0, path, [wrong])
        with pytest.raises(CorruptDataError, match=r"frames is damaged at byte 64"):
            stream.append_file(0, path, [(begin + 64, end)])
        narrow = tmp_path / "narrow"
        write_frames(narrow, [rows(0, 2).select(["id"])])
        with pytest.raises(InvalidInputError, match="has 1 columns; expected whole frames of 3"):
            stream.append_file(0, narrow)
        with pytest.raises(InvalidInputError, match="no file"):
            stream.append_file(0, tmp_path / "missing")
        assert stream.ends() == [0, 0]

    def test_keys_go_to_the_same_partition_for_ever(self, bus: Bus) -> None:
        """The routing is part of the format: these values must never change."""
        schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
        one = bus.create(StreamSpec("one", 8, schema, key=("a",)))
        answers = one.append_rows(
            pa.record_batch([[0, 1, 2, 3, 4, 5, 6, 7, None], ["x"] * 9], schema=schema)
        )
        assert sorted(answers) == list(answers)
        found = {p: [row["a"] for row in everything(one, p)] for p in range(8)}
        assert found == GOLDEN
        two = bus.create(StreamSpec("two", 4, schema, key=("a", "b")))
        two.append_rows(pa.record_batch([[1, 1, 2, 2], ["x", "y", "x", None]], schema=schema))
        pairs = {p: [tuple(row.values()) for row in everything(two, p)] for p in range(4)}
        assert pairs == {0: [(1, "y")], 1: [(1, "x"), (2, "x"), (2, None)], 2: [], 3: []}

    def test_rows_of_a_key_keep_their_order(self, stream: Stream) -> None:
        """Routing is stable, idempotent, and loses nothing."""
        batch = rows(0, 100)
        first = stream.append_rows(batch, producer=ME, sequence=1)
        again = stream.append_rows(batch, producer=ME, sequence=1)
        assert {p: answer._replace(duplicate=True) for p, answer in first.items()} == again
        parts = [[row["id"] for row in everything(stream, p)] for p in (0, 1)]
        assert all(part == sorted(part) and part for part in parts)
        assert list(range(100)) == sorted(parts[0] + parts[1])
        assert stream.append_rows(rows(0, 0)) == {}

    def test_rows_without_key_take_turns(self, bus: Bus) -> None:
        """A batch goes to one partition: of its sequence, or the next."""
        stream = bus.create(StreamSpec("plain", 3, SCHEMA))
        assert [list(stream.append_rows(rows(0, 1))) for _ in range(4)] == [[0], [1], [2], [0]]
        assert list(stream.append_rows(rows(0, 1), producer=ME, sequence=5)) == [2]
        assert stream.append_rows(rows(0, 1), producer=ME, sequence=5)[2].duplicate

    def test_threads_append_at_once(self, stream: Stream) -> None:
        """Nothing is lost or torn when threads share a partition."""

        def work(worker: int) -> None:
            for number in range(20):
                stream.append(0, rows(1000 * worker + number, 3))

        workers = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(LONG_S)
        ids = [row["id"] for row in everything(stream)]
        assert stream.ends() == [240, 0]
        for me in range(4):
            mine = [number for number in ids if number // 1000 == me]
            expected = [1000 * me + n + k for n in range(20) for k in range(3)]
            assert expected == mine

    def test_batches_outlive_the_bus(self, bus: Bus) -> None:
        """A batch that was read stays valid after close; the bus itself refuses."""
        stream = bus.create(SPEC)
        stream.append(0, rows(0, 3))
        (found,) = stream.read(0, 0)
        bus.close()
        assert rows(0, 3) == found.batch
        for call in (bus.names, stream.ends, lambda: stream.append(0, rows(0, 1))):
            with pytest.raises(ClosedError, match="closed"):
                call()


class ReadingContract(BusSuite):
    """Ranges, columns, bounds, times and waiting."""

    def test_any_range_reads_exactly_its_rows(self, stream: Stream) -> None:
        """Reading [start, stop) gives those rows with their offsets, for all ranges."""
        for first, count in ((0, 3), (3, 1), (4, 5)):
            assert Appended(first, first + count, False) == stream.append(0, rows(first, count))
        assert (stream.begins(), stream.ends()) == ([0, 0], [9, 0])
        for start in range(10):
            for stop in range(start, 10):
                found = list(stream.read(0, start, stop))
                ids = [value for part in found for value in part.batch.column("id").to_pylist()]
                assert list(range(start, stop)) == ids
                assert all(
                    part.batch.column("id")[0].as_py() == part.first_offset for part in found
                )

    def test_chosen_columns_come_in_the_order_wanted(self, stream: Stream) -> None:
        """Only the chosen columns are returned; unknown ones are refused."""
        stream.append(0, rows(0, 3))
        (found,) = stream.read(0, 1, columns=["name", "id"])
        assert found.batch.to_pydict() == {"name": ["n1", "n2"], "id": [1, 2]}
        (bare,) = stream.read(0, 0, columns=[])
        assert (bare.batch.num_rows, bare.batch.num_columns) == (3, 0)
        with pytest.raises(InvalidInputError, match=r"no columns \['nme'\]"):
            stream.read(0, 0, columns=["nme"])

    def test_a_read_can_be_bounded(self, stream: Stream) -> None:
        """``max_rows`` is exact; ``max_bytes`` gives at least one row."""
        for first in (0, 10, 20):
            stream.append(0, rows(first, 10))
        assert len(everything(stream, max_rows=15)) == 15
        assert len(everything(stream, max_bytes=1)) == 1
        assert len(everything(stream, columns=["id"], max_bytes=12 * 8)) == 12
        assert len(everything(stream, max_bytes=1 << 20)) == 30

    def test_offsets_and_partitions_that_are_not_there_are_refused(self, stream: Stream) -> None:
        """Reading beyond the end is an error, not an empty answer."""
        stream.append(0, rows(0, 3))
        for start, stop in ((-1, None), (4, None), (0, 4), (2, 1)):
            with pytest.raises(InvalidInputError, match="within 0 to 3"):
                stream.read(0, start, stop)
        with pytest.raises(InvalidInputError, match="no partition 2; expected 0 to 1"):
            stream.read(2, 0)

    def test_offsets_are_found_by_event_time(self, stream: Stream, bus: Bus) -> None:
        """The answer is the first row at or after the time in the first append with one."""
        assert None is stream.time_range(0)
        assert stream.offset_at(0, 0) == 0
        stream.append(0, rows(0, 3, [10, 30, 20]))
        stream.append(0, rows(3, 2, [5, 6]))
        stream.append(0, rows(5, 2, [40, 50]))
        expected = {0: 0, 10: 0, 11: 1, 30: 1, 31: 5, 40: 5, 41: 6, 50: 6, 51: 7}
        assert expected == {time: stream.offset_at(0, time) for time in expected}
        assert stream.time_range(0) == (5, 50)
        untimed = bus.create(StreamSpec("untimed", 1, SCHEMA))
        untimed.append(0, rows(0, 1))
        assert None is untimed.time_range(0)
        with pytest.raises(InvalidInputError, match="no event-time column"):
            untimed.offset_at(0, 5)

    def test_timestamps_are_event_times(self, bus: Bus) -> None:
        """A timestamp column is read as milliseconds, whatever its unit was."""
        schema = pa.schema([("at", pa.timestamp("ns"))])
        stream = bus.create(StreamSpec("stamped", 1, schema, "at"))
        stream.append(0, pa.record_batch([pa.array([1_500, 2_500], pa.timestamp("ms"))], ["at"]))
        assert stream.time_range(0) == (1500, 2500)
        assert stream.offset_at(0, 1501) == 1

    def test_waiting_ends_with_an_append(self, stream: Stream) -> None:
        """A waiter wakes by an append to any partition, long before its timeout."""
        stream.append(0, rows(0, 1))
        answers: list[list[int]] = []
        waiter = threading.Thread(target=lambda: answers.append(stream.wait([1, 0], LONG_S)))
        waiter.start()
        stream.append(1, rows(0, 4))
        waiter.join(LONG_S / 2)
        assert answers == [[1, 4]]
        assert stream.wait([0, 4], LONG_S) == [1, 4]
        assert stream.wait([1, 4], 0.01) == [1, 4]
        with pytest.raises(InvalidInputError, match=r"found 3 ends .*, expected at most 2"):
            stream.wait([1, 4, 0], 0.01)

    def test_a_follower_sees_rows_as_they_arrive(self, stream: Stream) -> None:
        """What was there and what comes is yielded in order, until it is stopped."""
        stream.append(0, rows(0, 2))
        seen: list[int] = []

        def follow() -> None:
            for found in stream.follow(0, 1, stopped=lambda: len(seen) >= 5, columns=["id"]):
                seen.extend(found.batch.column("id").to_pylist())

        follower = threading.Thread(target=follow)
        follower.start()
        for first in (2, 4):
            stream.append(1, rows(0, 1))
            stream.append(0, rows(first, 2))
        follower.join(LONG_S)
        assert seen == [1, 2, 3, 4, 5]


class ChangingContract(BusSuite):
    """Trims, settings, numbers of partitions, aliases."""

    def test_a_trimmed_partition_begins_later(self, bus: Bus, tmp_path: Path) -> None:
        """Nothing from the offset on goes; readers below learn what is kept."""
        stream = bus.create(SPEC)
        for first in (0, 3, 6):
            stream.append(0, rows(first, 3), producer=ME, sequence=first)
        (kept,) = stream.read(0, 0, 3)
        begin = stream.trim(0, 5)
        assert 0 <= begin <= 5
        assert [begin, 0] == stream.begins()
        assert [row["id"] for p in stream.read(0, 5) for row in p.batch.to_pylist()] == [5, 6, 7, 8]
        assert stream.trim(0, 9) == 9
        assert (stream.begins(), stream.ends()) == ([9, 0], [9, 0])
        assert None is stream.time_range(0)
        assert stream.offset_at(0, 0) == 9
        with pytest.raises(OffsetGoneError, match="offset 3 is gone, the oldest kept is 9") as gone:
            stream.read(0, 3)
        assert gone.value.fields == {"stream": "events", "partition": 0, "offset": 3, "begin": 9}
        assert rows(0, 3) == kept.batch
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            stream = again.stream("events")
            assert (stream.begins(), stream.ends()) == ([9, 0], [9, 0])
            assert Appended(9, 9, True) == stream.append(0, rows(9, 1), producer=ME, sequence=6)
            assert Appended(9, 11, False) == stream.append(0, rows(9, 2), producer=ME, sequence=9)
            assert [r["id"] for p in stream.read(0, 9) for r in p.batch.to_pylist()] == [9, 10]
            assert stream.offset_at(0, 0) == 9
            assert stream.time_range(0) == (1009, 1010)

    def test_a_trim_that_cannot_be_is_refused(self, stream: Stream) -> None:
        """Beyond the end there is nothing to drop."""
        stream.append(0, rows(0, 3))
        for wrong in (-1, 4):
            with pytest.raises(InvalidInputError, match=f"before offset {wrong}; expected 0 to 3"):
                stream.trim(0, wrong)
        assert stream.trim(0, 0) == stream.trim(0) == stream.trim(1, 0) == stream.trim(1) == 0

    def test_settings_of_a_stream_are_changed_for_good(self, bus: Bus, tmp_path: Path) -> None:
        """Each change keeps the other settings; what cannot be is refused."""
        stream = bus.create(SPEC)
        assert StreamSettings() == stream.settings
        assert StreamSettings(retain_ms=5) == stream.configure(retain_ms=5)
        both = StreamSettings(retain_ms=5, retain_bytes=7)
        assert both == stream.configure(retain_bytes=7) == stream.configure()
        with pytest.raises(InvalidInputError, match="retain_ms is 0; expected a whole number"):
            stream.configure(retain_ms=0)
        with pytest.raises(InvalidInputError, match=r"unknown stream settings \['keep'\]"):
            stream.configure(keep=3)
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            assert both == again.stream("events").settings
            assert StreamSettings() == again.stream("events").configure(
                retain_ms=None, retain_bytes=None
            )

    def test_partitions_are_added_and_rested(self, bus: Bus, tmp_path: Path) -> None:
        """New rows go to as many as the settings say, and all that there are can be read."""
        stream = bus.create(StreamSpec("plain", 2, SCHEMA))
        for number in range(4):
            stream.append_rows(rows(number, 1))
        assert stream.configure(partitions=4).partitions == stream.spec.partitions == 4
        assert (stream.ends(), stream.begins()) == ([2, 2, 0, 0], [0, 0, 0, 0])
        for number in range(4):
            stream.append_rows(rows(number, 1))
        assert stream.ends() == stream.wait([3, 3, 1], 0.0) == [3, 3, 1, 1]
        stream.configure(partitions=1)
        assert list(stream.append_rows(rows(9, 1))) == [0]
        assert stream.spec.partitions == 4
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            stream = again.stream("plain")
            assert stream.ends() == [4, 3, 1, 1]
            assert list(stream.append_rows(rows(9, 1))) == [0]
            for count in (1, 2, 4):
                same = StreamSpec("plain", count, SCHEMA)
                assert again.create(same, exist_ok=True).spec.partitions == 4
            with pytest.raises(InvalidInputError, match="another partitions: found 4, expected 3"):
                again.create(StreamSpec("plain", 3, SCHEMA), exist_ok=True)

    def test_a_repeated_append_goes_where_it_went(self, bus: Bus) -> None:
        """However many partitions there are by now."""
        stream = bus.create(StreamSpec("plain", 2, SCHEMA))
        for sequence in range(4):
            stream.append_rows(rows(sequence, 1), producer=ME, sequence=sequence)
        for count in (3, 1, 4):
            stream.configure(partitions=count)
            for sequence in range(4):
                answers = stream.append_rows(rows(sequence, 1), producer=ME, sequence=sequence)
                assert {p: a.duplicate for p, a in answers.items()} == {sequence % 2: True}
        assert list(stream.append_rows(rows(4, 1), producer=ME, sequence=7)) == [3]
        assert stream.ends() == [2, 2, 0, 1]
        stream.trim(0, 2)
        assert list(stream.append_rows(rows(2, 1), producer=ME, sequence=2)) == [0]

    def test_a_stream_with_a_key_keeps_its_partitions(self, stream: Stream) -> None:
        """Else rows of a key could be read in another order than they were appended."""
        with pytest.raises(InvalidInputError, match=r"its key \['id'\] in 2 partitions; with 3"):
            stream.configure(partitions=3)
        assert stream.configure(partitions=2, retain_ms=5).partitions == 2
        with pytest.raises(InvalidInputError, match="found 0 partitions, expected 1 to 65536"):
            stream.configure(partitions=0)

    def test_a_stream_is_removed_with_its_rows(self, bus: Bus, tmp_path: Path) -> None:
        """Another one of its name begins empty, and knows no producer; what was read stays."""
        first = bus.create(StreamSpec("events", 1, SCHEMA))
        first.append(0, rows(0, 3), producer=ME, sequence=5)
        (part,) = first.read(0, 0)
        bus.alias("now", "events")
        with pytest.raises(InvalidInputError, match="alias 'now' points to stream 'events'"):
            bus.remove("events")
        bus.unalias("now")
        bus.remove("events")
        assert bus.names() == []
        with pytest.raises(InvalidInputError, match="no stream 'events'"):
            bus.remove("events")
        with pytest.raises(ClosedError):
            first.append(0, rows(0, 1))
        again = bus.create(StreamSpec("events", 1, SCHEMA))
        assert again.ends() == [0]
        assert not again.append(0, rows(7, 1), producer=ME, sequence=5).duplicate
        assert part.batch.num_rows == 3
        with self.reopen(bus, tmp_path / "bus", self.options) as later:
            assert later.stream("events").ends() == [1]

    def test_a_stream_has_an_identity_of_its_own(self, bus: Bus, tmp_path: Path) -> None:
        """It stays while settings and rows change, and no other of its name has it."""
        first = bus.create(SPEC)
        identity, others = first.identity, {bus.create(StreamSpec("other", 1, SCHEMA)).identity}
        first.append(0, rows(0, 1))
        first.configure(retain_ms=5)
        bus.alias("now", "events")
        assert identity == bus.stream("now").identity == bus.create(SPEC, exist_ok=True).identity
        bus.unalias("now")
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            assert identity == again.stream("events").identity
            for _ in range(3):
                others.add(identity)
                again.remove("events")
                identity = again.create(SPEC).identity
                assert identity not in others
                assert again.stream("events").begins() == again.stream("events").ends() == [0, 0]
                assert again.stream("events").settings.retain_ms is None
            assert again.names() == ["events", "other"]
        assert len(others) == 4
        assert all(others)

    def test_an_alias_is_swapped_in_one_step(self, bus: Bus, tmp_path: Path) -> None:
        """Who opens it gets the stream that it stands for at that moment."""
        first, second = (bus.create(StreamSpec(name, 1, SCHEMA)) for name in ("v1", "v2"))
        assert None is bus.alias("now", "v1")
        held = bus.stream("now")
        held.append(0, rows(0, 1))
        assert bus.alias("now", "v2") == "v1"
        bus.stream("now").append(0, rows(1, 2))
        held.append(0, rows(3, 3))
        assert (first.ends(), second.ends()) == ([4], [2])
        assert bus.names() == ["v1", "v2"]
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            assert again.aliases() == {"now": "v2"}
            assert again.stream("now").spec.name == "v2"
            again.unalias("now")
            assert again.aliases() == {}
            with pytest.raises(InvalidInputError, match="no stream 'now'"):
                again.stream("now")

    def test_several_aliases_are_swapped_in_one_step(self, bus: Bus, tmp_path: Path) -> None:
        """All of them stand for other streams, or all for those of before."""
        for name in ("a1", "b1", "a2", "b2"):
            bus.create(StreamSpec(name, 1, SCHEMA))
        assert bus.swap({"a": "a1", "b": "b1"}) == {"a": None, "b": None}
        with pytest.raises(InvalidInputError, match="no stream 'b3'"):
            bus.swap({"a": "a2", "b": "b3"})
        assert bus.aliases() == {"a": "a1", "b": "b1"}
        with pytest.raises(InvalidInputError, match="another process has changed it"):
            bus.swap({"a": "a2", "b": "b2"}, {"a": "a1", "b": "b2"})
        assert bus.aliases() == {"a": "a1", "b": "b1"}
        seen = {"a": "a1", "b": "b1"}
        assert bus.swap({"a": "a2", "b": "b2"}, seen) == seen
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            assert again.aliases() == {"a": "a2", "b": "b2"}
            assert again.stream("b").spec.name == "b2"

    def test_an_alias_that_cannot_be_is_refused(self, bus: Bus) -> None:
        """A name is of a stream or an alias, and an alias stands for a stream."""
        bus.create(SPEC)
        bus.alias("now", "events")
        with pytest.raises(InvalidInputError, match="'now' is an alias of stream 'events'"):
            bus.create(StreamSpec("now", 1, SCHEMA))
        with pytest.raises(InvalidInputError, match="'events' is a stream and cannot be an alias"):
            bus.alias("events", "events")
        for wrong in ("now", "never"):
            with pytest.raises(InvalidInputError, match=f"no stream '{wrong}'"):
                bus.alias("later", wrong)
        with pytest.raises(InvalidInputError, match="cannot name a stream"):
            bus.alias("../now", "events")
        with pytest.raises(InvalidInputError, match=r"no alias 'later'; found \['now'\]"):
            bus.unalias("later")
        with pytest.raises(InvalidInputError, match="no stream 'no'; did you mean 'now'"):
            bus.stream("no")
