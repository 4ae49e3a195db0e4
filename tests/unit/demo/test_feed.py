"""The feeder appends day by day, in order, and tells when it is done or has failed."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from headrace.bus.bus import Bus
from headrace.bus.memory import MemoryBus
from headrace.demo.flights import Feeder, Source, append_all, day_slices
from headrace.errors import InternalError
from headrace.testing import ManualClock

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
TIMES = [1, HOUR_US, DAY_US - 1, DAY_US, DAY_US, 3 * DAY_US + 5]


@pytest.fixture
def bus() -> Bus:
    return MemoryBus()


def source(partitions: int = 1) -> Source:
    moments = pa.array(TIMES, pa.timestamp("us", tz="UTC"))
    table = pa.table({"n": range(len(TIMES)), "at": moments})
    return Source("events", table, ("n",), "at", partitions)


def values(bus: Bus, partition: int = 0) -> list[list[int]]:
    stream = bus.stream("events")
    return [found.batch.column("n").to_pylist() for found in stream.read(partition, 0)]


def test_a_slice_is_the_rows_of_one_utc_day() -> None:
    moments = pa.array(TIMES, pa.timestamp("us", tz="UTC"))
    assert day_slices(moments) == [(0, 3), (3, 5), (5, 6)]


def test_each_day_is_an_append_of_its_own(bus: Bus) -> None:
    done = threading.Event()
    feeder = Feeder(source(), source().create(bus), ManualClock(), 0.0, done.set)
    feeder.start()
    assert done.wait(10)
    feeder.close()
    assert values(bus) == [[0, 1, 2], [3, 4], [5]]
    assert feeder.rows == len(TIMES)
    assert feeder.failure is None


def test_a_feeder_that_was_stopped_appends_no_more(bus: Bus) -> None:
    done = threading.Event()
    # The manual clock stands still, so the second day is never due.
    feeder = Feeder(source(), source().create(bus), ManualClock(), 1e6, done.set)
    feeder.start()
    feeder.close()
    assert done.is_set()
    assert values(bus) in ([], [[0, 1, 2]])


def test_a_failure_ends_the_feeder_and_is_kept(bus: Bus) -> None:
    done = threading.Event()
    untimed = Source("events", source().table, ("n",))
    feeder = Feeder(untimed, untimed.create(bus), ManualClock(), 0.0, done.set)
    feeder.start()
    assert done.wait(10)
    feeder.close()
    assert isinstance(feeder.failure, InternalError)


def test_all_at_once_goes_to_every_partition_in_order(bus: Bus) -> None:
    append_all(source(3), source(3).create(bus))
    parts = [[n for batch in values(bus, partition) for n in batch] for partition in range(3)]
    assert list(range(len(TIMES))) == sorted(n for part in parts for n in part)
    assert all(part == sorted(part) for part in parts)
