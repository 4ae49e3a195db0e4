"""Where the tasks of a job and their standbys run in one epoch, stage after stage.

Each stage is in balance by itself. Where that leaves a choice, keyed stages go by what slots
have of all stages, for state takes room all the time; sources by what they have to do in the
same level. Moves of all stages together keep to one limit. A task that moves is run in that
epoch, so that its new host is committed; before, the slots that may have its stores open have
them revoked.

Failover: slots have closed all stores, standbys too, before they said where they are. So a task
that is placed on the host of its standby is the only one to open that store (seed 002).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.coordinator.epoch_ranges import task_name
from headrace.coordinator.host_state import (
    ACTIVE_LOST,
    FAILOVER,
    FOLLOWED_BYTES,
    FOLLOWED_MS,
    LOST,
    MOVED,
    NO_FAILOVER,
    STANDBY_LOST,
    ClusterEvent,
    EventKind,
    Hosts,
    Standby,
    Standbys,
    drained_hosts,
    place_standbys,
    successors,
    violations,
)
from headrace.coordinator.manifest import JobState, TaskChange, TaskState
from headrace.coordinator.placement import (
    Affinity,
    MoveBudget,
    PlacementRules,
    Slot,
    SlotAssignment,
    StageTasks,
    TaskMove,
    assign_slots,
)
from headrace.errors import InternalError
from headrace.plan.stages import JobPlan, Stage
from headrace.records.keys import group_range
from headrace.runtime.orders import SlotReport, StandbyOrder, StateTarget
from headrace.runtime.stage_task import store_specs
from headrace.runtime.standbys import standby_specs


class StandingPlacement(NamedTuple):
    """Where tasks were placed when none was to move, which stands until something changes.

    ``tasks`` has the host of each task of a keyed stage.
    """

    plan: JobPlan
    slots: Sequence[Slot]
    found: Mapping[str, SlotAssignment]
    tasks: Mapping[str, str]

    def holds(self, plan: JobPlan, state: JobState, slots: Sequence[Slot]) -> bool:
        """Say whether the plan and the slots are the same, and all tasks where they were placed."""
        if plan is not self.plan or slots != self.slots:
            return False
        for name, host in self.tasks.items():
            task = state.tasks.get(name)
            if task is None or task.host != host:
                return False
        return True


class StickyAssignment:
    """What a driver remembers of slots from epoch to epoch.

    It is a cache: a new driver knows nothing, and has asked all slots to release their stores.
    """

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._left: dict[str, set[int]] = {}
        self._is_open = False
        self.standing: StandingPlacement | None = None
        """The placement of the last epoch, where it may stand."""

    @property
    def at(self) -> Mapping[str, int]:
        """The slot that each task was placed in last."""
        return self._at

    @property
    def is_open(self) -> bool:
        """Say whether slots may have stores open."""
        return self._is_open

    def released(self) -> None:
        """Note that no slot has any store open; tasks are to keep their slots all the same."""
        self._left.clear()
        self._is_open = False
        self.standing = None

    def leaving(self, placed: Mapping[str, int]) -> dict[int, list[str]]:
        """Return the tasks that slots are to release, so that others can open their stores.

        Args:
            placed: the slot of each task now.
        """
        found: dict[int, list[str]] = {}
        if not self._is_open:
            return found
        for task, slot in placed.items():
            before = self._at.get(task)
            if before != slot or task in self._left:
                others = {*self._left.get(task, ()), before} - {None, slot}
                for other in others:
                    if other is not None:
                        found.setdefault(other, []).append(task)
        return found

    @property
    def is_released(self) -> bool:
        """Say whether no slot but the one that it has now may have the stores of a task open."""
        return not self._left

    def left(self, leaving: Mapping[int, list[str]]) -> None:
        """Note that slots have released tasks."""
        for slot, tasks in leaving.items():
            for task in tasks:
                if task in self._left:
                    self._left[task].discard(slot)
                    if not self._left[task]:
                        del self._left[task]
                if self._at.get(task) == slot:
                    del self._at[task]

    def assigned(self, placed: Mapping[str, int]) -> None:
        """Note the slots that are about to open the stores of tasks."""
        if self._is_open:
            for task, slot in placed.items():
                before = self._at.get(task)
                if before is not None and before != slot:
                    self._left.setdefault(task, set()).add(before)
        self._at.update(placed)
        self._is_open = True


MAX_STANDBY_LAG_EPOCHS = 16
"""So far behind, a standby has to follow although its slot has nothing else to do."""


class StandbyTracker:
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
        self._away: frozenset[str] = frozenset()
        if copies or state.standbys:
            hosts, away = {slot.host for slot in slots}, drained_hosts(state.hosts)
            self._away = away if hosts - away else frozenset()
            for stage in plan.stages:
                if stage.keyed and standby_specs(store_specs(stage)):
                    self._homes[stage.name] = self._found(stage, hosts)

    @property
    def are_wanted(self) -> bool:
        """Say whether there are standbys, or are to be some."""
        return bool(self._homes)

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
        """Give the tasks of a stage their standbys; return what each slot needs to know of them.

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
        reached = epoch - MAX_STANDBY_LAG_EPOCHS
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
            one.state.epoch - standby.epoch > MAX_STANDBY_LAG_EPOCHS
            for one in orders
            for standby in self._now.get(task_name(one.stage, one.task), ())
        )

    def absorb(self, report: SlotReport) -> None:
        """Take what a slot says about its standbys."""
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
        if not before and not self._now:
            return {}
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


@dataclass(frozen=True)
class PlacementContext:
    """What a driver brings to the placing of an epoch.

    Args:
        rules: of placement.
        sticky: where tasks were in the last epoch.
        changes: hosts that are not as the manifest says; committed with the epoch.
        happened: to hosts since the last epoch; committed with it.
        missed: what of hosts that were gone is to be counted with the epoch.
        away: hosts that are to be empty, by the state; ``None``: that is looked up.
    """

    rules: PlacementRules = field(default_factory=PlacementRules)
    sticky: StickyAssignment = field(default_factory=StickyAssignment)
    changes: Hosts = field(default_factory=dict)
    happened: tuple[ClusterEvent, ...] = ()
    missed: Mapping[str, int] = field(default_factory=dict)
    away: frozenset[str] | None = None


class EpochPlacement:
    """The placing of one epoch.

    Args:
        plan: of the job.
        state: after the last epoch.
        slots: those that answer.
        context: what the driver brings.
        standbys: the standbys of the job's tasks in this epoch.
    """

    def __init__(
        self,
        plan: JobPlan,
        state: JobState,
        slots: Sequence[Slot],
        context: PlacementContext,
        standbys: StandbyTracker,
    ) -> None:
        self._plan, self._state, self._slots = plan, state, slots
        self._standbys = standbys
        self.context = context
        self._budget = MoveBudget(context.rules.max_moves)
        self._away = drained_hosts(state.hosts) if context.away is None else context.away
        self._unready_names: set[str] = set()
        standing = context.sticky.standing
        self._is_free = not self._away and not standbys.are_wanted
        self._stands = standing is not None and self._is_free and standing.holds(plan, state, slots)
        self._found: dict[str, SlotAssignment] = {}
        if standing is not None and self._stands:
            self._found.update(standing.found)
        self._load: Counter[int] = Counter()
        self._level_loads: dict[int, Counter[int]] = {}
        self.moves: list[TaskMove] = []
        self.pending = self.waiting = self.lost = 0

    def of(self, stage: Stage) -> SlotAssignment:
        """Return where all tasks of a stage run, those too that have nothing to do."""
        if stage.name not in self._found:
            keyed = [other for other in self._plan.stages if other.keyed]
            for other in (*keyed, *(other for other in self._plan.stages if not other.keyed)):
                self._found[other.name] = found = self._placed(other)
                at_level = self._level_loads[other.level]
                for slot, names in found.slots.items():
                    self._load[slot] += len(names)
                    at_level[slot] += len(names)
        return self._found[stage.name]

    def _names(self, stage: Stage) -> list[str]:
        return [task_name(stage.name, task) for task in range(stage.tasks)]

    def _placed(self, stage: Stage) -> SlotAssignment:
        names, rules = self._names(stage), self.context.rules
        at_level = self._level_loads.setdefault(stage.level, Counter())
        if not stage.keyed:  # at home nowhere
            others = (at_level, self._load)
            return assign_slots(names, self._slots, StageTasks({}), away=self._away, others=others)
        others = (self._load, at_level)
        if rules.affinity is Affinity.NONE:
            return assign_slots(names, self._slots, StageTasks({}), away=self._away, others=others)
        placed = assign_slots(
            names,
            self._slots,
            self._known(stage, names),
            last_slots=self.context.sticky.at,
            away=self._away,
            budget=self._budget,
            others=others,
        )
        self.moves += placed.moves
        self.pending += placed.pending
        self.waiting += placed.waiting
        known = {"", *(slot.host for slot in self._slots)}
        self.lost += sum(self._home(name) not in known for name in names)
        return placed

    def _home(self, name: str) -> str:
        task = self._state.tasks.get(name)
        return "" if task is None else task.host

    def _known(self, stage: Stage, names: Sequence[str]) -> StageTasks:
        tasks, standbys = self._state.tasks, self._state.standbys
        home, held = {}, {}
        for name in names:
            task = tasks.get(name)
            if task is None:
                continue
            home[name] = task.host
            if name in standbys or task.former:
                copies = [one for one in standbys.get(name, ()) if one.epoch >= 0]
                copies.sort(key=lambda one: one.epoch, reverse=True)
                held[name] = (*(one.host for one in copies), *(host for host, _ in task.former))
        home.update(self._standbys.homes(stage))
        return StageTasks(home, held, self._weight, self._unready, self._reach)

    def _reach(self, name: str, host: str) -> int:
        """Return the last epoch of a task's state that a host may hold."""
        task = self._state.tasks.get(name, TaskState())
        found = [epoch for former, epoch in task.former if former == host]
        found += [one.epoch for one in self._state.standbys.get(name, ()) if one.host == host]
        return max(found, default=-1)

    def _weight(self, name: str) -> int:
        task = self._state.tasks.get(name)
        return 0 if task is None else task.file_bytes

    def _unready(self, name: str) -> bool:
        """Say whether a task that is to leave has a standby, which is not there yet."""
        if not self._standbys.lacks(name):
            return False
        self._unready_names.add(name)
        return True

    def waits_for(self, orders: Sequence[StandbyOrder]) -> bool:
        """Say whether a task that is to leave waits for one of these standbys."""
        return any(task_name(one.stage, one.task) in self._unready_names for one in orders)

    def moved(self, stage: Stage) -> frozenset[str]:
        """Return the tasks of a keyed stage that are placed on another host than they were."""
        if self._stands:
            return frozenset()
        hosts = self.of(stage).hosts
        return frozenset(name for name, host in hosts.items() if host != self._home(name))

    @property
    def is_settled(self) -> bool:
        """Say whether all tasks of keyed stages that have run are where they are to be."""
        if self._standbys.are_to_leave:
            return False
        keyed = [stage for stage in self._plan.stages if stage.keyed]
        moved = any(self._home(name) for stage in keyed for name in self.moved(stage))
        return not moved and not self.pending

    @property
    def only_waits(self) -> bool:
        """Say whether all that is to come are moves that wait for standbys."""
        return not self.moves and not self.lost and self.pending == self.waiting

    def leaving(self) -> dict[int, list[str]]:
        """Return what slots are to release before the epoch, and note who opens it then."""
        if self._stands:
            return {}
        placed: dict[str, int] = {}
        for stage in self._plan.stages:
            if stage.keyed:
                for number, names in self.of(stage).slots.items():
                    placed.update(dict.fromkeys(names, number))
        sticky = self.context.sticky
        found = sticky.leaving(placed)
        for name, host in self._taking_over() if sticky.is_open else ():
            for slot in self._slots:  # the standby may be open in any slot of the host
                if slot.host == host:
                    found.setdefault(slot.number, []).append(name)
        return found

    def _taking_over(self) -> Iterator[tuple[str, str]]:
        """Yield the tasks that are placed on hosts of their standbys, with these."""
        homes: dict[str, str] = {}
        for stage in self._plan.stages:
            if stage.keyed:
                homes.update(self.of(stage).hosts)
        for name, held in self._state.standbys.items():
            host = homes.get(name)
            if any(one.host == host for one in held):
                yield name, str(host)

    def assigned(self, leaving: Mapping[int, list[str]]) -> None:
        """Note that slots have released them, and that the epoch is about to open stores."""
        if self._stands:
            return
        sticky = self.context.sticky
        sticky.left(leaving)
        tasks: dict[str, str] = {}
        for stage in self._plan.stages:
            if stage.keyed:
                placed = self.of(stage)
                tasks.update(placed.hosts)
                for slot, names in placed.slots.items():
                    sticky.assigned(dict.fromkeys(names, slot))
        may_move = self.moves or self.pending or self.lost or not self._is_free
        sticky.standing = None
        if sticky.is_released and not may_move:
            sticky.standing = StandingPlacement(self._plan, self._slots, self._found, tasks)

    def host_events(
        self, tasks: Mapping[str, TaskChange], standbys: Standbys, time_ms: int
    ) -> tuple[ClusterEvent, ...]:
        """Return what happened to hosts since the last epoch, and by this one.

        Args:
            tasks: as the epoch leaves those that have run.
            standbys: as it leaves those that are others than before.
            time_ms: its clock.
        """
        if not self._away:
            return self.context.happened
        before, state = occupied_hosts(self._state.tasks, self._state.standbys), self._state
        after = occupied_hosts({**state.tasks, **tasks}, {**state.standbys, **standbys})
        emptied = sorted((self._away & before) - after)
        return (
            *self.context.happened,
            *(ClusterEvent(time_ms, EventKind.EMPTY, h) for h in emptied),
        )

    @property
    def counts(self) -> dict[str, int]:
        """What is counted of the epoch."""
        found = {MOVED: len(self.moves), LOST: self.lost, **self.context.missed}
        return {name: count for name, count in found.items() if count}


def occupied_hosts(
    tasks: Mapping[str, TaskState | TaskChange], standbys: Mapping[str, Sequence[Standby]]
) -> frozenset[str]:
    """Return the hosts that have tasks or standbys."""
    copies = (one.host for held in standbys.values() for one in held)
    return frozenset((*(task.host for task in tasks.values()), *copies))
