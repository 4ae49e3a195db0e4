"""The standbys that this process keeps: stores of tasks that run on another host.

An order says which, and up to where each is to follow. The work is done in the background, by
committed files alone, within a share of a core; a later attempt says how far it came. When the
tasks of a host are placed again, every process releases what it has open, standbys among it;
who runs a task then finds its store on this host's disk, and reads what is missing.

Source: seed 002, hot-standby tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from headrace.clock import Clock
from headrace.errors import HeadraceError, NotOwnerError
from headrace.graph.operators import StoreSpec
from headrace.runtime.background import Background, WorkHandle
from headrace.runtime.orders import StandbyReport
from headrace.state.backend import Position, SegmentSource, Target
from headrace.state.task_state import TaskState

SHARE = 0.5
"""Of a core: what all standbys of a process may use."""

LONGEST_REST_S = 0.25

StandbyKey = tuple[str, str, int]
"""Job, stage, task."""


def standby_specs(specs: list[StoreSpec]) -> list[StoreSpec]:
    """Return the stores that a standby keeps: those whose local copy takes time to build.

    A table is nothing but committed files, and a store in memory ends with its process.
    """
    return [spec for spec in specs if spec.kind == "rocksdb" and spec.changelog]


class _StoppedError(Exception):
    """The standby is not wanted any more."""


@dataclass
class _Throttle:
    """Rests between two reads so that no more than a share of the time is work."""

    clock: Clock
    should_stop: Callable[[], bool]
    share: float
    resumed: float = 0.0
    read_bytes: int = 0
    worked_s: float = 0.0

    def opens(self, path: Path) -> None:
        """Continue, unless the standby is not wanted any more."""
        del path
        self._check()

    def reads(self, size: int, rows: int) -> None:
        """Rest in proportion to what was worked since the last rest."""
        del rows
        self._check()
        worked = self.clock.monotonic() - self.resumed
        self.read_bytes += size
        self.worked_s += worked
        self.clock.sleep(min(LONGEST_REST_S, worked * (1 / self.share - 1)))
        self.resumed = self.clock.monotonic()

    def _check(self) -> None:
        if self.should_stop():
            raise _StoppedError


@dataclass
class _Standby:
    """One standby: its stores, where they stand, and the work that is under way."""

    state: TaskState
    groups: tuple[int, int]
    reached: Position | None = None
    problem: str = ""
    ticket: WorkHandle[Position | None] | None = None
    lock: Lock = field(default_factory=Lock)
    is_closed: bool = False
    read_bytes: int = 0
    worked_s: float = 0.0

    def take_cost(self) -> tuple[int, int]:
        """Return what following has cost since this was last asked: bytes read, ms of work."""
        cost = self.read_bytes, round(self.worked_s * 1000)
        self.read_bytes, self.worked_s = 0, 0.0
        return cost


@dataclass(frozen=True)
class _CatchUp:
    """Bringing one standby to a committed position."""

    held: _Standby
    target: Target
    source: SegmentSource
    clock: Clock
    share: float

    def run(self, should_stop: Callable[[], bool]) -> Position | None:
        """Read what is missing; ``None`` when it was stopped before the end."""
        with self.held.lock:
            if self.held.is_closed:
                return None
            pace = _Throttle(self.clock, should_stop, self.share, self.clock.monotonic())
            try:
                self.held.state.catch_up(self.target, self.source, pace)
            except _StoppedError:
                return None
            finally:
                self.held.read_bytes += pace.read_bytes
                self.held.worked_s += pace.worked_s
            return self.target.position

    def forget(self) -> None:
        """Nothing was made that a later try does not continue from."""


@dataclass
class StandbyStores:
    """The standbys of one process; one thread calls.

    Args:
        background: where they follow.
        clock: for resting.
        share: of a core that following may take.
        held: those that this process has, by job, stage and task.
    """

    background: Background
    clock: Clock
    share: float = SHARE
    held: dict[StandbyKey, _Standby] = field(default_factory=dict)
    _left_behind: list[_Standby] = field(default_factory=list)
    _pid: int = field(default_factory=os.getpid)

    def follow(
        self,
        key: StandbyKey,
        groups: tuple[int, int],
        opened: Callable[[], TaskState],
        target: Target,
        source: SegmentSource,
    ) -> StandbyReport:
        """Look how far a standby is, and have it continue to a committed position.

        Args:
            key: job, stage, task.
            groups: the key groups of the task.
            opened: makes its stores, where this process does not have them.
            target: the position to reach.
            source: the committed segments up to it.
        """
        self._check_process()
        held = self.held.get(key)
        if held is not None and held.groups != groups:
            self.stop(key)
            held = None
        if held is None:
            held = self.held[key] = _Standby(opened(), groups)
            held.reached = _last_position(held.state, target)
        self._look(key, held)
        cost = held.take_cost() if held.ticket is None else (0, 0)  # another thread adds to it
        if held.ticket is None and not held.is_closed and held.reached != target.position:
            work = _CatchUp(held, target, source, self.clock, self.share)
            held.ticket = self.background.submit(work)
        position = held.reached
        epoch, attempt = (-1, "") if position is None else (position.epoch, position.digest)
        return StandbyReport(key[1], key[2], epoch, attempt, held.problem, *cost)

    def _look(self, key: StandbyKey, held: _Standby) -> None:
        if held.ticket is None or not self.background.look(held.ticket):
            return
        error, held.reached = held.ticket.error, held.ticket.result or held.reached
        held.ticket = None
        held.problem = "" if error is None else f"{type(error).__name__}: {error}"
        if isinstance(error, NotOwnerError):  # a newer driver waits for the store
            with suppress(HeadraceError):  # what is not flushed is read again
                self.stop(key)

    def keep(self, job: str, wanted: set[tuple[str, int]], stages: set[str]) -> None:
        """Stop the standbys of these stages that are not wanted here any more."""
        self._check_process()
        for key in list(self.held):
            if key[0] == job and key[1] in stages and (key[1], key[2]) not in wanted:
                self.stop(key)

    def stop(self, key: StandbyKey) -> None:
        """Release a standby's stores; when this returns, another may open them."""
        self._check_process()
        held = self.held.pop(key, None)
        if held is None:
            return
        if held.ticket is not None:
            held.ticket.drop()
        with held.lock:
            held.is_closed = True
            held.state.close()

    def close(self) -> None:
        """Stop them all, and let no thread behind."""
        self._check_process()
        for key in list(self.held):
            try:
                self.stop(key)
            except HeadraceError:  # what is not flushed is read again
                continue
        self.background.close()

    def _check_process(self) -> None:
        # After a fork the stores belong to the parent: they are left alone, not closed.
        if self._pid != os.getpid():
            self._left_behind += self.held.values()
            self.held = {}
            self._pid = os.getpid()


def _last_position(state: TaskState, target: Target) -> Position | None:
    """Return how far an earlier process came, which may have ended before it could report."""
    with suppress(HeadraceError, OSError):  # the one that follows meets it again, and reports it
        state.own(target.owner)
        position = state.position
        if position is not None and position.lineage == target.position.lineage:
            return position
    return None
