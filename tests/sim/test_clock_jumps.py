"""A wall clock that jumps: nothing is dropped, nothing falls silent, until somebody accepts it."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hosts import forget_time, slots_by_the_hosts_clock

import headrace as hr
from headrace.testing import TestDriver

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
START = 1_700_000_000_000


class Watch:
    """Counts a key, and reminds of it a minute later."""

    def process(self, message: Any, context: hr.Context) -> None:
        seen = context.store("seen")
        seen.put(message.k, seen.get(message.k, 0) + 1)
        context.set_timer(context.wall_ms + MINUTE, "minute", wall=True)
        context.emit({"k": message.k, "n": seen.get(message.k)})

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"k": timer.key, "n": -1})


@hr.job("watch")
def watch(g: hr.Graph) -> None:
    watched = g.input("events").partition_by("k")
    kept = [hr.store("seen", int, ttl="1h")]
    watched.process(Watch, returns={"k": int, "n": int}, stores=kept).send_to(g.output("out"))


def driver_of(job: hr.Job = watch, **options: Any) -> TestDriver:
    driver = TestDriver(job, **{"tasks": 2, "key_groups": 8, **options})
    driver.create("events", {"k": pa.int64()})
    return driver


def count(driver: TestDriver, key: int) -> int:
    """What the next message of a key counts to."""
    driver.feed("events", [{"k": key}])
    driver.run()
    return next(
        row["n"] for row in reversed(driver.output("out")) if row["k"] == key and row["n"] > 0
    )


def reminders(driver: TestDriver) -> int:
    return sum(row["n"] == -1 for row in driver.output("out"))


def passed_ms(driver: TestDriver) -> int:
    return driver.coordinator.state.time_ms - START


@pytest.mark.parametrize("by", [30 * DAY, -30 * DAY])
def test_a_clock_that_is_off_for_one_epoch_empties_no_store_and_silences_no_timer(by: int) -> None:
    with driver_of() as driver:
        assert [count(driver, 1), count(driver, 1)] == [1, 2]
        driver.clock.jump(by)
        assert count(driver, 2) == 1
        assert driver.clock_doubt is not None
        assert abs(driver.clock_doubt.off_ms - by) < SECOND
        assert passed_ms(driver) < SECOND
        driver.clock.jump(-by)
        assert count(driver, 1) == 3
        assert driver.clock_doubt is None
        driver.clock.advance(MINUTE)
        driver.run()
        assert reminders(driver) == 2
        driver.clock.advance(HOUR)
        assert count(driver, 1) == 1


@pytest.mark.parametrize("by", [30 * DAY, -30 * DAY])
def test_while_the_clock_is_off_time_goes_on_as_it_passes(by: int) -> None:
    with driver_of() as driver:
        assert count(driver, 1) == 1
        driver.clock.jump(by)
        driver.clock.advance(30 * MINUTE)
        assert count(driver, 1) == 2
        assert reminders(driver) == 1
        driver.clock.advance(2 * HOUR)
        assert count(driver, 1) == 1
        assert passed_ms(driver) == 150 * MINUTE


def test_who_accepts_a_clock_that_is_ahead_has_it_count() -> None:
    with driver_of() as driver:
        assert count(driver, 1) == 1
        driver.clock.jump(30 * DAY)
        assert count(driver, 1) == 2
        driver.accept_clock()
        assert driver.clock_doubt is None
        assert count(driver, 1) == 1
        assert passed_ms(driver) == 30 * DAY
        driver.crash()  # and the next driver knows
        assert count(driver, 1) == 2
        assert driver.clock_doubt is None


def test_who_accepts_a_clock_that_went_back_has_time_stand_still_until_it_is_there() -> None:
    with driver_of() as driver:
        assert count(driver, 1) == 1
        driver.clock.jump(-2 * HOUR)
        driver.accept_clock()
        driver.clock.advance(HOUR)
        assert count(driver, 1) == 2
        assert passed_ms(driver) == 0
        driver.clock.advance(HOUR + MINUTE)
        driver.run()
        assert reminders(driver) == 1
        assert passed_ms(driver) == MINUTE


@pytest.mark.parametrize("by", [30 * DAY, -30 * DAY])
def test_a_driver_that_starts_while_the_clock_is_off_does_not_believe_it(by: int) -> None:
    """It has the clock of the storage, and the time of the job, to compare with."""
    with driver_of() as driver:
        assert count(driver, 1) == 1
        driver.crash()
        driver.clock.jump(by)
        forget_time(driver)
        assert count(driver, 1) == 2
        assert driver.clock_doubt is not None
        assert passed_ms(driver) < SECOND
        driver.clock.advance(MINUTE)
        driver.run()
        assert reminders(driver) == 1
        told = [
            event.text for event in driver.parts[0].event_log._log.read() if event.kind == "clock"
        ]
        assert len(told) == 1
        assert f"30d {'ahead of' if by > 0 else 'behind'} the time that has passed" in told[0]


def test_a_long_stop_is_no_jump() -> None:
    with driver_of() as driver:
        assert count(driver, 1) == 1
        driver.crash()
        driver.clock.advance(90 * DAY)
        forget_time(driver)
        assert count(driver, 1) == 1
        assert (driver.clock_doubt, passed_ms(driver)) == (None, 90 * DAY)


@hr.job("quiet")
def quiet(g: hr.Graph) -> None:
    events = g.input("events", time="at", idle="30s").partition_by("k")
    events.window(hr.tumbling("1s"), n=hr.agg.count()).send_to(g.output("out"))


def test_an_idle_timeout_counts_the_time_that_passes() -> None:
    """Neither is a partition idle at once, nor never."""
    with TestDriver(quiet, tasks=1) as driver:
        driver.create("events", {"k": pa.int64(), "at": pa.int64()}, partitions=2, time="at")
        driver.feed("events", [{"k": 1, "at": 500}, {"k": 1, "at": 5_000}], partition=0)
        driver.run()
        driver.clock.jump(30 * DAY)
        driver.clock.advance(29 * SECOND)
        driver.run()
        assert driver.output("out") == []
        driver.clock.jump(-60 * DAY)
        driver.clock.advance(2 * SECOND)
        driver.run()
        assert [row["n"] for row in driver.output("out")] == [1]


@pytest.mark.parametrize("memory", [True, False])
def test_a_stream_keeps_what_is_not_old(memory: bool) -> None:
    with driver_of(memory_bus=memory) as driver:
        stream = driver.bus.stream("events")
        stream.configure(retain_ms=DAY)
        driver.feed("events", [{"k": n} for n in range(5)])
        driver.clock.jump(30 * DAY)
        for n in range(5):
            driver.clock.advance(HOUR)
            driver.feed("events", [{"k": n}])
        assert (stream.trim(0), stream.begins(), stream.ends()) == (0, [0], [10])
        driver.clock.jump(-30 * DAY)
        driver.clock.advance(26 * HOUR)
        driver.feed("events", [{"k": 1}])
        driver.clock.advance(HOUR)
        driver.feed("events", [{"k": 1}])
        assert stream.begins()[0] > 0


def test_deletes_are_kept_for_their_time() -> None:
    with TestDriver(watch) as driver:
        columns = {"k": pa.int64(), "v": pa.int64()}
        driver.create("kept", columns, key=("k",), compact=True)
        stream = driver.bus.stream("kept")
        driver.feed("kept", [{"k": 1, "v": 1}, {"k": 1, "v": None}])
        stream.compact(0)
        driver.clock.jump(30 * DAY)
        driver.feed("kept", [{"k": 2, "v": 1}])
        stream.compact(0)
        assert {row["k"] for row in driver.output("kept")} == {1, 2}


@settings(max_examples=5)
@given(st.integers(0, 10_000))
def test_any_jumps_leave_the_time_of_epochs_within_a_minute_of_what_has_passed(seed: int) -> None:
    """Drivers die and follow each other, too; nobody accepts anything."""
    draw = random.Random(seed)
    with driver_of() as driver:
        count(driver, 0)
        for _ in range(12):
            driver.clock.jump(draw.choice((0, 0, 5_000, -5_000, DAY, -DAY, 400 * DAY)))
            driver.clock.advance(draw.choice((0, 200, MINUTE, HOUR)))
            if draw.random() < 0.2:
                driver.crash()
            count(driver, draw.randrange(3))
            passed = round(driver.clock.monotonic() * 1000) - START
            assert abs(passed_ms(driver) - passed) <= MINUTE


def test_a_slot_reads_as_long_as_it_may_by_its_own_clock() -> None:
    """That of its host may be ahead of the driver's."""
    with driver_of(slots=1) as driver:
        driver.clock.jump(DAY)
        slots_by_the_hosts_clock(driver)
        for n in range(5):
            driver.feed("events", [{"k": n}])
        summary = driver.advance()
        assert summary is not None
        assert summary.rows == 5
