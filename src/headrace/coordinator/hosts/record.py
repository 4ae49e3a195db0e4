"""What manifests say of hosts: who they are, which are drained, and what became of them lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

MOST_LOST = 32
"""Hosts that were lost and are remembered."""

STORY = 32
"""The last things that happened, which are remembered."""

PLACEMENT = "placement."
MOVED, LOST = f"{PLACEMENT}moved", f"{PLACEMENT}lost"
"""What is counted: tasks that left a host that was there, and tasks that lost theirs."""

MISSED, STANDBYS_MISSED = f"{PLACEMENT}missed", f"{PLACEMENT}missed_standbys"
"""Tasks, and standbys, whose host or slots of it were gone, for good or back in time."""


class HostState(msgspec.Struct, frozen=True, array_like=True):
    """A host, by the identity of its state directory.

    Args:
        address: or name, where it is known.
        slots: that it has; 0: it is lost.
        drained: no task is to be there.
        everywhere: nor one of any other job of the home.
    """

    address: str = ""
    slots: int = 0
    drained: bool = False
    everywhere: bool = False

    def named(self, host: str) -> str:
        """Return what people call a host with this identity."""
        return self.address or host


Hosts = dict[str, HostState]


class What(StrEnum):
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


class Happening(msgspec.Struct, frozen=True, array_like=True):
    """Something that became of a host, or of the job on its hosts.

    Args:
        time_ms: wall clock, when the driver learnt of it.
        what: happened.
        host: identity; empty: none in particular.
        detail: in words.
    """

    time_ms: int
    what: What
    host: str = ""
    detail: str = ""


def folded(hosts: Mapping[str, HostState], changes: Mapping[str, HostState]) -> Hosts:
    """Return the hosts after some changed; of lost ones that are not drained only the last stay."""
    if not changes:
        return dict(hosts)
    found = {name: host for name, host in hosts.items() if name not in changes} | dict(changes)
    lost = [name for name, host in found.items() if not host.slots and not host.drained]
    for name in lost[: max(0, len(lost) - MOST_LOST)]:
        del found[name]
    return found


def told(story: Sequence[Happening], more: Sequence[Happening]) -> tuple[Happening, ...]:
    """Return the last things that happened."""
    return (*story, *more)[-STORY:] if more else tuple(story)


Former = tuple[tuple[str, int], ...]
"""Hosts that a task has left, and the last epoch of its state that each may hold."""


def former_hosts(former: Former, before: str, epoch: int, now: str, most: int = 2) -> Former:
    """Return the hosts that may still hold something of a task's state, the last one first.

    Args:
        former: those so far.
        before: the host of the task.
        epoch: that its stores there hold.
        now: its host from now on.
        most: how many are remembered.
    """
    if before == now or not before:
        return former
    others = (one for one in former if one[0] not in (before, now))
    return ((before, epoch), *others)[:most]


def away_hosts(hosts: Mapping[str, HostState]) -> frozenset[str]:
    """Return the hosts that are to be empty."""
    return frozenset(name for name, host in hosts.items() if host.drained)
