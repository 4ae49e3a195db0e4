"""Where the tasks of a job run in one epoch: the stages are placed one after the other.

Each one is in balance by itself. Where that leaves a choice, keyed stages go by what slots have of
all stages, for state takes room all the time; sources, which have none, by what they have to do in
the same level.

Moves of all stages together keep to one limit. A task that moves is run in that epoch, so that its
new host is committed; before, the slots that may have its stores open let go of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.coordinator.balance import Budget, Known, Move
from headrace.coordinator.hosts.record import LOST, MOVED, Happening, Hosts, What, away_hosts
from headrace.coordinator.hosts.seats import Seats
from headrace.coordinator.manifest import JobState
from headrace.coordinator.placement import Affinity, Placement, PlacementRules, Slot, place
from headrace.coordinator.planning import task_name
from headrace.coordinator.standby.course import StandbyCourse
from headrace.coordinator.standby.placing import Standby, Standbys
from headrace.coordinator.task_files import TaskChange, TaskState
from headrace.plan.stages import JobPlan, Stage
from headrace.task.orders import StandbyOrder


@dataclass(frozen=True)
class Around:
    """What a driver brings to the placing of an epoch.

    Args:
        rules: of placement.
        seats: where tasks were in the last epoch.
        changes: hosts that are not as the manifest says; committed with the epoch.
        happened: to hosts since the last epoch; committed with it.
        missed: what of hosts that were gone is to be counted with the epoch.
    """

    rules: PlacementRules = field(default_factory=PlacementRules)
    seats: Seats = field(default_factory=Seats)
    changes: Hosts = field(default_factory=dict)
    happened: tuple[Happening, ...] = ()
    missed: Mapping[str, int] = field(default_factory=dict)


class Placing:
    """The placing of one epoch.

    Args:
        plan: of the job.
        state: after the last epoch.
        slots: those that answer.
        around: what the driver brings.
        standbys: the standbys of the job's tasks in this epoch.
    """

    def __init__(
        self,
        plan: JobPlan,
        state: JobState,
        slots: Sequence[Slot],
        around: Around,
        standbys: StandbyCourse,
    ) -> None:
        self._plan, self._state, self._slots = plan, state, slots
        self._standbys = standbys
        self.around = around
        self._budget = Budget(around.rules.max_moves)
        self._away = away_hosts(state.hosts)
        self._unready_names: set[str] = set()
        self._found: dict[str, Placement] = {}
        self._load: Counter[int] = Counter()
        self._level_loads: dict[int, Counter[int]] = {}
        self.moves: list[Move] = []
        self.pending = self.waiting = self.lost = 0

    def of(self, stage: Stage) -> Placement:
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

    def _placed(self, stage: Stage) -> Placement:
        names, rules = self._names(stage), self.around.rules
        at_level = self._level_loads.setdefault(stage.level, Counter())
        if not stage.keyed:  # at home nowhere
            others = (at_level, self._load)
            return place(names, self._slots, Known({}), away=self._away, others=others)
        others = (self._load, at_level)
        if rules.affinity is Affinity.NONE:
            return place(names, self._slots, Known({}), away=self._away, others=others)
        placed = place(
            names,
            self._slots,
            self._known(stage, names),
            seats=self.around.seats.at,
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

    def _known(self, stage: Stage, names: Sequence[str]) -> Known:
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
        return Known(home, held, self._weight, self._unready, self._reach)

    def _reach(self, name: str, host: str) -> int:
        """Return the last epoch of a task's state that a host may hold."""
        task = self._state.tasks.get(name, TaskState())
        found = [epoch for former, epoch in task.former if former == host]
        found += [one.epoch for one in self._state.standbys.get(name, ()) if one.host == host]
        return max(found, default=-1)

    def _weight(self, name: str) -> int:
        task = self._state.tasks.get(name)
        return 0 if task is None else task.snapshot_bytes + task.segment_bytes

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
        """Return what slots are to let go of before the epoch, and note who opens it then."""
        placed: dict[str, int] = {}
        for stage in self._plan.stages:
            if stage.keyed:
                for number, names in self.of(stage).slots.items():
                    placed.update(dict.fromkeys(names, number))
        seats = self.around.seats
        found = seats.leaving(placed)
        for name, host in self._taking_over() if seats.is_open else ():
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

    def seated(self, leaving: Mapping[int, list[str]]) -> None:
        """Note that slots have let go, and that the epoch is about to open stores."""
        seats = self.around.seats
        seats.left(leaving)
        for stage in self._plan.stages:
            if stage.keyed:
                for slot, names in self.of(stage).slots.items():
                    seats.sit(dict.fromkeys(names, slot))

    def story(
        self, tasks: Mapping[str, TaskChange], standbys: Standbys, time_ms: int
    ) -> tuple[Happening, ...]:
        """Return what happened to hosts since the last epoch, and by this one.

        Args:
            tasks: as the epoch leaves those that have run.
            standbys: as it leaves those that are others than before.
            time_ms: its clock.
        """
        if not self._away:
            return self.around.happened
        before, state = occupied(self._state.tasks, self._state.standbys), self._state
        after = occupied({**state.tasks, **tasks}, {**state.standbys, **standbys})
        emptied = sorted((self._away & before) - after)
        return (*self.around.happened, *(Happening(time_ms, What.EMPTY, h) for h in emptied))

    @property
    def counts(self) -> dict[str, int]:
        """What is counted of the epoch."""
        found = {MOVED: len(self.moves), LOST: self.lost, **self.around.missed}
        return {name: count for name, count in found.items() if count}


def occupied(
    tasks: Mapping[str, TaskState | TaskChange], standbys: Mapping[str, Sequence[Standby]]
) -> frozenset[str]:
    """Return the hosts that have tasks or standbys."""
    copies = (one.host for held in standbys.values() for one in held)
    return frozenset((*(task.host for task in tasks.values()), *copies))
