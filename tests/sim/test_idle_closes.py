"""``idle_closes``: windows close when nothing comes any more, and the same on every way there."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.changes import record
from tests.support.soak import more

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "at": pa.int64()}
POINTS = (
    "epoch.planned",
    "slot.ran",
    "slot.output_written",
    "epoch.before_commit",
    "commit.published",
    "epoch.published",
)
Windows = Counter[tuple[int, float, int]]


@hr.job("closing")
def closing(g: hr.Graph) -> None:
    """Windows behind windows, of partitions that come and go."""
    events = g.input(
        "events", time="at", out_of_orderness="1s", idle="20s", idle_closes=True
    ).partition_by("id")
    tens = events.window(hr.tumbling("10s", allowed_lateness="5s"), n=hr.agg.count())
    tens.send_to("tens")
    tens.partition_by("id", name="again").window(hr.session("1m"), n=hr.agg.sum("n")).send_to(
        "visits"
    )


def rows(driver: TestDriver, stream: str) -> Windows:
    found = driver.output(stream)
    return Counter((row["id"], row["window_start"].timestamp(), row["n"]) for row in found)


def feed(driver: TestDriver, partition: int, *times: int) -> None:
    driver.feed("events", [{"id": 1, "at": time} for time in times], partition=partition)


def settle(driver: TestDriver, seconds: int) -> None:
    driver.clock.advance(seconds * 1000)
    driver.run()


def begun() -> TestDriver:
    driver = TestDriver(closing, tasks=2)
    driver.create("events", COLUMNS, partitions=2, time="at")
    feed(driver, 0, 5_000)
    feed(driver, 1, 12_000)
    driver.run()
    return driver


def test_the_last_windows_are_sent_when_all_partitions_are_idle() -> None:
    with begun() as driver:
        assert rows(driver, "tens") == {}
        settle(driver, 10)
        feed(driver, 1, 13_000)
        driver.run()
        settle(driver, 12)
        assert rows(driver, "tens") == {}, "one partition is idle, the other is not"
        settle(driver, 10)
        assert rows(driver, "tens") == {(1, 0.0, 1): 1, (1, 10.0, 2): 1}
        assert list(rows(driver, "visits").values()) == [1], "also windows of windows"
        assert driver.coordinator.wall_deadline() is None
        settle(driver, 1_000)
        assert driver.run() == 0


def test_later_rows_of_closed_windows_are_late_and_others_are_not() -> None:
    with begun() as driver:
        settle(driver, 30)
        sent = rows(driver, "tens")
        assert sum(sent.values()) == 2
        feed(driver, 0, 14_000)
        driver.run()
        assert driver.coordinator.state.counts["late"] == 1
        feed(driver, 0, 300_000)
        driver.run()
        settle(driver, 30)
        assert driver.coordinator.state.counts["late"] == 1
        assert rows(driver, "tens") - sent == {(1, 300.0, 1): 1}


def test_without_it_the_last_window_waits() -> None:
    @hr.job("closing")
    def waiting(g: hr.Graph) -> None:
        events = g.input("events", time="at", idle="20s").partition_by("id")
        events.window(hr.tumbling("10s"), n=hr.agg.count()).send_to("tens")

    with TestDriver(waiting, tasks=1) as driver:
        driver.create("events", COLUMNS, time="at")
        feed(driver, 0, 5_000)
        driver.run()
        settle(driver, 1_000)
        assert driver.output("tens") == []


def test_another_input_that_is_not_idle_holds_windows_open() -> None:
    @hr.job("joined")
    def joined(g: hr.Graph) -> None:
        parts = [
            g.input(name, time="at", idle="20s", idle_closes=True).partition_by("id")
            for name in ("events", "others")
        ]
        parts[0].union(parts[1]).partition_by("id", name="both").window(
            hr.tumbling("10s"), n=hr.agg.count()
        ).send_to("tens")

    with TestDriver(joined, tasks=1) as driver:
        for name in ("events", "others"):
            driver.create(name, COLUMNS, time="at")
        feed(driver, 0, 5_000)
        driver.run()
        for second in range(6):
            driver.feed("others", [{"id": 2, "at": 6_000 + second}])
            settle(driver, 10)
        assert driver.output("tens") == []
        settle(driver, 30)
        assert rows(driver, "tens") == {(1, 0.0, 1): 1, (2, 0.0, 6): 1}


def played(seed: int, max_rows: int = 1_000, point: str = "") -> tuple[Windows, Windows, int]:
    rng, crashes = random.Random(seed), random.Random(seed)
    with TestDriver(closing, tasks=2, max_rows=max_rows) as driver:
        driver.create("events", COLUMNS, partitions=2, time="at")
        driver.start()
        now = 100_000
        for _ in range(16):
            for partition in range(2):
                if rng.random() < 0.7:
                    times = [now - rng.randrange(15_000) for _ in range(rng.randrange(1, 4))]
                    feed(driver, partition, *times)
            if point and crashes.random() < 0.4:
                driver.advance_with_crash(point)
            driver.run()
            passed = rng.choice((2_000, 9_000, 25_000))
            now += passed
            driver.clock.advance(passed)
            if point and crashes.random() < 0.4:
                driver.advance_with_crash(point)
            driver.run()
        driver.finish()
        late = driver.coordinator.state.counts.get("late", 0)
        return rows(driver, "tens"), rows(driver, "visits"), late


@cache
def undisturbed(seed: int) -> tuple[Windows, Windows, int]:
    return played(seed)


@pytest.mark.parametrize("seed", more([1], range(20)))
def test_results_do_not_depend_on_the_size_of_epochs(seed: int) -> None:
    expected = undisturbed(seed)
    assert expected[2] > 0
    assert expected == played(seed, 3)


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_changes_nothing(point: str) -> None:
    assert undisturbed(1) == played(1, point=point)


def test_an_epoch_that_closes_windows_runs_again_as_it_did(tmp_path: Path) -> None:
    with begun() as driver:
        settle(driver, 30)
        epoch = driver.coordinator.state.epoch
        sent = rows(driver, "tens"), rows(driver, "visits")
        assert all(sent)
        record(driver, tmp_path / "closing", epoch)
        marks = driver.watermarks
    with TestDriver.replay(closing, tmp_path / "closing") as replay:
        assert replay.advance() is not None
        assert (rows(replay, "tens"), rows(replay, "visits")) == sent
        assert replay.watermarks == marks


def test_it_is_refused_without_idle() -> None:
    @hr.job("wrong")
    def wrong(g: hr.Graph) -> None:
        g.input("events", idle_closes=True).send_to("x")

    with pytest.raises(hr.GraphError, match="idle_closes=True is for an input with idle="):
        wrong.build()
