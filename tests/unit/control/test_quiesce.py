"""A job stands still for whoever merges into it: what is waited for, and who is not believed."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import context_of

import headrace as hr
from headrace.clock import Deadline, SystemClock
from headrace.closeable import running_beside
from headrace.config import load_settings
from headrace.control.client import API_FILE
from headrace.control.driver_watch import DriverObservers
from headrace.control.quiesce import HoldResponder, quiesced
from headrace.coordinator.driver_loop import JobControl, run_epochs
from headrace.coordinator.job_group import JobGroup
from headrace.coordinator.job_run import RunListeners
from headrace.coordinator.job_storage import DriverLock
from headrace.errors import InvalidInputError, UnavailableError
from headrace.fencing import StoreHeldError
from headrace.files import Files
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.testing import TestDriver
from headrace.testing.servers import wait_until

FILES = Files(sync=False)
BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@hr.job("hours")
def hours(g: hr.Graph) -> None:
    rows = g.input("in", time="at").partition_by("user")
    rows.window(hr.tumbling("1h"), total=hr.agg.sum("n")).send_to(g.output("out"), name="out")


def row(hour: int, user: str, n: int) -> dict[str, Any]:
    return {"at": BEGIN + dt.timedelta(hours=hour), "user": user, "n": n}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    """A live job that began in hour 2 of six, and old data before."""
    with TestDriver(hours, tasks=2, home=tmp_path, memory_bus=False, start="latest") as made:
        columns = {"at": pa.timestamp("us", "UTC"), "user": pa.string(), "n": pa.int64()}
        made.create("in", columns, time="at")
        made.feed("in", [row(h, user, h + 1) for h in range(3) for user in ("ann", "bob")])
        made.run()
        made.feed("in", [row(h, user, h + 1) for h in range(2, 7) for user in ("ann", "bob")])
        made.run()
        yield made


def results(driver: TestDriver, stream: str = "out") -> dict[tuple[str, int], int]:
    """The last total of each user and hour."""
    return {
        (one["user"], round(one["window_start"].timestamp() / 3600)): one["total"]
        for one in driver.output(stream)
    }


def test_a_turn_that_plans_again_and_again_is_not_merged_under(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever merges waits for its epoch, although each plan serves requests."""
    part, control, clock = driver.parts[0], JobControl(), SystemClock()
    settings = load_settings(None, [f"home={driver.home}", "control.enabled=false"])
    context = replace(context_of(driver), settings=settings, clock=clock)
    watch = DriverObservers("hours", settings, control, driver.bus, clock, RunListeners())
    watch.ready(JobGroup(driver.parts))
    request, usual, held = driver.storage / "requests" / "savepoint.json", driver.runner.run, [3]
    has_run, is_in, begun = threading.Event(), threading.Event(), threading.Event()

    def run(orders: list[SlotOrder]) -> list[SlotReport]:
        begun.set()
        while held[0]:
            held[0] -= 1
            wait_until(lambda: request.exists() or is_in.is_set(), Deadline(clock, 20), "a request")
            raise StoreHeldError("a process that dies has it open")
        has_run.set()
        return usual(orders)

    monkeypatch.setattr(driver.runner, "run", run)
    driver.feed("in", [row(9, "ann", 1)])
    running = threading.Thread(
        target=run_epochs,
        args=(part, driver.bus, clock, control, lambda summary: None),
        daemon=True,
    )
    with DriverLock(driver.storage, "hours", clock), closing(watch):
        running.start()
        assert begun.wait(20)
        with quiesced(context, "old", 20.0):
            is_in.set()
            assert has_run.is_set()
        control.stop.set()
        running.join(30)


@pytest.mark.parametrize("has_api", [True, False])
def test_a_running_job_is_still_for_a_block_and_goes_on(driver: TestDriver, has_api: bool) -> None:
    part, control, clock = driver.parts[0], JobControl(), SystemClock()
    settings = load_settings(None, [f"home={driver.home}", f"control.enabled={has_api}".lower()])
    context = replace(context_of(driver), settings=settings, clock=clock)
    told: list[str] = []
    watch = DriverObservers(
        "hours", settings, control, driver.bus, clock, RunListeners(on_notice=told.append)
    )
    watch.ready(JobGroup(driver.parts))
    assert (driver.storage / API_FILE).exists() is has_api
    seen: list[Any] = []
    is_still = threading.Event()

    def wake() -> None:
        while not is_still.wait(0.05):  # the driver waits for rows, for its clock stands
            driver.feed("in", [row(9, "bob", 1)])

    waker = threading.Thread(target=wake)
    running = threading.Thread(
        target=run_epochs, args=(part, driver.bus, clock, control, seen.append), daemon=True
    )
    with DriverLock(driver.storage, "hours", clock):
        running.start()
        waker.start()
        with quiesced(context, "old", 20.0):
            is_still.set()
            waker.join()
            epoch = part.state.epoch
            driver.feed("in", [row(9, "ann", 1)])
            assert watch.live.phase == "paused"
            assert part.state.epoch == epoch
        assert not control.paused.is_set()
        control.finish.set()
        driver.feed("in", [row(9, "ann", 1)])
        running.join(30)
        watch.close()
    assert part.state.ended
    assert ("ann", 9) in results(driver)
    assert told == []


def test_a_driver_that_does_not_see_the_lock_is_not_merged_under(driver: TestDriver) -> None:
    """Locks that hosts do not share would let it send its rows before old ones."""
    clock = SystemClock()
    answers = HoldResponder(driver.storage, lambda: False, FILES, clock)
    context = replace(context_of(driver), clock=clock)
    with (
        running_beside("answers", answers.run),
        DriverLock(driver.storage, "hours", clock),
        pytest.raises(InvalidInputError, match="share no locks of files: merge on that host"),
        quiesced(context, "old", 20.0),
    ):
        raise AssertionError


def test_a_driver_that_says_by_its_api_that_it_does_not_see_the_lock_is_told_of_alike(
    driver: TestDriver,
) -> None:
    clock, here = SystemClock(), os.uname().nodename
    watch = DriverObservers(
        "hours", driver.settings, JobControl(), driver.bus, clock, RunListeners()
    )
    watch.live.hold = lambda: False
    watch.ready(JobGroup(driver.parts))
    context = replace(context_of(driver), clock=clock)
    with (
        closing(watch),
        DriverLock(driver.storage, "hours", clock),
        pytest.raises(InvalidInputError, match=f"on host {here}, does not see .*share no locks of"),
        quiesced(context, "old", 20.0),
    ):
        raise AssertionError


def test_a_driver_that_does_not_answer_is_told_of(driver: TestDriver) -> None:
    context = replace(context_of(driver), clock=SystemClock())
    with (
        DriverLock(driver.storage, "hours"),
        pytest.raises(UnavailableError, match="the driver did not take the request within 0 s"),
        quiesced(context, "old", 0.1),
    ):
        raise AssertionError
    assert list((driver.storage / "requests").iterdir()) == []
