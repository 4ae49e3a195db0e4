"""Random schedules of drivers' machines, in a made up world, with all that always holds.

Each seed is one schedule of a few dozen events, and each test has some of them; a failure names its
seed.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.sim.machine_asks import begun_from
from tests.sim.machine_driver import MachineDriver, Signals
from tests.sim.machine_world import CELLS, Host, World, rows_read
from tests.support.soak import more

from headrace.coordinator.epoch_executor import EpochStep
from headrace.coordinator.placement import Affinity, PlacementRules
from headrace.errors import NotOwnerError
from headrace.testing import ManualClock

EACH = 250
"""Schedules of one test, which takes about 2 s."""

MOST_STEPS = 3_000
CALM = 8
QUICK = range(2)
met: Counter[str] = Counter()
batches: set[int] = set()


@pytest.mark.parametrize("batch", more(QUICK, range(200), share=100))
def test_whatever_happens_all_that_always_holds_does(batch: int) -> None:
    run_batch(batch)


def run_batch(batch: int) -> None:
    batches.add(batch)
    for seed in range(batch * EACH, (batch + 1) * EACH):
        try:
            _Schedule(seed).run()
        except BaseException as error:
            error.add_note(f"this was schedule {seed}")
            raise


@pytest.mark.parametrize("seed", [13_034, 16_325, 41_334, 51_381])
def test_what_failed_once_does_not_fail_again(seed: int) -> None:
    """A restart taken back and asked for again; a host that only has tasks that just came."""
    _Schedule(seed).run()


def test_everything_was_met() -> None:
    """Schedules in which nothing goes wrong prove nothing; those that were not run are run now."""
    for batch in QUICK:
        if batch not in batches:
            run_batch(batch)
    kinds = (
        "crashed",
        "drain refused",
        "drained",
        "drained everywhere",
        "driver frozen",
        "failed",
        "fenced",
        "frozen",
        "host back",
        "host lost",
        "late win",
        "lost",
        "misplaced",
        "moved",
        "overtaken",
        "paused",
        "rescaled",
        "restarted",
        "savepoint",
        "savepoint begun",
        "second driver",
        "store held",
        "taken over",
        "used again everywhere",
        "waited",
    )
    assert [kind for kind in kinds if met[kind] < len(batches) * EACH // 200] == [], met


def test_who_loses_a_manifest_to_a_newer_driver_does_not_build_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newer one begins and commits after the older one has looked at its generation."""
    world = World(random.Random(0), CELLS[0], 1, 1, copies=0, most_moves=None)
    clock, rules = ManualClock(), PlacementRules(Affinity.NONE, 0.0, 1)
    older, publish = MachineDriver(world, clock, rules, 1), world.log.publish

    def overtaken(epoch: int, data: bytes) -> bool:
        if len(world.log.generations) == 1:
            newer = MachineDriver(world, clock, rules, 1)
            assert newer.writer.publish_end({"events": [0]})
        return publish(epoch, data)

    monkeypatch.setattr(world.log, "publish", overtaken)
    with pytest.raises(NotOwnerError, match="generation 2"):
        older.writer.publish_end({"events": [0]})


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
        self._begin_from_savepoint()
        met.update(self.world.met)

    def _event(self) -> None:
        rng, world = self.rng, self.world
        chance = rng.random()
        if chance < 0.55:
            self._drive(rng.randint(1, 12))
        elif chance < 0.68:
            world.ends[rng.randrange(len(world.ends))] += rng.randint(1, 9)
        elif chance < 0.77:
            self._host(rng.choice(world.hosts))
        elif chance < 0.80:
            self._crash()
        elif chance < 0.83 and len(self.drivers) < 3:
            world.met["second driver"] += 1
            self.drivers.append(self._driver())
        elif chance < 0.85:
            self._take_over_in_commit(rng.choice(self.drivers))
        elif chance < 0.87:
            self._take_over()
        elif chance < 0.89:
            driver = rng.choice(self.drivers)
            driver.signals = Signals(paused=not driver.signals.paused)
            world.met["paused"] += driver.signals.paused
        elif chance < 0.91:
            rng.choice(self.drivers).rescale_to = rng.randint(1, 4)
        elif chance < 0.92:
            world.asks.take_back()
        else:
            names = [host.name for host in world.hosts]
            world.met[world.asks.something(rng, names, self.clock)] += 1

    def _host(self, host: Host) -> None:
        if not host.answers:
            self.world.bring_back(host)
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

    def _take_over(self) -> None:
        """Fence the drivers there are, as --takeover does: they let go, or are frozen and wake."""
        self.world.log.take_generation({"takes_over": 1})
        for driver in self.drivers:
            if self.rng.random() < 0.4:
                driver.is_frozen = True
                self.world.met["driver frozen"] += 1
            else:
                driver.signals = Signals(stop=True)
        for _ in range(self.rng.randint(0, 2)):
            self._drive(self.rng.randint(1, 12))
        self.drivers.append(self._driver())
        self.world.met["taken over"] += 1

    def _take_over_in_commit(self, driver: MachineDriver) -> None:
        """Let another driver begin when one has looked at its generation, about to commit."""
        for _ in range(40):
            if driver.is_over:
                return
            if driver.epoch_step is EpochStep.APPEND:
                self.world.met["overtaken"] += 1
                self.drivers.append(self._driver())
                for one in self.rng.sample(self.drivers, len(self.drivers)):
                    self._drive(self.rng.randint(1, 12), one)
                return
            driver.step()

    def _drive(self, steps: int, driver: MachineDriver | None = None) -> None:
        driver = driver or self.rng.choice(self.drivers)
        if driver.is_frozen and (driver.is_over or self.rng.random() < 0.8):
            return
        driver.is_frozen = False
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

    def _settle(self) -> None:
        """Let one driver answer what is asked, and bring its hosts in order."""
        quiet = 0
        for _ in range(MOST_STEPS):
            driver, asks = self.drivers[-1], self.world.asks
            driver.signals, driver.max_rows, driver.is_frozen = Signals(), 1_000, False
            is_asked = asks.drain or asks.restart or asks.cut or driver.rescale_to
            quiet = quiet + 1 if driver.is_settled and not is_asked else quiet
            if quiet == CALM:
                break
            self.clock.advance(100)
            if driver.is_over or (driver.is_settled and not driver.writer.is_newest):
                self._next(driver)  # one that waits finds by itself that another has begun
                quiet = 0
            else:
                driver.step()
        assert quiet == CALM, "hosts never came to rest"
        self.world.check_settled()

    def _come_to_rest(self) -> None:
        """Bring all hosts back; one driver reads its inputs to their ends."""
        for host in self.world.hosts:
            self.world.bring_back(host)
        self._settle()
        for _ in range(MOST_STEPS):
            driver = self.drivers[-1]
            driver.signals, driver.max_rows = Signals(finish=True), 1_000
            if driver.has_ended:
                break
            if driver.is_over:
                self._next(driver)
            else:
                driver.step()
        assert driver.has_ended, "the job never ended"
        assert self.world.state is not None
        assert self.world.state.until is not None
        at = [held.next_offset for held in self.world.state.inputs["events"].values()]
        assert list(self.world.state.until["events"]) == at
        self.world.check_rows()

    def _begin_from_savepoint(self) -> None:
        """Begin another job from one of those that were taken; it reads the rest, once."""
        world, rng = self.world, self.rng
        if not world.asks.savepoints or world.cell != CELLS[0] or rng.random() < 0.7:
            return
        saved = rng.choice(world.asks.savepoints)
        self.world = World(rng, world.cell, 1, 2, copies=world.copies, most_moves=None)
        self.world.first = begun_from(saved, self.clock.new_id())
        self.world.read_before, self.world.ends = rows_read(saved), world.ends
        self.world.met["savepoint begun"] += 1
        self.drivers = [self._driver()]
        self._come_to_rest()
        self.world.met.update(world.met)
