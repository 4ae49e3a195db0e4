"""What manifests say of hosts: who they are, where standbys are, and what happened lately.

Pure functions. ``successors`` and ``place_standbys`` follow seed 002, allocation and failover.
Two things always hold (``violations``): a task and its standby are never on one host, and two
standbys of a task are never on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

MAX_LOST_HOSTS = 32
"""Hosts that were lost and are remembered."""

MAX_EVENTS = 32
"""The last things that happened, which are remembered."""

PLACEMENT = "placement."
MOVED, LOST = f"{PLACEMENT}moved", f"{PLACEMENT}lost"
"""What is counted: tasks that left a host that was there, and tasks that lost theirs."""

MISSED, STANDBYS_MISSED = f"{PLACEMENT}missed", f"{PLACEMENT}missed_standbys"
"""Tasks, and standbys, whose host or slots of it were gone, even if they came back in time."""


class HostState(msgspec.Struct, frozen=True, array_like=True):
    """A host, by the identity of its state directory.

    Args:
        address: or name, where it is known.
        slots: that it has; 0: it is lost.
        drained: no task is to be there.
        cordoned: nor one of any other job of the home.
    """

    address: str = ""
    slots: int = 0
    drained: bool = False
    cordoned: bool = False

    def named(self, host: str) -> str:
        """Return what people call a host with this identity."""
        return self.address or host


Hosts = dict[str, HostState]


class EventKind(StrEnum):
    """What can happen to the hosts of a job."""

    DRIVER = "driver"
    LOST = "lost"
    RETURNED = "returned"
    JOINED = "joined"
    ASKED = "asked"
    DRAIN = "drain"
    EMPTY = "empty"
    UNDRAIN = "undrain"
    RENEWED = "renewed"


class ClusterEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something that became of a host, or of the job on its hosts.

    Args:
        time_ms: wall clock, when the driver learnt of it.
        what: happened.
        host: identity; empty: none in particular.
        detail: in words.
    """

    time_ms: int
    what: EventKind
    host: str = ""
    detail: str = ""


def merge_hosts(hosts: Mapping[str, HostState], changes: Mapping[str, HostState]) -> Hosts:
    """Return the hosts after some changed; of lost ones that are not drained only the last stay."""
    if not changes:
        return dict(hosts)
    found = {name: host for name, host in hosts.items() if name not in changes} | dict(changes)
    lost = [name for name, host in found.items() if not host.slots and not host.drained]
    for name in lost[: max(0, len(lost) - MAX_LOST_HOSTS)]:
        del found[name]
    return found


def recent_events(
    events: Sequence[ClusterEvent], more: Sequence[ClusterEvent]
) -> tuple[ClusterEvent, ...]:
    """Return the last things that happened."""
    return (*events, *more)[-MAX_EVENTS:] if more else tuple(events)


FormerHosts = tuple[tuple[str, int], ...]
"""Hosts that a task has left, and the last epoch of its state that each may hold."""


def former_hosts(former: FormerHosts, before: str, epoch: int, now: str) -> FormerHosts:
    """Return the last two hosts that may still hold something of a task's state, newest first.

    Args:
        former: those so far.
        before: the host of the task.
        epoch: that its stores there hold.
        now: its host from now on.
    """
    if before == now or not before:
        return former
    others = (one for one in former if one[0] not in (before, now))
    return ((before, epoch), *others)[:2]


def drained_hosts(hosts: Mapping[str, HostState]) -> frozenset[str]:
    """Return the hosts that are to be empty."""
    return frozenset([name for name, host in hosts.items() if host.drained])


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
    # Those first that keep some: they have fewer hosts to choose from.
    for task, own in sorted(actives.items(), key=lambda one: -len(placed[one[0]])):
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
