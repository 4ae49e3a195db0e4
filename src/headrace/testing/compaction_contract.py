"""What every bus must do with compacted streams, as tests; part of ``BusContract``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus import Bus, OffsetGoneError, Producer, Stream, StreamSpec
from headrace.errors import InvalidInputError
from headrace.testing.bus_suite import SCHEMA, BusSuite, everything
from headrace.testing.clock import ManualClock

PRICES = StreamSpec("prices", 1, SCHEMA, "at", ("id",), compact=True)
ONE = Producer("one", "")
HOUR_MS = 3_600_000


def price(key: int | None, offset: int, name: str | None = "x") -> dict[str, Any]:
    """Return a row with an event time that tells its offset."""
    return {"id": key, "at": 1000 + offset, "name": name}


def append(stream: Stream, *keys: int | None, name: str | None = "x", **how: Any) -> None:
    """Append a row of each key."""
    end = stream.ends()[0]
    rows = [price(key, end + number, name) for number, key in enumerate(keys)]
    stream.append(0, pa.RecordBatch.from_pylist(rows, SCHEMA), **how)


def offsets(stream: Stream, start: int = 0, stop: int | None = None, **how: Any) -> list[int]:
    """Return the offsets that there are, after checking that each row is at its own."""
    found: list[int] = []
    following = start
    for part in stream.read(0, start, stop, **how):
        assert part.first_offset == following
        following = part.next_offset
        times = part.batch.column("at").to_pylist()
        assert [at - 1000 for at in times] == part.offsets.tolist()
        found += part.offsets.tolist()
    if not how:
        assert following == (stream.ends()[0] if stop is None else stop)
    return found


class CompactionContract(BusSuite):
    """The latest row of each key, deletes, and what readers see meanwhile."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Make a clock that the tests move."""
        return ManualClock()

    @pytest.fixture
    def timed(self, tmp_path: Path, clock: ManualClock) -> Iterator[Bus]:
        """Open an empty bus with that clock."""
        with self.open_bus(tmp_path / "bus", self.options, clock) as bus:
            yield bus

    @pytest.fixture
    def prices(self, timed: Bus) -> Stream:
        """Create a compacted stream."""
        return timed.create(PRICES)

    def test_the_last_row_of_each_key_is_kept_at_its_offset(
        self, timed: Bus, prices: Stream, tmp_path: Path
    ) -> None:
        """Offsets do not move, and the end stays where it is."""
        append(prices, 1, 2, 1, None)
        append(prices, 3, None, 2)
        done = prices.compact(0)
        assert (done.upto, done.rows_before, done.rows) == (7, 7, 4)
        assert done.bytes == prices.stored()[0].bytes < done.bytes_before
        assert (prices.begins(), prices.ends(), prices.compacted()) == ([0], [7], [7])
        with self.reopen(timed, tmp_path / "bus", self.options) as again:
            stream = again.stream("prices")
            assert stream.spec == PRICES
            assert offsets(stream) == [2, 4, 5, 6]
            append(stream, 1, 7)
            assert offsets(stream) == [2, 4, 5, 6, 7, 8]
            stream.compact(0)
            assert offsets(stream) == [4, 5, 6, 7, 8]
            assert [row["id"] for row in everything(stream)] == [3, None, 2, 1, 7]
            assert stream.stored()[0].rows == 5

    def test_any_range_reads_what_is_left_of_it(self, prices: Stream) -> None:
        """Batches cover the range without a gap, whatever is gone of it."""
        append(prices, 1, 2, 1, 1, 3, 3)
        prices.compact(0)
        append(prices, 2, 4)
        left = [1, 3, 5, 6, 7]
        for start in range(9):
            for stop in range(start, 9):
                assert [n for n in left if start <= n < stop] == offsets(prices, start, stop)
        for most in range(6):
            assert left[:most] == offsets(prices, max_rows=most)
        assert offsets(prices, max_bytes=1) == [1]
        (bare,) = prices.read(0, 2, 5, columns=[])
        assert (bare.offsets.tolist(), bare.next_offset) == ([3], 5)

    def test_what_was_read_in_part_goes_on_where_it_was(self, prices: Stream) -> None:
        """Bounded reads one after the other see each row once."""
        append(prices, *range(40), *range(0, 40, 2))
        prices.compact(0)
        expected = [*range(1, 40, 2), *range(40, 60)]
        for how in ({"max_rows": 7}, {"max_bytes": 100}):
            at, seen = 0, []
            while at < 60:
                for part in prices.read(0, at, **how):  # type: ignore[arg-type]
                    seen += part.offsets.tolist()
                    at = part.next_offset
            assert expected == seen

    def test_a_reader_in_the_middle_sees_what_is_kept(self, prices: Stream) -> None:
        """What it has stays as it is; what it has not read yet may be compacted."""
        for _ in range(3):
            append(prices, 1, 2)
        reading = prices.read(0, 0)
        first = next(reading)
        prices.compact(0)
        rest = [n for part in reading for n in part.offsets.tolist()]
        assert rest in ([2, 3, 4, 5], [4, 5])
        assert first.batch.column("id").to_pylist() == [1, 2]

    def test_a_delete_goes_after_its_time(self, clock: ManualClock, prices: Stream) -> None:
        """It hides its key at once, and is told to readers for a while."""
        prices.configure(keep_deletes_ms=HOUR_MS)
        append(prices, 1, 2)
        append(prices, 1, name=None)
        clock.advance(2 * HOUR_MS)
        prices.compact(0)
        assert offsets(prices) == [1, 2]
        clock.advance(HOUR_MS - 1)
        append(prices, 3)
        prices.compact(0)
        assert offsets(prices) == [1, 2, 3]
        clock.advance(1)
        prices.compact(0)
        assert offsets(prices) == [1, 3]
        append(prices, 2, 3, name=None)
        prices.compact(0)
        clock.advance(HOUR_MS)
        done = prices.compact(0)
        assert (done.upto, done.rows) == (6, 0)
        assert (offsets(prices), prices.time_range(0), prices.stored()[0].rows) == ([], None, 0)
        append(prices, 2)
        assert offsets(prices) == [6]
        prices.compact(0)
        assert offsets(prices) == [6]

    def test_without_values_no_row_deletes(self, timed: Bus, clock: ManualClock) -> None:
        """A stream of keys alone is a set; a column that is added does not change that."""
        keys = pa.schema([("id", pa.int64()), ("at", pa.int64())])
        stream = timed.create(StreamSpec("keys", 1, keys, "at", ("id",), compact=True))
        stream.configure(keep_deletes_ms=1)
        stream.append(0, pa.record_batch([[1, 2, 1], [1000, 1001, 1002]], schema=keys))
        stream.evolve(keys.append(pa.field("note", pa.string())))
        for _ in range(3):
            stream.compact(0)
            clock.advance(HOUR_MS)
        assert offsets(stream) == [1, 2]

    def test_added_columns_keep_their_defaults(self, clock: ManualClock, prices: Stream) -> None:
        """Also in rows that a compaction has written anew; and deletes stay deletes."""
        prices.configure(keep_deletes_ms=HOUR_MS)
        append(prices, 1, 2, 1)
        append(prices, 2, name=None)
        prices.evolve(
            SCHEMA.append(pa.field("n", pa.int64())).append(pa.field("m", pa.int64())), {"n": 5}
        )
        for _ in range(2):
            prices.compact(0)
            assert [(row["id"], row["n"], row["m"]) for row in everything(prices)] == [
                (1, 5, None),
                (2, 5, None),
            ]
        clock.advance(HOUR_MS)
        prices.compact(0)
        assert offsets(prices) == [2]

    def test_nothing_goes_from_where_a_reader_holds_it(
        self, clock: ManualClock, prices: Stream
    ) -> None:
        """Until it moves on, lets go, or has been silent for long."""
        for _ in range(4):
            append(prices, 1, 2)
        before = offsets(prices, 4)
        prices.hold("job", [4])
        prices.hold("other", [6])
        assert prices.compact(0).upto <= 4
        assert before == offsets(prices, 4)
        assert prices.holds() == {"job": (4,), "other": (6,)}
        prices.hold("job", [8])
        assert 4 <= prices.compact(0).upto <= 6
        prices.release("other")
        prices.release("nobody")
        assert (prices.compact(0).upto, offsets(prices)) == (8, [6, 7])
        append(prices, 1, 2)
        append(prices, 2)
        assert prices.compact(0).upto == 8
        clock.advance(8 * 24 * HOUR_MS)
        assert (prices.compact(0).upto, offsets(prices)) == (11, [8, 10])

    def test_young_rows_are_left(self, clock: ManualClock, prices: Stream) -> None:
        """Those that were appended within ``compact_after_ms``."""
        prices.configure(compact_after_ms=HOUR_MS)
        append(prices, 1, 1)
        assert (prices.compact(0).upto, offsets(prices)) == (0, [0, 1])
        clock.advance(HOUR_MS)
        assert (prices.compact(0).upto, offsets(prices)) == (2, [1])

    def test_a_compacted_stream_is_trimmed_like_others(
        self, timed: Bus, prices: Stream, tmp_path: Path
    ) -> None:
        """Whole segments go, and what is left of compacted rows stays compacted."""
        for _ in range(3):
            append(prices, 1, 2, 3)
        prices.compact(0)
        append(prices, 1, 4)
        append(prices, 5)
        begin = prices.trim(0, 11)
        assert begin in (9, 11)
        assert [n for n in (9, 10, 11) if n >= begin] == offsets(prices, begin)
        with pytest.raises(OffsetGoneError):
            prices.read(0, 8)
        prices.compact(0)
        with self.reopen(timed, tmp_path / "bus", self.options) as again:
            stream = again.stream("prices")
            assert (stream.begins(), stream.ends()) == ([begin], [12])
            assert [n for n in (9, 10, 11) if n >= begin] == offsets(stream, begin)

    def test_event_times_are_found_in_what_is_left(self, prices: Stream) -> None:
        """The first row at or after the time that is still there."""
        append(prices, 1, 2, 1, 3, 2)
        prices.compact(0)
        append(prices, 9)
        found = {time: prices.offset_at(0, time) for time in range(999, 1008)}
        assert found == {
            **dict.fromkeys(range(999, 1003), 2),
            1003: 3,
            1004: 4,
            1005: 5,
            1006: 6,
            1007: 6,
        }
        assert prices.time_range(0) == (1002, 1005)

    def test_a_time_before_all_is_found_where_nothing_is_left(
        self, clock: ManualClock, prices: Stream
    ) -> None:
        """Offsets of which no row is left have no time, not one before 1970."""
        prices.configure(keep_deletes_ms=1)
        append(prices, 1, 1, name=None)
        for _ in range(2):
            prices.compact(0)
            clock.advance(10)
        assert offsets(prices) == []
        assert [prices.offset_at(0, time) for time in (-5, -1, 0)] == [2, 2, 2]
        append(prices, 1)
        assert [prices.offset_at(0, time) for time in (-5, -1, 0, 1003)] == [2, 2, 2, 3]

    def test_sequences_are_known_when_their_rows_are_gone(
        self, timed: Bus, prices: Stream, tmp_path: Path
    ) -> None:
        """A repeated append is one also after a compaction."""
        append(prices, 1, producer=ONE, sequence=1)
        append(prices, 1, producer=ONE, sequence=2)
        prices.compact(0)
        with self.reopen(timed, tmp_path / "bus", self.options) as again:
            stream = again.stream("prices")
            for sequence in (1, 2):
                append(stream, 1, producer=ONE, sequence=sequence)
            assert stream.ends() == [2]

    def test_what_cannot_be_compacted_is_refused(self, bus: Bus, stream: Stream) -> None:
        """A stream without a key, and one that was not made for it."""
        with pytest.raises(InvalidInputError, match="keeps the last record of each key, and has"):
            StreamSpec("keyless", 1, SCHEMA, compact=True)
        with pytest.raises(InvalidInputError, match="'events' is not compacted"):
            stream.compact(0)
        same = StreamSpec("events", 2, SCHEMA, "at", ("id",), compact=True)
        with pytest.raises(InvalidInputError, match="is not compacted, which it stays"):
            bus.create(same, exist_ok=True)
        assert stream.compacted() == [0, 0]
        stream.hold("job", [0, 0])
        assert stream.holds() == {}
