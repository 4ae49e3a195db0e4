"""Which slot runs which task: a pure function of hosts, tasks and where they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import InvalidInputError

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Slot:
    """A slot that answered: its number, and the identity of its host's state directory."""

    number: int
    host: str


def place(
    tasks: Sequence[str], slots: Sequence[Slot], before: Mapping[str, str], turn: int = 0
) -> dict[int, list[str]]:
    """Give each task a slot.

    A task stays on the host that holds its stores while that host has slots and no more than
    its fair share; new tasks and tasks of lost hosts go to the least loaded host. On a host,
    tasks keep their order and are dealt to its slots in even runs.

    Args:
        tasks: names, in a fixed order.
        slots: at least one.
        before: host of each task that was placed before.
        turn: where dealing begins; another for each stage, so that small ones spread.

    Returns:
        The tasks of each slot, in the order given; slots without tasks are left out.
    """
    by_host: dict[str, list[int]] = {}
    for slot in slots:
        by_host.setdefault(slot.host, []).append(slot.number)
    room = {host: -(-len(tasks) * len(numbers) // len(slots)) for host, numbers in by_host.items()}
    taken: dict[str, list[str]] = {host: [] for host in by_host}
    homeless = []
    for task in tasks:
        host = before.get(task, "")
        if host in taken and len(taken[host]) < room[host]:
            taken[host].append(task)
        else:
            homeless.append(task)
    hosts = _turned(sorted(taken), turn)
    for task in homeless:
        host = min(hosts, key=lambda name: len(taken[name]) / len(by_host[name]))
        taken[host].append(task)
    order = {task: number for number, task in enumerate(tasks)}
    placed: dict[int, list[str]] = {}
    for host, numbers in by_host.items():
        mine = sorted(taken[host], key=order.__getitem__)
        order_of_slots = _turned(sorted(numbers), turn // len(by_host))
        for index, task in enumerate(mine):
            slot_number = order_of_slots[index * len(numbers) // len(mine)]
            placed.setdefault(slot_number, []).append(task)
    return placed


def _turned(items: list[_Item], turn: int) -> list[_Item]:
    at = turn % len(items)
    return items[at:] + items[:at]


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
