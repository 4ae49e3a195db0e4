"""An idle partition holds nothing back, and what it brings later is late, however epochs fall."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from tests.support.soak import crossed, more

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "at": pa.int64()}
WINDOW = 10_000
POINTS = (
    "epoch.planned",
    "slot.ran",
    "slot.output_written",
    "epoch.before_commit",
    "commit.published",
    "epoch.published",
)


@hr.job("idling")
def idling(g: Any) -> None:
    """Windows behind a repartition, of partitions that come and go."""
    events = g.input("events", time="at", out_of_orderness="1s", idle="20s").partition_by("id")
    events.window(hr.tumbling("10s"), n=hr.agg.count()).send_to(g.output("windows"))


def _steps(seed: int) -> list[tuple[str, Any]]:
    """Return what happens: rows of a partition, or seconds that pass."""
    rng = random.Random(seed)
    steps: list[tuple[str, Any]] = []
    now, asleep = 100_000, 0
    for number in range(20):
        if number % 10 == 0:
            asleep = rng.randrange(3)  # one partition brings nothing for a while
        for partition in range(3):
            if partition == asleep and number % 10 < 8:
                continue
            behind = 40_000 if partition == asleep else 3_000  # it brings what it held back
            rows = [
                {"id": rng.randrange(4), "at": now - rng.randrange(behind)}
                for _ in range(rng.randrange(1, 5))
            ]
            steps.append(("feed", (partition, rows)))
        moved = rng.randrange(1, 5_000)
        now += moved
        steps.append(("pass", moved))
    return steps


def _run(seed: int, max_rows: int = 1_000, point: str = "") -> tuple[Counter[Any], dict[str, int]]:
    rng = random.Random(seed)  # of the crashes
    with TestDriver(idling, tasks=2, max_rows=max_rows) as driver:
        driver.create("events", COLUMNS, partitions=3, time="at")
        driver.start()
        for kind, what in _steps(seed):
            if kind == "pass":
                driver.clock.advance(what)
            else:
                driver.feed("events", what[1], partition=what[0])
            if point and rng.random() < 0.3:
                driver.advance_with_crash(point)
            driver.run()
        driver.finish()
        found = Counter(map(_plain, driver.output("windows")))
        counts = driver.coordinator.state.counts
        return found, {name: counts.get(name, 0) for name in ("in", "late", "out")}


@cache
def _undisturbed(seed: int) -> tuple[Counter[Any], dict[str, int]]:
    return _run(seed)


def _plain(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["id"], row["window_start"].timestamp(), row["n"]


@pytest.mark.parametrize(("seed", "max_rows"), crossed([1, 2], [3, 40]))
def test_results_do_not_depend_on_the_size_of_epochs(seed: int, max_rows: int) -> None:
    """Idle partitions are passed at the same moments; what comes back is late to the same end."""
    expected, counts = _undisturbed(seed)
    assert counts["late"] > 0
    assert counts["in"] == counts["late"] + sum(n * times for (*_, n), times in expected.items())
    windows = Counter((key, start) for key, start, _ in expected)
    assert set(windows.values()) == {1}
    assert (expected, counts) == _run(seed, max_rows)


@pytest.mark.parametrize("point", more(POINTS[::2], POINTS))
def test_a_crash_changes_nothing(point: str) -> None:
    assert _undisturbed(2) == _run(2, point=point)


def test_windows_close_on_a_stream_that_is_quiet() -> None:
    """The epoch in which a partition becomes idle runs by itself, once."""
    with TestDriver(idling, tasks=2) as driver:
        driver.create("events", COLUMNS, partitions=2, time="at")
        driver.feed("events", [{"id": 1, "at": 5_000}], partition=0)
        driver.run()
        driver.clock.advance(5_000)
        driver.feed("events", [{"id": 1, "at": 60_000}], partition=1)
        driver.run()
        assert driver.output("windows") == []
        woken = driver.coordinator.wall_deadline()
        assert woken is not None
        driver.clock.advance(woken - driver.clock.now_ms() - 1)
        assert driver.run() == 0
        driver.clock.advance(1)
        assert driver.run() == 1
        assert [_plain(row) for row in driver.output("windows")] == [(1, 0.0, 1)]
        driver.clock.advance(5_000)
        assert driver.run() == 1
        assert driver.coordinator.wall_deadline() is None
        driver.feed("events", [{"id": 1, "at": 9_000}], partition=0)
        driver.run()
        assert driver.coordinator.state.counts["late"] == 1
        assert len(driver.output("windows")) == 1


def test_a_partition_that_never_had_a_row_is_idle_too() -> None:
    with TestDriver(idling, tasks=2) as driver:
        driver.create("events", COLUMNS, partitions=3, time="at")
        driver.feed("events", [{"id": 1, "at": 5_000}], partition=0)
        driver.run()
        driver.clock.advance(19_000)
        driver.feed("events", [{"id": 1, "at": 30_000}], partition=0)
        driver.run()
        assert driver.output("windows") == []
        driver.clock.advance(1_000)
        assert driver.run() == 1
        assert [_plain(row) for row in driver.output("windows")] == [(1, 0.0, 1)]


def test_a_partition_with_rows_to_read_is_not_idle() -> None:
    """A job that was stopped for long waits for what has come meanwhile."""
    with TestDriver(idling, tasks=2, max_rows=2) as driver:
        driver.create("events", COLUMNS, partitions=2, time="at")
        for partition in range(2):
            driver.feed("events", [{"id": 1, "at": 5_000}], partition=partition)
        driver.run()
        driver.crash()
        driver.clock.advance(3_600_000)
        driver.feed("events", [{"id": 1, "at": 1_000 * at} for at in range(6, 30)], partition=0)
        driver.feed("events", [{"id": 1, "at": 500 * at} for at in range(12, 60)], partition=1)
        driver.run()
        assert driver.coordinator.state.counts.get("late", 0) == 0


@hr.job("meeting")
def meeting(g: Any) -> None:
    """Two streams that meet behind their repartitions; a third that meets neither."""
    first = g.input("first", time="at", idle="20s").partition_by("id", name="by-first")
    second = g.input("second", time="at", idle="20s").partition_by("id", name="by-second")
    both = first.merge(second, name="both")
    both.window(hr.tumbling("10s"), n=hr.agg.count(), name="w").send_to(g.output("windows"))
    alone = g.input("alone", time="at", idle="20s").partition_by("id", name="by-alone")
    alone.window(hr.tumbling("10s"), n=hr.agg.count(), name="own").send_to(g.output("own"))


@pytest.mark.parametrize("max_rows", [1_000, 1])
def test_an_idle_input_follows_those_that_it_meets(max_rows: int) -> None:
    with TestDriver(meeting, tasks=2, max_rows=max_rows) as driver:
        for name in ("first", "second", "alone"):
            driver.create(name, COLUMNS, time="at")
            driver.feed(name, [{"id": 1, "at": 5_000}])
        driver.run()
        driver.clock.advance(20_000)
        driver.feed("first", [{"id": 1, "at": at} for at in (7_000, 15_000, 25_000)])
        driver.run()
        assert list(map(_plain, driver.output("windows"))) == [(1, 0.0, 3), (1, 10.0, 1)]
        marks = driver.coordinator.state.watermarks
        assert (marks["second"], marks["alone"]) == (25_000, 5_000)
        driver.feed("second", [{"id": 1, "at": at} for at in (9_000, 26_000)])
        driver.feed("alone", [{"id": 1, "at": at} for at in (9_000, 10_000)])
        driver.run()
        assert driver.coordinator.state.counts["late"] == 1
        assert list(map(_plain, driver.output("own"))) == [(1, 0.0, 2)]
        driver.finish()
        assert list(map(_plain, driver.output("windows")))[2:] == [(1, 20.0, 2)]


def test_an_input_that_never_had_a_row_holds_nothing_back_either() -> None:
    with TestDriver(meeting, tasks=2) as driver:
        for name in ("first", "second", "alone"):
            driver.create(name, COLUMNS, time="at")
        driver.feed("first", [{"id": 1, "at": 5_000}, {"id": 1, "at": 12_000}])
        driver.run()
        assert driver.output("windows") == []
        driver.clock.advance(10_000)
        driver.feed("first", [{"id": 1, "at": 13_000}])
        driver.run()
        driver.clock.advance(10_000)
        driver.run()
        assert list(map(_plain, driver.output("windows"))) == [(1, 0.0, 1)]
