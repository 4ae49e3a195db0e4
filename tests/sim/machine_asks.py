"""What others ask of the drivers of a made up world, and what has to be true of the answers.

Requests lie in the world, as they do in a job's storage: whichever driver is between two epochs
finds them, and one that dies is followed by another that finds them again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from headrace.coordinator.changes.requests import (
    DrainAnswer,
    DrainRequest,
    RestartRequest,
    drain_request,
    restart_request,
)
from headrace.coordinator.hosts.everywhere import Drained
from headrace.coordinator.hosts.record import HostState
from headrace.coordinator.hosts.steering import Steering
from headrace.coordinator.lineages import begin_lineage
from headrace.coordinator.manifest import JobState
from headrace.coordinator.savepoints.taking import _bare
from headrace.testing.clock import ManualClock


class Broken(AssertionError):
    """Something that always holds does not."""


def require(holds: object, what: str) -> None:
    """Fail, and say what of, unless it holds."""
    if not holds:
        raise Broken(what)


@dataclass
class Asks:
    """What is asked for and not answered yet, and the savepoints that were taken.

    ``processes`` counts the processes that each slot has had; ``drained`` are the hosts that are to
    be empty of all jobs.
    """

    drain: DrainRequest | None = None
    restart: RestartRequest | None = None
    cut: bool = False
    drained: dict[str, Drained] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)
    since: Mapping[int, int] = field(default_factory=dict)
    savepoints: list[JobState] = field(default_factory=list)

    def read(self) -> tuple[Drained, ...]:
        """Return the hosts that are to be empty of all jobs, as ``DrainedHosts`` does."""
        return tuple(self.drained.values())

    def something(self, rng: random.Random, hosts: list[str], clock: ManualClock) -> str:
        """Ask for something; returns what."""
        chance, host = rng.random(), rng.choice(hosts)
        if chance < 0.3:
            if self.drain is None:
                self.drain = drain_request(host, clock, undo=rng.random() < 0.4)
            return "undrain" if self.drain.undo else "drain"
        if chance < 0.5:
            if self.drained and rng.random() < 0.6:
                self.drained.pop(rng.choice(sorted(self.drained)))
                return "used again everywhere"
            self.drained[host] = Drained(host)
            return "drained everywhere"
        if chance < 0.75:
            if self.restart is None:
                self.restart = restart_request(clock, rolling=rng.random() < 0.7)
                self.since = dict(self.processes)
            return "restart asked"
        self.cut = True
        return "savepoint asked"

    def take_back(self) -> None:
        """Let whoever asked go away."""
        self.restart = None


class Serving:
    """Answers the requests of a world to one driver, in the order of the real one.

    Args:
        asks: of the world.
        steering: of the driver.
    """

    def __init__(self, asks: Asks, steering: Steering) -> None:
        self._asks, self._steering = asks, steering
        self._begun: tuple[str, frozenset[int]] = ("", frozenset())

    def serve(self, *, is_paused: bool) -> list[str]:
        """Do what is asked for; returns what was answered, without the savepoint."""
        asks, everywhere, answered = self._asks, cast("Any", self._asks), []
        self._steering.follow(everywhere)
        if asks.drain is not None:
            answer = self._steering.drain(asks.drain, everywhere)
            answered.append("drain refused" if answer.error else "drained")
            self._check_mark(asks.drain, answer)
            asks.drain = None
        if asks.restart is not None and self._begun[0] != asks.restart.id:
            self._begun = asks.restart.id, self._slots()
        done = self._steering.restart(asks.restart, is_paused=is_paused)
        if asks.restart is not None and done is not None:
            old = [
                slot
                for slot in self._begun[1] & self._slots()
                if asks.processes.get(slot, 0) <= asks.since.get(slot, 0)
            ]
            require(not old, f"all were restarted, but not slots {old}")
            answered.append("restarted")
            asks.restart = None
        return answered

    def _slots(self) -> frozenset[int]:
        return frozenset(slot.number for slot in self._steering._members.slots)

    def _check_mark(self, asked: DrainRequest, answer: DrainAnswer) -> None:
        if answer.error:
            return
        held = self._steering._reign.state.hosts.get(answer.host, HostState())
        require(held.drained != asked.undo, f"{asked} was answered, and is not so")

    def validate(self) -> None:
        """Make sure that a restart that is under way is one that can be."""
        if self._steering._restart is not None:
            self._steering._restart.validate()


def begun_from(saved: JobState, lineage: str) -> JobState:
    """Return the first state of a job that begins from a savepoint."""
    state = begin_lineage(_bare(saved), lineage)
    return msgspec.structs.replace(state, until=None)
