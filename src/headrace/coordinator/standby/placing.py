"""Where the standbys of tasks are, and which of them takes over: pure functions of placements.

Source: seed 002, allocation and failover. Two things always hold (``violations``): a task and its
standby are never on one host, and two standbys of a task are never on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

STANDBY = "standby."
ACTIVE_LOST, STANDBY_LOST = "standby.active_lost", "standby.lost"
FAILOVER, NO_FAILOVER = "standby.failover", "standby.no_failover"
"""What is counted: hosts lost under tasks and under standbys; tasks that went to a standby's host,
and those that found none."""

FOLLOWED = "follow."
FOLLOWED_BYTES, FOLLOWED_MS = "follow.bytes.", "follow.ms."
"""With the name of a stage: what its standbys have read, and how long they worked."""


class Standby(msgspec.Struct, frozen=True, array_like=True):
    """A copy of a task's stores on another host, and the committed position that it holds.

    ``epoch`` -1: none yet.
    """

    host: str
    epoch: int = -1
    attempt: str = ""


Standbys = dict[str, tuple[Standby, ...]]
"""By "stage/task", the best one first."""


def successors(
    homes: Mapping[str, str], standbys: Mapping[str, Sequence[Standby]], hosts: Collection[str]
) -> dict[str, str]:
    """Return the host that each task's stores are to be looked for on.

    A task whose host has gone is at home where its furthest standby is.

    Args:
        homes: the host of each task by the last epoch.
        standbys: of each task.
        hosts: those that have slots.

    Returns:
        The hosts of ``homes``, others for tasks that fail over.
    """
    found = dict(homes)
    for task, home in homes.items():
        if not home or home in hosts:
            continue
        able = [s for s in standbys.get(task, ()) if s.host in hosts and s.epoch >= 0]
        if able:
            found[task] = max(able, key=lambda standby: standby.epoch).host
    return found


def place_standbys(
    actives: Mapping[str, Collection[str]],
    hosts: Iterable[str],
    before: Mapping[str, Sequence[Standby]],
    copies: int,
) -> Standbys:
    """Give each task its standbys.

    One stays where it is while its host has slots, is none of the task's own and has no more
    than its share. Others go where fewest standbys are of tasks of the same host, so that the
    tasks of a host that is lost go to as many others as there are, and then where fewest are.

    Args:
        actives: the hosts that a task may be running on: where it was, and where it is placed.
        hosts: those that have slots.
        before: the standbys of the last epoch.
        copies: how many each task is to have; it has fewer where there are not enough hosts.
    """
    every = sorted(set(hosts))
    most = -(-len(actives) * copies // max(1, len(every)))
    load: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    placed: Standbys = {}
    tasks = Counter(min(own) for own in actives.values() if len(own) == 1)
    for task, own in actives.items():
        home = min(own, default="")
        # Beyond this, the host of the standbys has no room for all tasks of the one that is lost.
        alike = len(actives)
        if len(own) == 1:
            alike = -(-tasks[home] * copies // max(1, len(every) - 1))
        stay = [
            standby
            for standby in before.get(task, ())
            if standby.host in every
            and standby.host not in own
            and load[standby.host] < most
            and pairs[home, standby.host] < alike
        ][:copies]
        placed[task] = tuple(stay)
        for standby in stay:
            load[standby.host] += 1
            pairs.update((home, standby.host) for home in own)
    for task, own in actives.items():
        while len(placed[task]) < copies:
            taken = {standby.host for standby in placed[task]} | set(own)
            free = [host for host in every if host not in taken]
            if not free:
                break
            home = min(own, default="")
            chosen = min(free, key=lambda host: (pairs[home, host], load[host], host))
            load[chosen] += 1
            pairs.update((home, chosen) for home in own)
            held = next((s for s in before.get(task, ()) if s.host == chosen), Standby(chosen))
            placed[task] = (*placed[task], held)
    return {task: found for task, found in placed.items() if found}


def violations(homes: Mapping[str, str], standbys: Mapping[str, Sequence[Standby]]) -> list[str]:
    """Say what must never be: a standby beside its task, or beside another of it."""
    wrong = []
    for task, found in standbys.items():
        hosts = [standby.host for standby in found]
        if homes.get(task) in hosts:
            wrong.append(f"task {task} and its standby are both on host {homes[task]}")
        if len(set(hosts)) < len(hosts):
            wrong.append(f"two standbys of task {task} are on one host: {sorted(hosts)}")
    return wrong
