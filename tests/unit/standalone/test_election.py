"""Election under random schedules: processes look, drive, freeze, wake, die and come back."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.coordinator.leader_lease import LeaseHolder
from headrace.coordinator.leadership import is_replaced
from headrace.files import Files
from headrace.standalone.election import Candidate, DriverView, ElectionStep, next_step
from headrace.testing import ManualClock

LEASE_S = 5.0
ME = LeaseHolder("a", "here", 1, "boot", LEASE_S)
OTHER = LeaseHolder("b", "here", 2, "boot", LEASE_S)
SLOW = LeaseHolder("c", "here", 3, "boot", 30.0)


@pytest.mark.parametrize(
    ("seen", "move"),
    [
        (DriverView(), ElectionStep.STAND),
        (DriverView(is_locked=True, locked_s=1), ElectionStep.WAIT),
        (DriverView(is_locked=True, locked_s=LEASE_S), ElectionStep.GIVE_UP),
        (DriverView(OTHER, locked_s=LEASE_S), ElectionStep.GIVE_UP),
        (DriverView(OTHER, 1.0, has_address=True), ElectionStep.FOLLOW),
        (DriverView(OTHER, 1.0), ElectionStep.WAIT),
        (DriverView(OTHER, LEASE_S + 0.1, has_address=True), ElectionStep.STAND),
        (DriverView(SLOW, LEASE_S + 0.1), ElectionStep.WAIT),
        (DriverView(SLOW, LEASE_S + 0.1, locked_s=LEASE_S), ElectionStep.GIVE_UP),
        (DriverView(SLOW, 30.1, locked_s=LEASE_S), ElectionStep.STAND),
        (DriverView(OTHER, 0.0, is_dead=True, has_address=True), ElectionStep.STAND),
    ],
)
def test_what_a_process_does_next(seen: DriverView, move: ElectionStep) -> None:
    assert next_step(seen, LEASE_S) is move


def test_a_driver_is_deposed_by_a_generation_or_by_the_lease() -> None:
    assert not is_replaced(ME, ME, 3, 3)
    assert not is_replaced(ME, None, 3, 3)
    assert not is_replaced(None, None, 3, 3)
    assert is_replaced(ME, ME, 3, 4)
    assert is_replaced(ME, OTHER, 3, 3)


def test_who_saw_no_driver_takes_the_job_from_nobody_who_has_come_since(tmp_path: Path) -> None:
    clock, files = ManualClock(), Files(sync=False)
    first, second = (Candidate(tmp_path, "job", host, LEASE_S, files, clock) for host in "ab")
    assert [one.look() for one in (first, second)] == [ElectionStep.STAND] * 2
    won = first.stand()
    assert won is not None
    assert second.stand() is None
    won[0].release()


@dataclass
class Process:
    """A process of the simulation; ``generation`` 0: it does not drive."""

    me: LeaseHolder
    generation: int = 0
    follows: LeaseHolder | None = None
    is_frozen: bool = False
    is_dead: bool = False


class World:
    """A job's storage, and the processes that share the job, in one thread."""

    def __init__(self, seed: int, processes: int, machines: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.lease: tuple[LeaseHolder, float] | None = None
        self.generation = 0
        self.commits: list[int] = []
        self.processes = [
            Process(LeaseHolder(f"p{n}", f"m{n % machines}", n, f"boot{n % machines}", LEASE_S))
            for n in range(processes)
        ]

    def step(self, process: Process) -> None:
        if process.is_dead or process.is_frozen:
            return
        if process.generation:
            self._drive(process)
            return
        holder, renewed = self.lease or (None, 0.0)
        is_dead = holder is not None and holder.machine == process.me.machine
        is_dead = is_dead and self._of(holder).is_dead
        seen = DriverView(holder, self.now - renewed, is_dead, has_address=holder is not None)
        move = next_step(seen, LEASE_S)
        process.follows = holder if move is ElectionStep.FOLLOW else None
        if move is ElectionStep.STAND:
            self.lease = (process.me, self.now)
            self.generation += 1
            process.generation = self.generation

    def _of(self, holder: LeaseHolder | None) -> Process:
        return next(one for one in self.processes if one.me == holder)

    def _drive(self, process: Process) -> None:
        seen = self.lease and self.lease[0]
        # A driver may get to its commit before its keeper looks: the generation refuses it.
        if self.random.random() < 0.5:
            if process.generation == self.generation:
                self.commits.append(process.generation)
            else:
                process.generation = 0
            return
        if is_replaced(process.me, seen, process.generation, self.generation):
            process.generation = 0
        else:
            self.lease = (process.me, self.now)

    def disturb(self) -> None:
        process = self.random.choice(self.processes)
        what = self.random.random()
        if what < 0.4:
            process.is_frozen = not process.is_frozen
        elif what < 0.7:
            process.is_dead, process.generation = True, 0
            process.follows = None
        else:
            process.is_dead = process.is_frozen = False

    def rest(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            for process in self.random.sample(self.processes, len(self.processes)):
                self.step(process)


@pytest.mark.parametrize("machines", [1, 3])
def test_generations_of_commits_only_rise_and_one_process_drives_in_the_end(machines: int) -> None:
    """Whatever freezes and dies; who is left follows the one that drives."""
    for seed in range(150):
        world = World(seed, processes=4, machines=machines)
        for _ in range(60):
            if world.random.random() < 0.2:
                world.disturb()
            world.rest(world.random.choice([0.1, 0.5, 2.0]))
        for process in world.processes:
            process.is_frozen = False
        world.processes[0].is_dead = False
        world.rest(3 * LEASE_S)
        assert world.commits == sorted(world.commits), seed
        living = [one for one in world.processes if not one.is_dead]
        driving = [one for one in living if one.generation]
        assert len(driving) == 1, seed
        assert {one.follows for one in living if not one.generation} <= {driving[0].me}, seed
        assert driving[0].generation == world.generation, seed
