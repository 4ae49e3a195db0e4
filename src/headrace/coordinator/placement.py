"""Which host and which slot runs each task: pure functions of hosts, tasks and where they were.

A host is in balance when it has as many tasks as its slots have at the mean, rounded down or up:
then no two slots need differ by more than one task. Tasks that have to go somewhere go to the
least loaded host. Then hosts that are drained give theirs away, and those that have too many
give to those that have too few: never more moves than that takes, and only so many at a time.
Where that leaves a choice, it goes by what hosts have of other stages. ``assign_slots`` then
deals the tasks of each host to its slots.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace.config import PlacementSettings


class TaskMove(NamedTuple):
    """A task that goes to another host although its own one has slots."""

    task: str
    source: str
    target: str


@dataclass
class MoveBudget:
    """How many tasks with state may still move in an epoch, over all its stages."""

    left: int

    def take(self) -> bool:
        """Use one move up; False when none is left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass(frozen=True)
class StageTasks:
    """What is known of the tasks of a stage.

    Args:
        home: the host that each was on, or is to be looked for on; none or "": it is new.
        held: other hosts that hold some of a task's state, the furthest first.
        weight: what it costs to bring a task's state to a host without it; 0: it has none, and
            moves freely.
        unready: says that a task is not to leave a host that is drained yet, because its standby
            has not caught up.
        reach: how new the state of a task is that a host holds; the newest comes first.
    """

    home: Mapping[str, str]
    held: Mapping[str, Sequence[str]] = field(default_factory=dict)
    weight: Callable[[str], int] = lambda task: 1
    unready: Callable[[str], bool] = lambda task: False
    reach: Callable[[str, str], int] = lambda task, host: 0


@dataclass(frozen=True)
class HostAssignment:
    """The tasks of each host, what moved for it, and how many moves are still to come.

    ``waiting`` of those wait for a standby; the others, for an epoch with room for them.
    """

    tasks: dict[str, list[str]]
    moves: list[TaskMove]
    pending: int = 0
    waiting: int = 0


def assign_hosts(
    tasks: Sequence[str],
    cores: Mapping[str, int],
    known: StageTasks,
    *,
    away: Collection[str] = (),
    budget: MoveBudget | None = None,
    others: Sequence[Mapping[str, int]] = (),
) -> HostAssignment:
    """Give each task a host.

    Args:
        tasks: names, in a fixed order.
        cores: slots of each host, at least one; where hosts are alike, the first gets more.
        known: of the tasks.
        away: hosts that are to be empty; all of them count again where no other is left.
        budget: of moves; without, as many as it takes.
        others: tasks that each host has of other stages. Hosts with more of the first, then of
            the next, get less of this stage, and give more, where its balance leaves a choice.
    """
    return _HostAssigner(tasks, cores, known, away, budget, others).result()


class _HostAssigner:
    def __init__(
        self,
        tasks: Sequence[str],
        cores: Mapping[str, int],
        known: StageTasks,
        away: Collection[str],
        budget: MoveBudget | None,
        others: Sequence[Mapping[str, int]],
    ) -> None:
        self._known, self._cores, self._others = known, cores, others
        self._budget = budget or MoveBudget(len(tasks))
        self._open = [host for host in cores if host not in away] or list(cores)
        slots = sum(cores[host] for host in self._open)
        few, many = len(tasks) // slots, -(-len(tasks) // slots)
        self._least = {host: few * cores[host] for host in self._open}
        self._most = {host: many * cores[host] for host in self._open}
        self._tasks: dict[str, list[str]] = {host: [] for host in cores}
        self._moves: list[TaskMove] = []
        self._gone: set[str] = set()
        self._lightest: dict[str, list[str]] = {}
        self._pending = self._waiting = 0
        unplaced: list[str] = []
        for task in tasks:
            stay = self._tasks.get(known.home.get(task, ""))
            (unplaced if stay is None else stay).append(task)
        self._load = {host: len(mine) for host, mine in self._tasks.items()}
        self._order = {host: number for number, host in enumerate(cores)}
        self._house(unplaced)
        self._empty()
        if not self._pending:
            self._level()

    def result(self) -> HostAssignment:
        """Return what was found; tasks of a host are in no order."""
        for host, mine in self._tasks.items():
            if self._gone:
                self._tasks[host] = [task for task in mine if task not in self._gone]
        for move in self._moves:
            self._tasks[move.target].append(move.task)
        return HostAssignment(self._tasks, self._moves, self._pending, self._waiting)

    def _house(self, unplaced: Sequence[str]) -> None:
        """Give hosts to tasks that have none, the least loaded first."""
        if not unplaced:
            return
        heap = self._heap()
        for task in unplaced:
            host = self._holding(task) or self._least_loaded(heap)
            self._tasks[host].append(task)
            self._load[host] += 1

    def _heap(self) -> list[tuple[tuple[float, ...], str]]:
        found = [(self._place(host, self._load[host]), host) for host in self._open]
        heapq.heapify(found)
        return found

    def _place(self, host: str, load: int) -> tuple[float, ...]:
        """Return what hosts are chosen by for a task; the lowest gets it."""
        return (load // self._cores[host], *self._rank(host, load))

    def _rank(self, host: str, load: int, sign: int = 1) -> tuple[float, ...]:
        """Return how full a host is: by all stages, by this one, and then by its number."""
        cores = self._cores[host]
        every = [sign * (other.get(host, 0) + load) / cores for other in self._others]
        return (*every, sign * load / cores, sign * self._order[host])

    def _least_loaded(self, heap: list[tuple[tuple[float, ...], str]]) -> str:
        """Return the host with the lowest load, which is about to get one task more."""
        while True:
            place, host = heap[0]
            load = self._load[host]
            now = self._place(host, load)
            if now == place:
                heapq.heapreplace(heap, (self._place(host, load + 1), host))
                return host
            heapq.heapreplace(heap, (now, host))

    def _ratio(self, host: str) -> float:
        return self._load[host] / self._cores[host]

    def _holding(self, task: str) -> str | None:
        """Return a host with room that holds some of a task's state."""
        for host in self._known.held.get(task, ()):
            if self._load.get(host, 0) < self._most.get(host, 0):
                return host
        return None

    def _empty(self) -> None:
        """Have hosts that are to be empty give their tasks away."""
        closed = [host for host in self._cores if host not in self._least]
        if not any(self._load[host] for host in closed):
            return
        heap = self._heap()
        for host in closed:
            for task in self._tasks[host]:
                unready = self._known.unready(task)
                if unready or not self._affordable(task):
                    self._pending += 1
                    self._waiting += unready
                    continue
                held = (other for other in self._known.held.get(task, ()) if other in self._least)
                self._move(task, host, next(held, None) or self._least_loaded(heap))

    def _affordable(self, task: str) -> bool:
        return self._known.weight(task) == 0 or self._budget.take()

    def _move(self, task: str, source: str, target: str) -> None:
        self._moves.append(TaskMove(task, source, target))
        self._gone.add(task)
        self._load[source] -= 1
        self._load[target] += 1

    def _level(self) -> None:
        """Have hosts with too many tasks give to those with too few, as few as it takes."""
        over = sum(max(0, self._load[host] - self._most[host]) for host in self._open)
        under = sum(max(0, self._least[host] - self._load[host]) for host in self._open)
        if not over and not under:
            return
        load, least, most = self._load, self._least, self._most
        takes = {host: max(0, least[host] - load[host]) for host in self._open}
        spare = {host: max(0, load[host] - most[host]) for host in self._open}
        self._share(takes, over - under, most, 1)
        self._share(spare, under - over, least, -1)
        by_load = sorted(self._open, key=self._ratio)
        self._exchange([(host, takes[host]) for host in by_load if takes[host]], spare)

    def _share(
        self, shares: dict[str, int], count: int, upto: Mapping[str, int], sign: int
    ) -> None:
        """Have hosts take more, the emptiest first, or give more, the fullest first (sign -1)."""
        if count <= 0:
            return
        at = {host: self._load[host] + sign * share for host, share in shares.items()}
        able = [host for host in shares if sign * (upto[host] - at[host]) > 0]
        heap = [(self._rank(host, at[host], sign), host) for host in able]
        heapq.heapify(heap)
        for _ in range(count):
            host = heap[0][1]
            shares[host] += 1
            at[host] += sign
            if at[host] == upto[host]:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (self._rank(host, at[host], sign), host))

    def _exchange(self, wanted: list[tuple[str, int]], spare: dict[str, int]) -> None:
        """Fill places with what hosts can spare, with tasks whose state is there before others."""
        donors = [host for host in sorted(spare, key=self._ratio) if spare[host]]
        holding = self._held_by(donors)
        for target, count in wanted:
            left = count
            for task, source in holding.get(target, ()):
                if left and spare[source] and task not in self._gone and self._affordable(task):
                    self._move(task, source, target)
                    spare[source] -= 1
                    left -= 1
            while left:
                while not spare[donors[-1]]:
                    donors.pop()
                source = donors[-1]
                lightest = self._lightest_of(source)
                if lightest is not None and self._affordable(lightest):
                    self._move(lightest, source, target)
                else:
                    self._pending += 1
                spare[source] -= 1
                left -= 1

    def _held_by(self, donors: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
        """Return the tasks that may leave, by the hosts that hold some of their state."""
        found: dict[str, list[tuple[str, str]]] = {}
        if not self._known.held:
            return found
        for source in donors:
            for task in self._tasks[source]:
                for host in self._known.held.get(task, ()):
                    found.setdefault(host, []).append((task, source))
        for host, there in found.items():
            there.sort(key=lambda pair: self._known.reach(pair[0], host), reverse=True)
        return found

    def _lightest_of(self, source: str) -> str | None:
        """Take the task of a host that is lightest to move; none of those that just come to it."""
        if source not in self._lightest:
            weight = self._known.weight
            self._lightest[source] = sorted(self._tasks[source], key=weight, reverse=True)
        while self._lightest[source]:
            if (task := self._lightest[source].pop()) not in self._gone:
                return task
        return None


MAX_MOVES = 4


class Affinity(StrEnum):
    """What is done so that tasks run where their state is."""

    STRICT = "strict"
    """A host that is lost is waited for; then its tasks go elsewhere."""
    BEST_EFFORT = "best-effort"
    """Tasks of a lost host go elsewhere at once, and back when there is room again."""
    NONE = "none"
    """Tasks are dealt evenly, wherever they were."""


@dataclass(frozen=True)
class PlacementRules:
    """The settings of placement.

    Args:
        affinity: what is done so that tasks run where their state is.
        wait_s: how long a lost host is waited for; only with strict affinity.
        max_moves: tasks with state that may go to another host in one epoch although their own
            one is there.
    """

    affinity: Affinity = Affinity.STRICT
    wait_s: float = 10.0
    max_moves: int = MAX_MOVES

    @classmethod
    def of(cls, settings: PlacementSettings) -> PlacementRules:
        """Return the rules that settings say."""
        return cls(Affinity(settings.affinity), settings.wait_s, settings.max_moves)


@dataclass(frozen=True)
class Slot:
    """A slot that answered.

    Args:
        number: of the slot.
        host: identity of its host's state directory.
        address: or name of the host, where it is known.
    """

    number: int
    host: str
    address: str = ""


@dataclass(frozen=True)
class SlotAssignment:
    """The tasks of each slot in the order given, without slots that have none.

    ``hosts`` has the host of each task; ``moves`` those that left a host that is there, and
    ``pending`` how many more are to come, of which ``waiting`` wait for a standby.
    """

    slots: dict[int, list[str]]
    hosts: dict[str, str]
    moves: list[TaskMove] = field(default_factory=list)
    pending: int = 0
    waiting: int = 0


def assign_slots(
    tasks: Sequence[str],
    slots: Sequence[Slot],
    known: StageTasks,
    *,
    last_slots: Mapping[str, int] | None = None,
    away: Collection[str] = (),
    budget: MoveBudget | None = None,
    others: Sequence[Mapping[int, int]] = (),
) -> SlotAssignment:
    """Give each task a slot.

    A task stays on the host that holds its stores, and there in its slot, until the counts of
    tasks are in balance without it: new tasks and tasks of lost hosts go to the least loaded
    host, and no more tasks move than it takes (see ``assign_hosts``). On a host, tasks without a
    slot keep their order and are dealt in even runs. Where there is a choice of hosts or of
    slots, those get less that have more of other stages.

    Args:
        tasks: names, in a fixed order.
        slots: at least one.
        known: where tasks were, and what their state weighs.
        last_slots: the slot that each task was in last, where that is known.
        away: hosts that are to be empty.
        budget: of moves from hosts that are there; without, as many as it takes.
        others: how many tasks of other stages each slot has; the first decides, then the next.
    """
    by_host: dict[str, list[int]] = {}
    for slot in slots:
        by_host.setdefault(slot.host, []).append(slot.number)
    cores = {host: len(by_host[host]) for host in sorted(by_host)}
    on_hosts = [_by_host(other, by_host) for other in others]
    found = assign_hosts(tasks, cores, known, away=away, budget=budget, others=on_hosts)
    order = {task: number for number, task in enumerate(tasks)}
    placed: dict[int, list[str]] = {}
    for host, numbers in by_host.items():
        mine = sorted(found.tasks[host], key=order.__getitem__)
        placed.update(_sticky(mine, sorted(numbers), last_slots or {}, others))
    hosts = {task: host for host, mine in found.tasks.items() for task in mine}
    return SlotAssignment(placed, hosts, found.moves, found.pending, found.waiting)


def _by_host(loads: Mapping[int, int], slots: Mapping[str, Sequence[int]]) -> dict[str, int]:
    return {host: sum(loads.get(n, 0) for n in numbers) for host, numbers in slots.items()}


def _sticky(
    mine: Sequence[str],
    numbers: Sequence[int],
    last_slots: Mapping[str, int],
    others: Sequence[Mapping[int, int]],
) -> dict[int, list[str]]:
    """Deal the tasks of a host to its slots; one that has a slot keeps it while that is even."""
    if not mine:
        return {}
    few, more = divmod(len(mine), len(numbers))
    left = [task for task in mine if last_slots.get(task) not in numbers]
    if more or left:
        by_load = sorted(numbers, key=lambda n: [other.get(n, 0) for other in others])
    else:
        by_load = list(numbers)
    if len(left) == len(mine):
        return _in_runs(mine, numbers, few, by_load[:more])
    kept: dict[int, list[str]] = {number: [] for number in by_load}
    for task in mine:
        number = last_slots.get(task)
        if number not in kept:
            continue
        held = kept[number]
        if len(held) < few:
            held.append(task)
        elif len(held) == few and more:
            more -= 1
            held.append(task)
        else:
            left.append(task)
    for task in left:
        min(kept.values(), key=len).append(task)
    order = {task: at for at, task in enumerate(mine)}
    return {n: sorted(held, key=order.__getitem__) for n, held in kept.items() if held}


def _in_runs(
    mine: Sequence[str], numbers: Sequence[int], few: int, more: Collection[int]
) -> dict[int, list[str]]:
    """Deal tasks in runs: so many to each slot, and to some one more."""
    placed: dict[int, list[str]] = {}
    at = 0
    for number in numbers:
        end = at + few + (number in more)
        if end > at:
            placed[number] = list(mine[at:end])
        at = end
    return placed
