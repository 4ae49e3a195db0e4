"""A driver that starts while the receiver of a sink is away: it waits, and is one driver."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from tests.support.changes import context_of

import headrace as hr
from headrace import Job
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deployment import deploy
from headrace.coordinator.driver_loop import JobControl, RetryPolicy, run_epochs, start_driver
from headrace.errors import NotOwnerError
from headrace.sinks.files import control_folder
from headrace.testing import TestDriver


def filing(folder: Path) -> Job:
    @hr.job("filing")
    def job(g: hr.Graph) -> None:
        g.input("in").send_to(hr.sinks.parquet(folder))

    return job


class Held:
    """The folder of a sink while a process that has not written its name writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        control_folder(folder).mkdir(parents=True)
        self._lock = os.open(control_folder(folder) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        self.take()

    def take(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.ftruncate(self._lock, 0)

    def release(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def rows(self) -> int:
        return sum(pl.read_parquet(path).height for path in self.folder.glob("*/*.parquet"))

    def close(self) -> None:
        os.close(self._lock)


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path / "out")
    yield held
    held.close()


@pytest.fixture
def driver(tmp_path: Path, away: Held) -> Iterator[TestDriver]:
    with TestDriver(filing(away.folder), home=tmp_path / "home") as made:
        made.create("in", {"id": pa.int64()})
        yield made


def coordinator_of(driver: TestDriver) -> Coordinator:
    (deployment,) = deploy(driver.job.build(), context_of(driver))
    return deployment.coordinator(driver.runner, context_of(driver))


def patient(
    driver: TestDriver, limit_s: float | None = None, on_wait: Callable[[], None] = lambda: None
) -> tuple[RetryPolicy, JobControl, list[str]]:
    """Patience that calls ``on_wait`` once it has said that it waits."""
    control, told = JobControl(), list[str]()

    def notify(line: str) -> None:
        told.append(line)
        if "waits" in line:
            on_wait()

    return RetryPolicy(driver.clock, control.stop, limit_s, notify), control, told


def generations(driver: TestDriver) -> int:
    return len(list((driver.storage / "generations").iterdir()))


def test_a_new_job_begins_when_its_sink_is_back(driver: TestDriver, away: Held) -> None:
    """It says what it waits for, and takes one generation, however often it asks."""
    asked = 0

    def come_back() -> None:
        nonlocal asked
        asked += 1
        assert not list((driver.storage / "manifests").iterdir())
        away.release()

    coordinator = coordinator_of(driver)
    retry, control, told = patient(driver, on_wait=come_back)
    assert start_driver(coordinator, retry)
    assert (asked, generations(driver)) == (1, 1)
    assert told[0] == f"another process is writing to {away.folder}; the job waits for an answer"
    assert told[1].startswith("there is an answer again after")
    driver.feed("in", [{"id": 1}, {"id": 2}])
    control.finish.set()
    run_epochs(coordinator, driver.bus, driver.clock, control, lambda summary: None, retry=retry)
    assert coordinator.has_ended
    assert away.rows() == 2


def test_a_committed_epoch_is_handed_on_when_the_sink_is_back(
    driver: TestDriver, away: Held
) -> None:
    """A driver died between its commit and the sink's, and the sink is away for the next one."""
    away.release()
    driver.feed("in", [{"id": 1}])
    assert driver.advance_with_crash("commit.published")
    driver.crash()
    away.take()
    coordinator = coordinator_of(driver)
    retry, _, told = patient(driver, on_wait=away.release)
    before = generations(driver)
    assert start_driver(coordinator, retry)
    assert (len(told), generations(driver)) == (2, before + 1)
    assert away.rows() == 1


def test_an_epoch_whose_sink_was_away_goes_there_before_the_next(
    driver: TestDriver, away: Held
) -> None:
    """The driver that committed it lives on."""
    away.release()
    driver.start()
    driver.feed("in", [{"id": 1}])
    away.take()
    with pytest.raises(hr.sinks.ReceiverAwayError):
        driver.advance()
    away.release()
    driver.feed("in", [{"id": 2}])
    driver.run()
    assert away.rows() == 2


def test_the_limit_ends_the_waiting_with_the_name_of_what_is_away(
    driver: TestDriver, away: Held
) -> None:
    retry, _, told = patient(driver, limit_s=60)
    with pytest.raises(hr.sinks.ReceiverAwayError, match=f"is writing to {away.folder}"):
        start_driver(coordinator_of(driver), retry)
    assert len(told) == 1
    assert told[0].endswith("the job waits for an answer, for 60 s at most")
    assert not list((driver.storage / "manifests").iterdir())


def test_a_job_that_is_stopped_while_it_waits_stays_as_it_is(
    driver: TestDriver, away: Held
) -> None:
    """Without an epoch yet there is nothing to tell of but the sink."""
    stop = threading.Event()
    retry = RetryPolicy(driver.clock, stop, None, lambda line: stop.set())
    with pytest.raises(hr.sinks.ReceiverAwayError):
        start_driver(coordinator_of(driver), retry)
    stop.clear()
    away.release()
    driver.start()
    epoch = driver.coordinator.state.epoch
    driver.crash()
    away.take()
    coordinator = coordinator_of(driver)
    assert not start_driver(coordinator, retry)
    assert coordinator.state.epoch == epoch


def test_a_driver_that_waits_finds_out_that_another_one_came(
    driver: TestDriver, away: Held
) -> None:

    def take_over() -> None:
        away.release()
        driver.start()
        away.take()

    retry, _, _ = patient(driver, limit_s=60, on_wait=take_over)
    with pytest.raises(NotOwnerError, match=r"taken over by a newer driver \(generation 2"):
        start_driver(coordinator_of(driver), retry)
