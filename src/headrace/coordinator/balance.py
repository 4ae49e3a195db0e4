"""Which host each task of a stage goes to: a pure function of the hosts and of where tasks were.

A host is in balance when it has as many tasks as its slots have at the mean, rounded down or up:
then no two slots need differ by more than one task. Tasks that have to go somewhere go to the
least loaded host. Then hosts that are to be empty give theirs away, and those that have too many
give to those that have too few: never more moves than that takes, and only so many at a time.
Where that leaves a choice, it goes by what hosts have of other stages.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Move(NamedTuple):
    """A task that goes to another host although its own one has slots."""

    task: str
    source: str
    target: str


@dataclass
class Budget:
    """How many tasks with state may still move in an epoch, over all its stages."""

    left: int

    def take(self) -> bool:
        """Use one move up; False when none is left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass(frozen=True)
class Known:
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
class Spread:
    """The tasks of each host, what moved for it, and how many moves are still to come.

    ``waiting`` of those wait for a standby; the others, for an epoch with room for them.
    """

    tasks: dict[str, list[str]]
    moves: list[Move]
    pending: int = 0
    waiting: int = 0


def spread(
    tasks: Sequence[str],
    cores: Mapping[str, int],
    known: Known,
    *,
    away: Collection[str] = (),
    budget: Budget | None = None,
    others: Sequence[Mapping[str, int]] = (),
) -> Spread:
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
    return _Spreading(tasks, cores, known, away, budget, others).result()


class _Spreading:
    def __init__(
        self,
        tasks: Sequence[str],
        cores: Mapping[str, int],
        known: Known,
        away: Collection[str],
        budget: Budget | None,
        others: Sequence[Mapping[str, int]],
    ) -> None:
        self._known, self._cores, self._others = known, cores, others
        self._budget = budget or Budget(len(tasks))
        self._open = [host for host in cores if host not in away] or list(cores)
        slots = sum(cores[host] for host in self._open)
        few, many = len(tasks) // slots, -(-len(tasks) // slots)
        self._least = {host: few * cores[host] for host in self._open}
        self._most = {host: many * cores[host] for host in self._open}
        self._tasks: dict[str, list[str]] = {host: [] for host in cores}
        self._moves: list[Move] = []
        self._gone: set[str] = set()
        self._lightest: dict[str, list[str]] = {}
        self._pending = self._waiting = 0
        homeless: list[str] = []
        for task in tasks:
            stay = self._tasks.get(known.home.get(task, ""))
            (homeless if stay is None else stay).append(task)
        self._load = {host: len(mine) for host, mine in self._tasks.items()}
        self._order = {host: number for number, host in enumerate(cores)}
        self._house(homeless)
        self._empty()
        if not self._pending:
            self._level()

    def result(self) -> Spread:
        """Return what was found; tasks of a host are in no order."""
        for host, mine in self._tasks.items():
            if self._gone:
                self._tasks[host] = [task for task in mine if task not in self._gone]
        for move in self._moves:
            self._tasks[move.target].append(move.task)
        return Spread(self._tasks, self._moves, self._pending, self._waiting)

    def _house(self, homeless: Sequence[str]) -> None:
        """Give hosts to tasks that have none, the least loaded first."""
        if not homeless:
            return
        heap = self._heap()
        for task in homeless:
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
        self._moves.append(Move(task, source, target))
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
                task = self._lightest_of(source)
                if self._affordable(task):
                    self._move(task, source, target)
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

    def _lightest_of(self, source: str) -> str:
        """Take the task of a host that is lightest to move."""
        if source not in self._lightest:
            weight = self._known.weight
            self._lightest[source] = sorted(self._tasks[source], key=weight, reverse=True)
        while (task := self._lightest[source].pop()) in self._gone:
            continue
        return task
