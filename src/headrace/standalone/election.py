"""Which process of a job drives it: decided from what the lease says, without any vote.

The lease is a file in the job's storage that the driver renews. Its age is told by the file
system, so clocks of hosts do not count. Safety is not here: whoever drives takes a generation,
and what older ones do is refused. A lease only keeps two from trying at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.coordinator.backup.lease import Holder


class Move(StrEnum):
    """What a process does next."""

    FOLLOW = "follow"
    """Somebody drives: join it."""
    STAND = "stand"
    """Nobody does: try to drive."""
    WAIT = "wait"
    """Somebody is about to, or somebody who may be dead has not run out of time: look again."""
    GIVE_UP = "give up"
    """A driver that takes nobody in has the job."""


@dataclass(frozen=True)
class Seen:
    """What a process sees of a job's driver.

    Args:
        holder: of the lease; ``None``: there is none.
        age_s: since it was renewed.
        is_dead: the holder's process is known to have ended.
        has_address: the holder has said where it can be joined.
        is_locked: some process of this host has the job's lock.
        locked_s: for how long this process has seen a lock without a lease, or no address.
    """

    holder: Holder | None = None
    age_s: float = 0.0
    is_dead: bool = False
    has_address: bool = False
    is_locked: bool = False
    locked_s: float = 0.0


def next_move(seen: Seen, lease_s: float) -> Move:
    """Say what a process that does not drive does next.

    Args:
        seen: as things are now.
        lease_s: how long a driver that cannot be joined is waited for.
    """
    if seen.holder is None:
        if not seen.is_locked:
            return Move.STAND
        return Move.WAIT if seen.locked_s < lease_s else Move.GIVE_UP
    if seen.is_dead or seen.age_s > seen.holder.lasts_s:
        return Move.STAND
    if seen.has_address:
        return Move.FOLLOW
    return Move.WAIT if seen.locked_s < lease_s else Move.GIVE_UP


def is_deposed(mine: Holder, seen: Holder | None, generation: int, newest: int) -> bool:
    """Say whether a driver has lost the job: to a newer generation, or to who holds the lease.

    Args:
        mine: what this driver has written into the lease.
        seen: what is in it now.
        generation: of this driver; 0: none yet.
        newest: generation there is.
    """
    if generation and newest > generation:
        return True
    return seen is not None and seen != mine
