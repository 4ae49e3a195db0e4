"""A crash at every named step of an epoch: state and outputs as if nothing had happened."""

from __future__ import annotations

import random

import pytest
from tests.sim.world import EPOCH, World, make_job

from headrace.faults import FAULT_POINTS
from headrace.testing.driver import TestDriver

POINTS = [point for point in FAULT_POINTS if point.startswith(EPOCH)]


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
@pytest.mark.parametrize("point", POINTS)
def test_crash_at_every_step_loses_and_doubles_nothing(point: str, store: str) -> None:
    """The process that passes a point dies there, early and late in the run, once each."""
    with TestDriver(make_job(store), tasks=3, hosts=2) as driver:
        world = World(driver, random.Random(7))
        for _ in range(3):
            world.feed(30)
            driver.advance()
        world.feed(60)
        assert driver.advance_with_crash(point)
        world.feed(60)
        assert driver.advance_with_crash(point, nth=2) or "swept" in point or _is_once(point)
        driver.finish()
        world.check()


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", ["bus.frame_written", "bus.index_written"])
def test_crash_inside_an_append_of_the_publishing(point: str, nth: int) -> None:
    """An epoch is committed and its outputs are half on the file bus: the rest follows, once."""
    with TestDriver(make_job("memory"), tasks=3, memory_bus=False) as driver:
        world = World(driver, random.Random(7))
        world.feed(60)
        driver.advance()
        world.feed(60)
        assert driver.advance_with_crash(point, nth)
        driver.finish()
        world.check()


def _is_once(point: str) -> bool:
    """Points that one epoch passes once cannot be hit a second time within it."""
    return point in {
        "epoch.planned",
        "epoch.before_commit",
        "commit.step_begins",
        "commit.written",
        "commit.published",
        "commit.step_done",
        "epoch.published",
        "epoch.swept",
    }


@pytest.mark.parametrize("point", ["epoch.before_commit", "commit.published", "epoch.swept"])
def test_crash_at_the_end_of_the_inputs(point: str) -> None:
    """The last epoch, which closes all windows, can be cut like any other."""
    with TestDriver(make_job("memory"), tasks=2) as driver:
        world = World(driver, random.Random(3))
        world.feed(80)
        driver.run()
        driver.coordinator.end_at_present()
        assert driver.advance_with_crash(point)
        driver.finish()
        world.check()


def test_every_fault_point_is_passed_by_a_few_epochs() -> None:
    """No point is dead: a test that names one really stops there."""
    seen: set[str] = set()
    from headrace.faults import injected

    with TestDriver(make_job("memory"), tasks=2, memory_bus=False) as driver:
        world = World(driver, random.Random(1))
        with injected(seen.add):
            for _ in range(4):
                world.feed(50)
                driver.run()
            driver.coordinator.rescale(3)
    assert {
        point for point in FAULT_POINTS if point.startswith((*EPOCH, "bus.", "rescale."))
    } == seen
