"""Crashes beside the matrix of test_crash_matrix: in the middle of publishing, and at the end."""

from __future__ import annotations

import random

import pytest
from tests.sim.world import EPOCH, World, make_job

from headrace.testing import FAULT_POINTS, TestDriver, points_passed


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


def test_every_fault_point_is_passed_by_a_few_epochs() -> None:
    """No point is dead: a test that names one really stops there."""
    with TestDriver(make_job("memory"), tasks=2, memory_bus=False) as driver:
        world = World(driver, random.Random(1))
        with points_passed() as seen:
            for _ in range(4):
                world.feed(50)
                driver.run()
            driver.coordinator.rescale(3)
    expected = {p for p in FAULT_POINTS if p.startswith((*EPOCH, "bus.", "rescale."))}
    assert expected == {p for p in seen if p.startswith((*EPOCH, "bus.", "rescale."))}
