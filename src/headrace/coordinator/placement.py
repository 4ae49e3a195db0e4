"""Which slot runs which task: a pure function of hosts, tasks and where they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """A slot that answered: its number, and the identity of its host's state directory."""

    number: int
    host: str


def place(
    tasks: Sequence[str], slots: Sequence[Slot], before: Mapping[str, str]
) -> dict[int, list[str]]:
    """Give each task a slot.

    A task stays on the host that holds its stores while that host has slots and no more than
    its fair share; new tasks and tasks of lost hosts go to the least loaded host. On a host,
    tasks keep their order and are dealt to its slots in even runs.

    Args:
        tasks: names, in a fixed order.
        slots: at least one.
        before: host of each task that was placed before.

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
    for task in homeless:
        host = min(taken, key=lambda name: (len(taken[name]) / len(by_host[name]), name))
        taken[host].append(task)
    order = {task: number for number, task in enumerate(tasks)}
    placed: dict[int, list[str]] = {}
    for host, numbers in by_host.items():
        mine = sorted(taken[host], key=order.__getitem__)
        for index, task in enumerate(mine):
            placed.setdefault(sorted(numbers)[index * len(numbers) // len(mine)], []).append(task)
    return placed
