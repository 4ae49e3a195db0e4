"""Results of a run over old data in those of the live job: for each key one wins, once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.clock import Deadline, SystemClock
from headrace.config import load_settings
from headrace.config.inputs import read_inputs
from headrace.control.holds import HoldAnswers
from headrace.control.place import PLACE
from headrace.control.stillness import still
from headrace.control.watch import DriverWatch
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control, drive
from headrace.coordinator.reprocessing.merging import Merge, Merged, choose, live_wins
from headrace.coordinator.reprocessing.pairs import are_alike
from headrace.coordinator.storage import DriverLock
from headrace.errors import InvalidInputError, UnavailableError
from headrace.faults import injected
from headrace.files import Files
from headrace.state.ownership import StoreHeldError
from headrace.task.orders import SlotOrder, SlotReport
from headrace.testing import TestDriver
from headrace.testing.processes import wait_until

FILES = Files(sync=False)
BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@hr.job("hours")
def hours(g: hr.Graph) -> None:
    rows = g.input("in", time="at").partition_by("user")
    rows.window(hr.tumbling("1h"), total=hr.agg.sum("n")).send_to(g.output("out"), name="out")


class Died(BaseException):
    """The process that merges ends here."""


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


def backfill(driver: TestDriver, to_hour: int, key_groups: int = 64) -> str:
    """Run the job over what was before an hour, apart; return the name of the run."""
    driver.crash()
    beside = dataclasses.replace(hours, name="hours-backfill", apart="backfill")
    span = {"in": {"from": "1970-01-01T00:00", "to": f"1970-01-01T0{to_hour}:00"}}
    with TestDriver(
        beside,
        tasks=2,
        key_groups=key_groups,
        home=driver.home,
        memory_bus=False,
        inputs=read_spans(span),
    ) as run:
        run.finish()
        return run.coordinator.state.lineage


def read_spans(span: dict[str, dict[str, str]]) -> Any:
    assert read_inputs(span)
    return span


def merge(driver: TestDriver, run: str, by: Merge = live_wins) -> Merged:
    with choose(driver.bus, "out", ("out", "out.backfill"), run, by) as chosen:
        return chosen.append()


def test_the_live_rows_win_and_what_they_lack_comes_once(driver: TestDriver) -> None:
    assert {hour for _, hour in results(driver)} == {2, 3, 4, 5}
    run = backfill(driver, 3)
    old = results(driver, "out.backfill")
    assert old == {(user, h): h + 1 if h < 2 else 6 for user in ("ann", "bob") for h in range(3)}
    live = results(driver)

    done = merge(driver, run)

    assert (done.appended, done.there, done.kept) == (4, 0, 2)
    assert results(driver) == old | live
    again = merge(driver, run)
    assert (again.appended, again.kept) == (0, 6)
    driver.feed("in", [row(8, "ann", 1)])
    driver.run()
    assert {hour for _, hour in results(driver)} == {0, 1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(("key_groups", "expected"), [(64, True), (100, False)])
def test_jobs_with_other_key_groups_send_keys_elsewhere(
    driver: TestDriver, key_groups: int, expected: bool
) -> None:
    backfill(driver, 3, key_groups)
    jobs = ("hours", "hours-backfill")
    assert are_alike(driver.settings, *jobs, SystemClock()) is expected


def test_a_function_chooses(driver: TestDriver) -> None:
    run = backfill(driver, 3)

    def larger(live: dict[str, Any] | None, old: dict[str, Any]) -> dict[str, Any] | None:
        if live is None:
            return None
        return {**old, "total": max(live["total"], old["total"])}

    assert merge(driver, run, larger).appended == 2
    assert results(driver)["ann", 2] == 6
    assert ("ann", 0) not in results(driver)


@pytest.mark.parametrize(
    ("by", "told"),
    [
        (lambda live, old: 1 / 0, "merge raised ZeroDivisionError: .* for output 'out'"),
        (lambda live, old: 7, "merge returned 7 for output 'out'; expected a dict"),
        (lambda live, old: {**old, "total": "many"}, "does not fit the columns of 'out'"),
    ],
)
def test_a_function_that_fails_changes_nothing(driver: TestDriver, by: Any, told: str) -> None:
    run, before = backfill(driver, 3), driver.output("out")
    with pytest.raises(InvalidInputError, match=told):
        merge(driver, run, by)
    assert driver.output("out") == before


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", ["merge.appended", "bus.frame_written", "bus.index_written"])
def test_who_dies_merging_merges_the_rest_later(driver: TestDriver, point: str, nth: int) -> None:
    """Also when the live job has gone on in between: nothing is there twice, nothing is lost."""
    run = backfill(driver, 3)
    expected = results(driver, "out.backfill") | results(driver)
    rows, passed = len(driver.output("out")), []

    def die(name: str) -> None:
        passed.append(name)
        if name == point and passed.count(point) == nth:
            raise Died

    try:
        with injected(die, (point,)):
            merge(driver, run)
    except Died:
        driver.crash()
    merge(driver, run)
    assert results(driver) == expected
    assert len(driver.output("out")) == rows + 4


def test_a_turn_that_plans_again_and_again_is_not_merged_under(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever merges waits for its epoch, although each plan serves requests."""
    part, control, clock = driver.parts[0], Control(), SystemClock()
    settings = load_settings(None, [f"home={driver.home}", "control.enabled=false"])
    watch = DriverWatch("hours", settings, control, driver.bus, clock, lambda line: None)
    watch.ready(JoinedParts(driver.parts))
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
        target=drive, args=(part, driver.bus, clock, control, lambda summary: None), daemon=True
    )
    with DriverLock(driver.storage, "hours", clock), closing(watch):
        running.start()
        assert begun.wait(20)
        with still(settings, "hours", "old", driver.bus, FILES, clock, 20.0):
            is_in.set()
            assert has_run.is_set()
        control.stop.set()
        running.join(30)


@pytest.mark.parametrize("has_api", [True, False])
def test_a_running_job_is_still_for_a_block_and_goes_on(driver: TestDriver, has_api: bool) -> None:
    part, control, clock = driver.parts[0], Control(), SystemClock()
    settings = load_settings(None, [f"home={driver.home}", f"control.enabled={has_api}".lower()])
    told: list[str] = []
    watch = DriverWatch("hours", settings, control, driver.bus, clock, told.append)
    watch.ready(JoinedParts(driver.parts))
    assert (driver.storage / PLACE).exists() is has_api
    seen: list[Any] = []
    is_still = threading.Event()

    def wake() -> None:
        while not is_still.wait(0.05):  # the driver waits for rows, for its clock stands
            driver.feed("in", [row(9, "bob", 1)])

    waker = threading.Thread(target=wake)
    running = threading.Thread(
        target=drive, args=(part, driver.bus, clock, control, seen.append), daemon=True
    )
    with DriverLock(driver.storage, "hours", clock):
        running.start()
        waker.start()
        with still(settings, "hours", "old", driver.bus, FILES, clock, 20.0):
            is_still.set()
            waker.join()
            epoch = part.state.epoch
            driver.feed("in", [row(9, "ann", 1)])
            assert watch.board.status == "paused"
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
    answers, clock = HoldAnswers(driver.storage, lambda: False, FILES, SystemClock()), SystemClock()
    answers.start()
    asked = (driver.settings, "hours", "old", driver.bus, FILES, clock, 20.0)
    with (
        closing(answers),
        DriverLock(driver.storage, "hours", clock),
        pytest.raises(InvalidInputError, match="share no locks of files: merge on that host"),
        still(*asked),
    ):
        raise AssertionError


def test_a_driver_that_says_by_its_api_that_it_does_not_see_the_lock_is_told_of_alike(
    driver: TestDriver,
) -> None:
    clock, here = SystemClock(), os.uname().nodename
    watch = DriverWatch("hours", driver.settings, Control(), driver.bus, clock, lambda line: None)
    watch.board.hold = lambda: False
    watch.ready(JoinedParts(driver.parts))
    asked = (driver.settings, "hours", "old", driver.bus, FILES, clock, 20.0)
    with (
        closing(watch),
        DriverLock(driver.storage, "hours", clock),
        pytest.raises(InvalidInputError, match=f"on host {here}, does not see .*share no locks of"),
        still(*asked),
    ):
        raise AssertionError


def test_a_driver_that_does_not_answer_is_told_of(driver: TestDriver) -> None:
    asked = (driver.settings, "hours", "old", driver.bus, FILES, SystemClock(), 0.1)
    with (
        DriverLock(driver.storage, "hours"),
        pytest.raises(UnavailableError, match="the driver did not take the request within 0 s"),
        still(*asked),
    ):
        raise AssertionError
    assert list((driver.storage / "requests").iterdir()) == []
