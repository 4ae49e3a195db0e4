"""What becomes of standbys in one epoch: failovers at its begin, what was reached at its end.

A host that has gone was waited for by the runner. What is left of the slots has let go of all
stores, standbys too, before it said where it is. So a task that is placed now on the host of its
standby is the only one to open that store (seed 002, invariant 2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from headrace.coordinator.hosts.record import away_hosts
from headrace.coordinator.manifest import JobState
from headrace.coordinator.placement import Slot
from headrace.coordinator.planning import task_name
from headrace.coordinator.standby.placing import (
    ACTIVE_LOST,
    FAILOVER,
    FOLLOWED_BYTES,
    FOLLOWED_MS,
    NO_FAILOVER,
    STANDBY_LOST,
    Standby,
    Standbys,
    place_standbys,
    successors,
    violations,
)
from headrace.coordinator.task_files import TaskChange, TaskState
from headrace.errors import InternalError
from headrace.plan.stages import JobPlan, Stage
from headrace.records.keys import group_range
from headrace.task.orders import SlotReport, StandbyOrder, StateTarget
from headrace.task.stage_task import store_specs
from headrace.task.standbys import standby_specs

LATE_EPOCHS = 16
"""So far behind, a standby is told to follow although its slot has nothing else to do."""


class StandbyCourse:
    """The standbys of a job during one epoch.

    Args:
        plan: of the job.
        state: after the last epoch.
        slots: those that answer.
        copies: how many standbys each task is to have; 0: none.
    """

    def __init__(self, plan: JobPlan, state: JobState, slots: Sequence[Slot], copies: int) -> None:
        self._state, self._slots, self._copies = state, slots, copies
        self._now: Standbys = {}
        self._placed: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._homes: dict[str, dict[str, str]] = {}
        there, away = {slot.host for slot in slots}, away_hosts(state.hosts)
        self._away = away if there - away else frozenset()
        if copies or state.standbys:
            hosts = {slot.host for slot in slots}
            for stage in plan.stages:
                if stage.keyed and standby_specs(store_specs(stage)):
                    self._homes[stage.name] = self._found(stage, hosts)

    def _task(self, name: str) -> TaskState:
        return self._state.tasks.get(name, TaskState())

    def _found(self, stage: Stage, hosts: Collection[str]) -> dict[str, str]:
        names = [task_name(stage.name, number) for number in range(stage.tasks)]
        before = {name: self._task(name).host for name in names}
        standbys: Mapping[str, Sequence[Standby]] = self._state.standbys
        if self._away:  # what would have to leave again at once takes over from nobody
            standbys = {
                name: [one for one in held if one.host not in self._away]
                for name, held in standbys.items()
            }
        homes = successors(before, standbys, hosts)
        for name in before:
            held = self._state.standbys.get(name, ())
            self.counts[STANDBY_LOST] += sum(standby.host not in hosts for standby in held)
        self.counts += Counter()  # without those that are 0
        return homes

    def _count_moves(self, placed: Mapping[str, str]) -> None:
        """Count the tasks that lost their host; one without room at its standby goes elsewhere."""
        hosts = {slot.host for slot in self._slots}
        for name, on in placed.items():
            home = self._task(name).host
            if home and home not in hosts:
                held = self._state.standbys.get(name, ())
                is_there = any(one.host == on and one.epoch >= 0 for one in held)
                self.counts[ACTIVE_LOST] += 1
                self.counts[FAILOVER if is_there else NO_FAILOVER] += 1

    def homes(self, stage: Stage) -> Mapping[str, str]:
        """Return the host that each task of a stage is best placed on, where it may fail over."""
        return self._homes.get(stage.name, {})

    def orders(self, stage: Stage, placed: Mapping[str, str]) -> dict[int, list[StandbyOrder]]:
        """Give the tasks of a stage their standbys; return what each slot is told of them.

        Args:
            stage: the stage.
            placed: the host that each of its tasks is given in this epoch.
        """
        if stage.name not in self._homes:
            return {}
        self._count_moves(placed)
        if not self._copies:
            return {}
        self._placed.add(stage.name)
        hosts = {slot.host for slot in self._slots} - self._away
        actives = {name: {on, self._task(name).host} - {""} for name, on in placed.items()}
        self._now |= place_standbys(actives, hosts, self._state.standbys, self._copies)
        by_host: dict[str, list[int]] = {}
        for slot in self._slots:
            by_host.setdefault(slot.host, []).append(slot.number)
        dealt: Counter[str] = Counter()
        found: dict[int, list[StandbyOrder]] = {}
        for number in range(stage.tasks):
            name = task_name(stage.name, number)
            groups = group_range(number, stage.tasks, self._state.key_groups)
            held = self._task(name)
            order = StandbyOrder(
                stage.name, number, groups, StateTarget(held.epoch, held.attempt, held.shape)
            )
            for standby in self._now.get(name, ()):
                numbers = sorted(by_host[standby.host])
                found.setdefault(numbers[dealt[standby.host] % len(numbers)], []).append(order)
                dealt[standby.host] += 1
        return found

    def lacks(self, name: str) -> bool:
        """Say whether a task is to have a standby, and has none that holds all but a tail."""
        epoch = self._task(name).epoch
        if not self._copies or epoch < 0 or name.rpartition("/")[0] not in self._homes:
            return False  # of a task that has committed nothing there is nothing to hold
        reached = epoch - LATE_EPOCHS
        held = self._state.standbys.get(name, ())
        return not any(one.epoch >= max(0, reached) and one.host not in self._away for one in held)

    @property
    def are_to_leave(self) -> bool:
        """Say whether there are standbys on hosts that are to be empty."""
        every = (one.host for held in self._state.standbys.values() for one in held)
        return bool(self._away) and not self._away.isdisjoint(every)

    def is_late(self, orders: Sequence[StandbyOrder]) -> bool:
        """Say whether a slot is to have an order for its standbys' sake alone."""
        return any(
            one.state.epoch - standby.epoch > LATE_EPOCHS
            for one in orders
            for standby in self._now.get(task_name(one.stage, one.task), ())
        )

    def absorb(self, report: SlotReport) -> None:
        """Take what a slot tells of its standbys."""
        for one in report.standbys:
            if one.read_bytes:
                self.counts[FOLLOWED_BYTES + one.stage] += one.read_bytes
                self.counts[FOLLOWED_MS + one.stage] += one.worked_ms
            name = task_name(one.stage, one.task)
            self._now[name] = tuple(
                Standby(held.host, one.epoch, one.attempt) if held.host == report.host else held
                for held in self._now.get(name, ())
            )

    def changes(self) -> Standbys:
        """Return the standbys that are others than before the epoch; empty: there is none now."""
        before = self._state.standbys
        found = {name: now for name, now in self._now.items() if now != tuple(before.get(name, ()))}
        gone = [
            name
            for name in before
            if name not in self._now
            and (not self._copies or name.rpartition("/")[0] in self._placed)
        ]
        return {**found, **dict.fromkeys(gone, ())}

    def validate(self, tasks: Mapping[str, TaskChange]) -> None:
        """Make sure that the epoch leaves standbys that can be (seed 002, invariant 1).

        Args:
            tasks: as the epoch leaves those that have run.

        Raises:
            InternalError: one is beside its task or beside another, ahead of it, or too many.
        """
        left = {**self._state.standbys, **self.changes()}
        after = {name: (one.host, one.epoch) for name, one in self._state.tasks.items()}
        after |= {name: (one.host, self._state.epoch + 1) for name, one in tasks.items()}
        wrong = violations({name: host for name, (host, _) in after.items()}, left)
        for name, found in left.items():
            _, epoch = after.get(name, ("", -1))
            wrong += [f"a standby of {name} is ahead" for one in found if one.epoch > epoch]
            if self._copies and len(found) > self._copies:
                wrong.append(f"task {name} has {len(found)} standbys, not {self._copies}")
        if wrong:
            raise InternalError(f"standbys: {wrong[0]}", epoch=self._state.epoch + 1)
