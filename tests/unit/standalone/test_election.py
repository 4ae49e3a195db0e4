"""Election under random schedules: processes look, drive, freeze, wake, die and come back."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from headrace.coordinator.backup.lease import Holder
from headrace.standalone.election import Move, Seen, is_deposed, next_move

LEASE_S = 5.0
ME = Holder("a", "here", 1, "boot", LEASE_S)
OTHER = Holder("b", "here", 2, "boot", LEASE_S)
SLOW = Holder("c", "here", 3, "boot", 30.0)


@pytest.mark.parametrize(
    ("seen", "move"),
    [
        (Seen(), Move.STAND),
        (Seen(is_locked=True, locked_s=1), Move.WAIT),
        (Seen(is_locked=True, locked_s=LEASE_S), Move.GIVE_UP),
        (Seen(OTHER, locked_s=LEASE_S), Move.GIVE_UP),
        (Seen(OTHER, 1.0, has_address=True), Move.FOLLOW),
        (Seen(OTHER, 1.0), Move.WAIT),
        (Seen(OTHER, LEASE_S + 0.1, has_address=True), Move.STAND),
        (Seen(SLOW, LEASE_S + 0.1), Move.WAIT),
        (Seen(SLOW, LEASE_S + 0.1, locked_s=LEASE_S), Move.GIVE_UP),
        (Seen(SLOW, 30.1, locked_s=LEASE_S), Move.STAND),
        (Seen(OTHER, 0.0, is_dead=True, has_address=True), Move.STAND),
    ],
)
def test_what_a_process_does_next(seen: Seen, move: Move) -> None:
    assert next_move(seen, LEASE_S) is move


def test_a_driver_is_deposed_by_a_generation_or_by_the_lease() -> None:
    assert not is_deposed(ME, ME, 3, 3)
    assert not is_deposed(ME, None, 0, 3)
    assert is_deposed(ME, ME, 3, 4)
    assert is_deposed(ME, OTHER, 3, 3)


@dataclass
class Process:
    """A process of the simulation; ``generation`` 0: it does not drive."""

    me: Holder
    generation: int = 0
    follows: Holder | None = None
    is_frozen: bool = False
    is_dead: bool = False


class World:
    """A job's storage, and the processes that share the job, in one thread."""

    def __init__(self, seed: int, processes: int, machines: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.lease: tuple[Holder, float] | None = None
        self.generation = 0
        self.commits: list[int] = []
        self.processes = [
            Process(Holder(f"p{n}", f"m{n % machines}", n, f"boot{n % machines}", LEASE_S))
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
        seen = Seen(holder, self.now - renewed, is_dead, has_address=holder is not None)
        move = next_move(seen, LEASE_S)
        process.follows = holder if move is Move.FOLLOW else None
        if move is Move.STAND:
            self.lease = (process.me, self.now)
            self.generation += 1
            process.generation = self.generation

    def _of(self, holder: Holder | None) -> Process:
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
        if is_deposed(process.me, seen, process.generation, self.generation):
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
    for seed in range(300):
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
