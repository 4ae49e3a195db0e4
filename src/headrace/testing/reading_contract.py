"""What every bus must do when it is read, as tests; part of ``BusContract``."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from headrace.bus import Appended, Bus, Stream, StreamSpec
from headrace.errors import InvalidInputError
from headrace.testing.bus_suite import LONG_S, SCHEMA, BusSuite, everything, rows


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
        """What was there and what comes is yielded in order, until told to stop."""
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
