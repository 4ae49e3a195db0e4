"""Random schedules of everything that can go wrong, against a model in plain dicts.

Each seed is one schedule, which its test names.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.sim.world import EPOCH, World, make_job
from tests.support.homes import unnamed
from tests.support.hosts import carry_out, doubled, now_and_then, orders, stop_in_mid_epoch
from tests.support.limits import limit
from tests.support.soak import more

from headrace.errors import NotOwnerError
from headrace.testing import FAULT_POINTS, TestDriver, call_at

QUICK, SCHEDULES = 12, 2000
POINTS = [point for point in FAULT_POINTS if point.startswith(EPOCH)]
FILE_BUS_POINTS = [*POINTS, "bus.frame_written", "bus.index_written"]
JOBS = {
    "memory": make_job("memory"),
    "rocksdb": make_job("rocksdb"),
    "columnar": make_job("memory", "columnar"),
}
run: set[int] = set()
done: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few rows at a time, so that a stop in mid-epoch leaves some."""
    limit(monkeypatch, chunk_rows=8)


@pytest.mark.parametrize("seed", more(range(QUICK), range(SCHEDULES), share=1000))
def test_random_schedules_equal_the_model(seed: int) -> None:
    """Whatever happens in between, the finished job equals one fold over its input."""
    run_schedule(seed)


def run_schedule(seed: int) -> None:
    run.add(seed)
    _Schedule(seed).run()


@pytest.mark.timeout(900)  # alone it runs them all
def test_every_kind_of_fault_was_met() -> None:
    """Schedules that never crash anything prove nothing; those that were not run are run now."""
    for seed in range(QUICK):
        if seed not in run:
            run_schedule(seed)
    least = max(1, len(run) // 20)
    assert [kind for kind in (*_Schedule.KINDS, "merge") if done[kind] < least] == [], done


class _Schedule:
    """One run: feed, do something nasty, again; then finish and compare."""

    KINDS = (
        "crash",
        "lost disk",
        "double attempt",
        "zombie attempt",
        "second driver",
        "takeover in commit",
        "stop in mid-epoch",
        "lost process",
        "rescale",
    )

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        kind = ("rocksdb", "columnar", "columnar", "memory", "memory")[seed % 5]
        self.file_bus = seed % 4 == 1
        self.driver = TestDriver(
            JOBS[kind],
            tasks=self.rng.choice([1, 2, 3]),
            slots=self.rng.choice([1, 2, 3]),
            hosts=self.rng.choice([1, 2]),
            max_rows=self.rng.choice([30, 100, 1000]),
            seed=seed,
            memory_bus=not self.file_bus,
            background=now_and_then(self._is_time_to_merge),
            keep_epochs=self.rng.choice([0, 1, 5, 100]),
        )

    def run(self) -> None:
        """Go through the schedule."""
        actions: dict[str, Callable[[], bool]] = {
            "crash": self._crash,
            "lost disk": self._lose_disk,
            "double attempt": self._double_attempt,
            "zombie attempt": self._zombie,
            "second driver": self._second_driver,
            "takeover in commit": self._takeover_in_commit,
            "stop in mid-epoch": self._stop,
            "lost process": self._kill_slot,
            "rescale": self._rescale,
        }
        with self.driver:
            world = World(self.driver, self.rng)
            for _ in range(self.rng.randint(2, 5)):
                world.feed(self.rng.randint(0, 60))
                kind = self.rng.choice(self.KINDS)
                if actions[kind]():
                    done[kind] += 1
                if self.rng.random() < 0.5:
                    self.driver.advance()
                self.driver.clock.advance(self.rng.randrange(1000))
            self.driver.finish()
            world.check()
            tasks = self.driver.coordinator.state.tasks.values()
            done["merge"] += any(task.shape > 0 for task in tasks)
            self._check_leftovers()

    def _is_time_to_merge(self) -> bool:
        """A merge is done at the first look, or at any later one."""
        return self.rng.random() < 0.6

    def _check_leftovers(self) -> None:
        """Nothing but what the manifest names is left of past epochs once they are swept."""
        self.driver.start()
        assert unnamed(self.driver.storage, self.driver.coordinator.kept_files()) == []

    def _crash(self) -> bool:
        points = FILE_BUS_POINTS if self.file_bus else POINTS
        return self.driver.advance_with_crash(self.rng.choice(points), self.rng.randint(1, 3))

    def _lose_disk(self) -> bool:
        self.driver.advance()
        self.driver.crash(lose_hosts=[0])
        return True

    def _kill_slot(self) -> bool:
        self.driver.advance()
        self.driver.runner.kill(0)
        return True

    def _double_attempt(self) -> bool:
        """Both attempts of a slot answer; the driver takes one, the other keeps its changes."""
        with doubled(self.driver, self.rng.choice(["first", "last"])):
            return self.driver.advance() is not None

    def _zombie(self) -> bool:
        """An order of long ago is carried out again: after an epoch, or in the middle of one."""
        self.driver.advance()
        history = orders(self.driver)
        if not history:
            return False
        order = self.rng.choice(history)

        def wake() -> None:
            carry_out(order, self.driver.runner.host(order.slot))

        with call_at("epoch.level_done", wake) as passes:
            self.driver.advance(force=self.rng.random() < 0.5)
        if not passes:
            wake()
        return True

    def _second_driver(self) -> bool:
        """The newer generation takes over; the older one finds out and changes nothing."""
        old = self.driver.coordinator
        self.driver.start()
        before = self.driver.coordinator.state.digest
        refused = False
        try:
            old.advance(force=True)
        except NotOwnerError:
            refused = True
        assert refused
        assert before == self.driver.coordinator.state.digest
        return True

    def _takeover_in_commit(self) -> bool:
        """A newer driver starts while the older one has written an epoch but not committed it."""
        old = self.driver.coordinator
        with call_at("commit.written", self.driver.start) as passes, suppress(NotOwnerError):
            old.advance(force=True)
        self.driver.advance(force=True)
        return bool(passes)

    def _rescale(self) -> bool:
        """Another number of tasks, or a driver that dies on the way to it."""
        self.driver.advance()
        before = self.driver.coordinator.state.lineage
        tasks = self.rng.choice([1, 2, 3, 5, 7])
        point = self.rng.choice(["rescale.published", "commit.written", "rescale.committed", ""])
        if point:
            self.driver.advance_with_crash(point, step=lambda: self._to(tasks))
        else:
            self._to(tasks)
        return before != self.driver.coordinator.state.lineage

    def _to(self, tasks: int) -> None:
        self.driver.coordinator.rescale(tasks)

    def _stop(self) -> bool:
        """Sources stop reading in mid-epoch; what they reached is what is committed."""
        stop_in_mid_epoch(self.driver)
        self.driver.crash()
        return True
