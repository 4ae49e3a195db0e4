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

from headrace.coordinator.commands import Drain, Request, Restart, RestartAnswer
from headrace.coordinator.drain import CordonedHost
from headrace.coordinator.host_commands import HostCommands
from headrace.coordinator.host_state import HostState
from headrace.coordinator.manifest import JobState, begin_lineage
from headrace.coordinator.operations.savepoint_writer import _detached_state
from headrace.errors import InvalidInputError
from headrace.testing import ManualClock


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

    drain: Drain | None = None
    restart: Request[RestartAnswer] | None = None
    cut: bool = False
    drained: dict[str, CordonedHost] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)
    since: Mapping[int, int] = field(default_factory=dict)
    savepoints: list[JobState] = field(default_factory=list)
    is_remote: bool = False

    def read(self) -> tuple[CordonedHost, ...]:
        """Return the hosts that are to be empty of all jobs, as ``CordonedHosts`` does."""
        return tuple(self.drained.values())

    def something(self, rng: random.Random, hosts: list[str], clock: ManualClock) -> str:
        """Ask for something; returns what."""
        chance, host = rng.random(), rng.choice(hosts)
        if chance < 0.3:
            if self.drain is None:
                self.drain = Drain(host, undo=rng.random() < 0.4)
            return "undrain" if self.drain.undo else "drain"
        if chance < 0.5:
            if self.drained and rng.random() < 0.6:
                self.drained.pop(rng.choice(sorted(self.drained)))
                return "used again everywhere"
            self.drained[host] = CordonedHost(host)
            return "drained everywhere"
        if chance < 0.75:
            if self.restart is None:
                self.restart = Request.of(Restart(rng.random() < 0.7), clock)
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
        host_commands: of the driver.
    """

    def __init__(self, asks: Asks, host_commands: HostCommands) -> None:
        self._asks, self._host_commands = asks, host_commands
        self._begun: tuple[str, frozenset[int]] = ("", frozenset())

    def serve(self, *, is_paused: bool) -> list[str]:
        """Do what is asked for; returns what was answered, without the savepoint."""
        asks, everywhere, answered = self._asks, cast("Any", self._asks), []
        self._host_commands.follow(everywhere)
        if asks.drain is not None:
            try:
                host = self._host_commands.drain(asks.drain, everywhere)
            except InvalidInputError:
                answered.append("drain refused")
            else:
                answered.append("drained")
                self._check_mark(asks.drain, host)
            asks.drain = None
        if asks.restart is not None and self._begun[0] != asks.restart.id:
            self._begun = asks.restart.id, self._slots()
        done = self._host_commands.restart(asks.restart, is_paused=is_paused)
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
        return frozenset(slot.number for slot in self._host_commands._members.slots)

    def _check_mark(self, asked: Drain, host: str) -> None:
        held = self._host_commands._writer.state.hosts.get(host, HostState())
        require(held.drained != asked.undo, f"{asked} was answered, and is not so")

    def validate(self) -> None:
        """Make sure that a restart that is under way is one that can be."""
        if self._host_commands._restart is not None:
            self._host_commands._restart.validate()


def begun_from(saved: JobState, lineage: str) -> JobState:
    """Return the first state of a job that begins from a savepoint."""
    state = begin_lineage(_detached_state(saved), lineage)
    return msgspec.structs.replace(state, until=None)
