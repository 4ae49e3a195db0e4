"""A crash at every step of jobs that commit to a host's own disk: epochs, takeovers, the way home.

Without the loss of a disk nothing is lost and nothing doubled, as with any other job; where
a host has to begin with the copy, state is as without it, and outputs may be there twice.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.sim.copies import (
    begun,
    check_at_least_once,
    copied,
    expire_lease,
    lose_host,
    on_another_host,
    open_driver,
)
from tests.sim.world import EPOCH, World
from tests.support.soak import more

from headrace.testing import FAULT_POINTS, TestDriver

POINTS = [point for point in FAULT_POINTS if point.startswith(EPOCH)]
COPY = [point for point in FAULT_POINTS if point.startswith("copy.")]
START = ["copy.file_written", "copy.file_linked", "commit.written"]


@pytest.mark.parametrize("point", START)
def test_a_crash_at_every_step_of_a_takeover_and_of_the_return(tmp_path: Path, point: str) -> None:
    """Another host drives for a while, then the first one again; each dies on its way in."""
    with open_driver(tmp_path / "home", keep_epochs=0) as first:
        world = begun(first, 42)
        world.feed(40)
        first.advance()
        first.crash()
        second = on_another_host(first)
        drive_from_copy(second, world, point)
        second.crash()
        drive_from_copy(first, world, point)
        first.finish()
        check_at_least_once(world, first)


def drive_from_copy(driver: TestDriver, world: World, point: str) -> None:
    """Take over, dying once on the way, and bring a copy over, dying once more."""
    expire_lease(driver)
    before = copied(driver)
    assert driver.advance_with_crash(point, step=driver.start)
    expire_lease(driver)
    driver.start()
    state = driver.coordinator.state
    assert (state.counts, state.lineage != before.lineage) == (before.counts, True)
    world.feed(40)
    driver.advance()
    driver.advance_with_crash("copy.files_done", step=driver.copy)
    world.feed(40)
    driver.advance()
    assert driver.copy().failures == 0
    assert copied(driver).copy_of == driver.coordinator.state.digest


@pytest.mark.parametrize("seed", more(range(3), range(600)))
def test_random_schedules_equal_the_model(tmp_path: Path, seed: int) -> None:
    """Copies, crashes in them and between, lost hosts, and two hosts that take turns."""
    _Schedule(seed, tmp_path).run()


class _Schedule:
    """One run: feed, do something nasty, again; then finish and compare."""

    def __init__(self, seed: int, home: Path) -> None:
        self.rng = random.Random(seed)
        store = ("rocksdb", "columnar", "memory")[seed % 3]
        keep = self.rng.choice([0, 1, 100])
        self.driver = open_driver(home, store=store, seed=seed, keep_epochs=keep, small=False)
        self.other = on_another_host(self.driver, seed + 1)
        self.is_exact = True

    def run(self) -> None:
        """Go through the schedule."""
        actions = [self._copy, self._crash, self._crash_copying, self._lose, self._turn]
        with self.driver:
            world = World(self.driver, self.rng)
            for _ in range(self.rng.randint(4, 8)):
                world.feed(self.rng.randint(1, 40))
                if self.rng.random() < 0.7:
                    self.driver.advance()
                self.rng.choice(actions)()
            self.driver.finish()
            if self.is_exact:
                world.check()
            else:
                check_at_least_once(world, self.driver)
            self.driver.crash()
            self.other.crash()

    def _copy(self) -> None:
        self.driver.coordinator.advance()
        assert self.driver.copy().failures == 0

    def _crash(self) -> None:
        self.driver.advance_with_crash(self.rng.choice(POINTS), self.rng.randint(1, 3))

    def _crash_copying(self) -> None:
        self.driver.coordinator.advance()
        self.driver.advance_with_crash(self.rng.choice(COPY), step=self.driver.copy)

    def _lose(self) -> None:
        self.is_exact = False
        lose_host(self.driver)

    def _turn(self) -> None:
        """The other host goes on, from the newest copy or from what it has itself."""
        self.is_exact = False
        self.driver.crash()
        expire_lease(self.driver)
        self.driver, self.other = self.other, self.driver
        point = self.rng.choice(["", *START])
        if point:
            self.driver.advance_with_crash(point, step=self.driver.start)
            expire_lease(self.driver)
        self.driver.start()
