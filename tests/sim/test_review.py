"""Faults between the steps of the coordinator that no crash point stands for."""

from __future__ import annotations

import random

import pytest
from tests.sim.world import World, make_job
from tests.support.faults import cut_reports, refuse_publishing_once

from headrace.errors import UnavailableError
from headrace.testing import TestDriver


def test_outputs_that_could_not_be_published_are_before_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same driver goes on after the bus refused an append, and nothing is left out."""
    with TestDriver(make_job("memory"), tasks=2) as driver:
        world = World(driver, random.Random(1))
        world.feed(60)
        driver.advance()
        refused = refuse_publishing_once(monkeypatch)
        world.feed(60)
        with pytest.raises(UnavailableError, match="full"):
            driver.advance()
        world.feed(60)
        driver.finish()
        assert refused
        world.check()


def test_a_report_that_is_missing_stops_the_epoch() -> None:
    """A list of results that was cut does not pass for the whole."""
    with TestDriver(make_job("memory"), tasks=2) as driver:
        world = World(driver, random.Random(1))
        world.feed(60)
        driver.start()
        with cut_reports(driver), pytest.raises(UnavailableError, match="are not of the tasks"):
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
