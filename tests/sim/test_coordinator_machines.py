"""Random schedules of drivers' machines, in a made up world, with all that always holds.

Each seed is one schedule of a few dozen events; a failure names it, and ``SEEDS=123`` alone runs it
again.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from tests.sim.machine_driver import MachineDriver
from tests.sim.machine_world import CELLS, Host, World

from headrace.coordinator.machines import turn as turning
from headrace.coordinator.machines.life import Phase, Wishes
from headrace.coordinator.placement import Affinity, PlacementRules
from headrace.errors import NotOwnerError
from headrace.testing.clock import ManualClock

SCHEDULES = 10_000
BATCHES = 20
MOST_STEPS = 3_000
met: Counter[str] = Counter()


def _seeds(batch: int) -> list[int]:
    if "SEEDS" in os.environ:
        return [int(text) for text in os.environ["SEEDS"].split(",")] if batch == 0 else []
    return list(range(batch, SCHEDULES, BATCHES))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_happens_all_that_always_holds_does(batch: int) -> None:
    for seed in _seeds(batch):
        try:
            _Schedule(seed).run()
        except BaseException as error:
            error.add_note(f"schedule {seed}: run it alone with SEEDS={seed}")
            raise


def test_everything_was_met() -> None:
    """A schedule in which nothing goes wrong would prove nothing."""
    if "SEEDS" in os.environ:
        return
    kinds = (
        "crashed",
        "failed",
        "fenced",
        "frozen",
        "host back",
        "host lost",
        "late win",
        "lost",
        "misplaced",
        "moved",
        "paused",
        "rescaled",
        "storeheld",
        "taken over",
        "waited",
    )
    assert [kind for kind in kinds if met[kind] < SCHEDULES // 200] == [], met


class _Schedule:
    """One run: events at random, then an end without any, and a look at what came of it."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.clock = ManualClock(seed=seed)
        hosts = rng.randint(1, 4)
        affinity = rng.choice(list(Affinity))
        most = rng.choice((1, 2, 4))
        self.rules = PlacementRules(affinity, rng.choice((0.0, 1.0, 5.0)), most)
        cell = CELLS[0] if seed % 2 else rng.choice(CELLS)
        self.world = World(
            rng,
            cell,
            rng.randint(1, 4),
            hosts,
            copies=rng.choice((0, 1, 1, 2)),
            most_moves=None if affinity is Affinity.NONE else most,
        )
        self.max_rows = rng.choice((3, 20, 1000))
        self.drivers = [self._driver()]

    def _driver(self) -> MachineDriver:
        return MachineDriver(self.world, self.clock, self.rules, self.max_rows)

    def run(self) -> None:
        """Go through the schedule."""
        for _ in range(self.rng.randint(8, 18)):
            self._event()
        self._come_to_rest()
        met.update(self.world.met)

    def _event(self) -> None:
        rng, world = self.rng, self.world
        chance = rng.random()
        if chance < 0.55:
            self._drive(rng.randint(1, 12))
        elif chance < 0.75:
            world.ends[rng.randrange(len(world.ends))] += rng.randint(1, 9)
        elif chance < 0.86:
            self._host(rng.choice(world.hosts))
        elif chance < 0.90:
            self._crash()
        elif chance < 0.94 and len(self.drivers) < 3:
            world.met["taken over"] += 1
            self.drivers.append(self._driver())
        elif chance < 0.96:
            self._take_over_in_commit(rng.choice(self.drivers))
        elif chance < 0.98:
            driver = rng.choice(self.drivers)
            driver.wishes = Wishes(paused=not driver.wishes.paused)
            world.met["paused"] += driver.wishes.paused
        else:
            rng.choice(self.drivers).rescale_to = rng.randint(1, 4)

    def _host(self, host: Host) -> None:
        if not host.answers:
            host.bring_back()
            self.world.met["host back"] += 1
        elif self.rng.random() < 0.5:
            host.is_up = False
            self.world.met["host lost"] += 1
        else:
            host.is_frozen = True
            self.world.met["frozen"] += 1

    def _crash(self) -> None:
        """Let a driver die where it stands, and another one begin."""
        self.drivers.remove(self.rng.choice(self.drivers))
        self.world.met["crashed"] += 1
        self.drivers.append(self._driver())

    def _take_over_in_commit(self, driver: MachineDriver) -> None:
        """Let another driver begin when one has looked at its generation, about to commit."""
        for _ in range(40):
            if driver.is_over:
                return
            if driver.turn is not None and driver.turn.phase is turning.Phase.APPENDING:
                self.drivers.append(self._driver())
                for one in self.rng.sample(self.drivers, len(self.drivers)):
                    self._drive(self.rng.randint(1, 12), one)
                return
            driver.step()

    def _drive(self, steps: int, driver: MachineDriver | None = None) -> None:
        driver = driver or self.rng.choice(self.drivers)
        for _ in range(steps):
            self.clock.advance(self.rng.randint(0, 300))
            if driver.is_over:
                self._next(driver)
                return
            driver.step()

    def _next(self, driver: MachineDriver) -> None:
        """Begin a driver in the place of one that is over."""
        self.drivers.remove(driver)
        self.world.met["fenced"] += isinstance(driver.error, NotOwnerError)
        if not self.drivers:
            self.drivers.append(self._driver())

    def _come_to_rest(self) -> None:
        """Bring all hosts back; one driver reads its inputs to their ends."""
        for host in self.world.hosts:
            host.bring_back()
        for _ in range(MOST_STEPS):
            driver = self.drivers[-1]
            driver.wishes, driver.max_rows = Wishes(finish=True), 1_000
            if driver.life.phase is Phase.ENDED:
                break
            if driver.is_over:
                self._next(driver)
            else:
                driver.step()
        assert driver.life.phase is Phase.ENDED, "the job never ended"
        assert self.world.state is not None
        assert self.world.state.until is not None
        at = [held.next_offset for held in self.world.state.inputs["events"].values()]
        assert list(self.world.state.until["events"]) == at
        self.world.check_rows()
