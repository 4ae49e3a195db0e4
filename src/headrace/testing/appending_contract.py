"""What every bus must do with appends, as tests; part of ``BusContract``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus import Appended, Bus, Producer, Stream, StreamSpec
from headrace.errors import ClosedError, CorruptDataError, InvalidInputError
from headrace.faults import injected
from headrace.testing.bus_suite import (
    LONG_S,
    ME,
    SCHEMA,
    SPEC,
    BusSuite,
    CrashError,
    everything,
    rows,
    write_frames,
)

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
        with pytest.raises(InvalidInputError, match=r"event time .* is -1 ms"):
            stream.append(0, rows(0, 1, [-1]))
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
