"""Faults between the steps of the coordinator that no crash point stands for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.sim.world import World, make_job

from headrace.coordinator import coordinator as module
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.feeds import publish_epoch
from headrace.errors import UnavailableError
from headrace.files import Files
from headrace.testing.clock import ManualClock
from headrace.testing.driver import TestDriver


def test_outputs_that_could_not_be_published_are_before_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same driver goes on after the bus refused an append, and nothing is left out."""
    with TestDriver(make_job("memory"), tasks=2) as driver:
        world = World(driver, random.Random(1))
        world.feed(60)
        driver.advance()
        plain = publish_epoch
        refused: list[Any] = []

        def refuse_once(*args: Any) -> int:
            if not refused:
                refused.append(args)
                raise UnavailableError("the disk is full")
            return plain(*args)

        monkeypatch.setattr(module, "publish_epoch", refuse_once)
        world.feed(60)
        with pytest.raises(UnavailableError, match="full"):
            driver.advance()
        world.feed(60)
        driver.finish()
        assert refused
        world.check()


def test_a_report_that_is_missing_stops_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of results that was cut does not pass for the whole."""
    with TestDriver(make_job("memory"), tasks=2) as driver:
        world = World(driver, random.Random(1))
        world.feed(60)
        driver.start()
        plain = driver.runner.run
        with monkeypatch.context() as patched:
            patched.setattr(driver.runner, "run", lambda orders: plain(orders)[:-1])
            with pytest.raises(UnavailableError, match="are not of the tasks"):
                driver.advance()
        driver.finish()
        world.check()


def test_a_slot_runs_more_tasks_than_are_kept_open() -> None:
    """No store is closed under a task that has begun."""
    with TestDriver(make_job("memory"), tasks=300, slots=1, key_groups=512) as driver:
        world = World(driver, random.Random(1))
        world.feed(60)
        driver.run()
        world.feed(60)
        driver.finish()
        world.check()


def test_a_winner_that_stalls_after_its_commit_takes_nothing_away(tmp_path: Any) -> None:
    """Others have built on its epoch before it looks again."""
    log = FileCommitLog(tmp_path, Files(sync=False), ManualClock())
    assert log.publish(0, b"0")

    class Stalled(Files):
        def sync_folder(self, folder: Any) -> None:
            """Let another driver commit the epoch after, once."""
            if log.epochs() == [0, 1]:
                assert log.publish(2, b"2")

    slow = FileCommitLog(tmp_path, Stalled(sync=False), ManualClock(seed=1))
    assert slow.publish(1, b"1")
    assert log.epochs() == [0, 1, 2]
