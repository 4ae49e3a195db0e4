"""Which slot runs which task: a pure function of hosts, tasks and where they were.

``balance`` finds the host of each task; here it gets a slot of that host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.config.settings import PlacementSettings
from headrace.coordinator.balance import Budget, Known, Move, spread
from headrace.errors import InvalidInputError

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
    wait_s: float = 5.0
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
class Placement:
    """The tasks of each slot in the order given, without slots that have none.

    ``hosts`` has the host of each task; ``moves`` those that left a host that is there, and
    ``pending`` how many more are to come, of which ``waiting`` wait for a standby.
    """

    slots: dict[int, list[str]]
    hosts: dict[str, str]
    moves: list[Move] = field(default_factory=list)
    pending: int = 0
    waiting: int = 0


def place(
    tasks: Sequence[str],
    slots: Sequence[Slot],
    known: Known,
    *,
    seats: Mapping[str, int] | None = None,
    away: Collection[str] = (),
    budget: Budget | None = None,
    others: Sequence[Mapping[int, int]] = (),
) -> Placement:
    """Give each task a slot.

    A task stays on the host that holds its stores, and there in its slot, until the counts of
    tasks are in balance without it: new tasks and tasks of lost hosts go to the least loaded
    host, and no more tasks move than it takes (see ``spread``). On a host, tasks without a slot
    keep their order and are dealt in even runs. Where there is a choice of hosts or of slots,
    those get less that have more of other stages.

    Args:
        tasks: names, in a fixed order.
        slots: at least one.
        known: where tasks were, and what their state weighs.
        seats: the slot that each task was in last, where that is known.
        away: hosts that are to be empty.
        budget: of moves from hosts that are there; without, as many as it takes.
        others: how many tasks of other stages each slot has; the first decides, then the next.
    """
    by_host: dict[str, list[int]] = {}
    for slot in slots:
        by_host.setdefault(slot.host, []).append(slot.number)
    cores = {host: len(by_host[host]) for host in sorted(by_host)}
    on_hosts = [_by_host(other, by_host) for other in others]
    found = spread(tasks, cores, known, away=away, budget=budget, others=on_hosts)
    order = {task: number for number, task in enumerate(tasks)}
    placed: dict[int, list[str]] = {}
    for host, numbers in by_host.items():
        mine = sorted(found.tasks[host], key=order.__getitem__)
        placed.update(_seated(mine, sorted(numbers), seats or {}, others))
    hosts = {task: host for host, mine in found.tasks.items() for task in mine}
    return Placement(placed, hosts, found.moves, found.pending, found.waiting)


def _by_host(loads: Mapping[int, int], slots: Mapping[str, Sequence[int]]) -> dict[str, int]:
    return {host: sum(loads.get(n, 0) for n in numbers) for host, numbers in slots.items()}


def _seated(
    mine: Sequence[str],
    numbers: Sequence[int],
    seats: Mapping[str, int],
    others: Sequence[Mapping[int, int]],
) -> dict[int, list[str]]:
    """Deal the tasks of a host to its slots; one that has a slot keeps it while that is even."""
    if not mine:
        return {}
    few, more = divmod(len(mine), len(numbers))
    left = [task for task in mine if seats.get(task) not in numbers]
    if more or left:
        by_load = sorted(numbers, key=lambda n: [other.get(n, 0) for other in others])
    else:
        by_load = list(numbers)
    if len(left) == len(mine):
        return _dealt(mine, numbers, few, by_load[:more])
    kept: dict[int, list[str]] = {number: [] for number in by_load}
    for task in mine:
        number = seats.get(task)
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


def _dealt(
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


def check_one_host(slots: Sequence[Slot], host: str, job: str, durability: str) -> None:
    """Refuse slots of other hosts to a job whose storage is on the disk of one.

    Args:
        slots: all that answer.
        host: identity of the one with the storage.
        job: its name.
        durability: as it is set.

    Raises:
        InvalidInputError: some are elsewhere.
    """
    hosts = {slot.host for slot in slots}
    if hosts != {host}:
        raise InvalidInputError(
            f"state.durability is {durability}, which keeps the job's storage on the disk of the "
            f"driver's host, but its slots are on {len(hosts)} hosts or with another state.dir; "
            "use state.durability=epoch with a job_dir that all hosts reach, or a master whose "
            "slots are all here, such as local[2]",
            job=job,
        )
