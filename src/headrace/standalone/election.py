"""Which process of a shared job drives it: decided from what the lease says, without any vote.

The lease is a file in the job's storage that the driver renews. The file system gives its age,
so clocks of hosts do not count. Safety is not here: a new driver takes a generation, and what older
ones do is refused. A lease only keeps two from trying at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.clock import Clock
from headrace.coordinator.job_storage import DriverLock
from headrace.coordinator.leader_lease import LeaderLease, LeaseHolder
from headrace.errors import NotOwnerError
from headrace.files import Files, is_alive, sole_user
from headrace.standalone.group import read_address


class ElectionStep(StrEnum):
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
class DriverView:
    """What a process sees of a job's driver.

    Args:
        holder: of the lease; ``None``: there is none.
        age_s: since it was renewed.
        is_dead: the holder's process is known to have ended.
        has_address: the holder has said where it can be joined.
        is_locked: some process of this host has the job's lock.
        locked_s: for how long this process has seen a lock without a lease, or no address.
    """

    holder: LeaseHolder | None = None
    age_s: float = 0.0
    is_dead: bool = False
    has_address: bool = False
    is_locked: bool = False
    locked_s: float = 0.0


def next_step(seen: DriverView, lease_s: float) -> ElectionStep:
    """Say what a process that does not drive does next.

    Args:
        seen: as things are now.
        lease_s: how long a driver that cannot be joined is waited for.
    """
    if seen.holder is None:
        if not seen.is_locked:
            return ElectionStep.STAND
        return ElectionStep.WAIT if seen.locked_s < lease_s else ElectionStep.GIVE_UP
    if seen.is_dead or seen.age_s > seen.holder.lasts_s:
        return ElectionStep.STAND
    if seen.has_address:
        return ElectionStep.FOLLOW
    return ElectionStep.WAIT if seen.locked_s < lease_s else ElectionStep.GIVE_UP


RENEWALS = 5
"""So often is a lease renewed in the time that it counts."""


class Candidate:
    """A process that may come to drive a job.

    Args:
        storage: of the job.
        job: its name.
        host: identity of this process's state directory.
        lease_s: how long a lease counts.
        files: the file system.
        clock: where time comes from.
    """

    def __init__(
        self, storage: Path, job: str, host: str, lease_s: float, files: Files, clock: Clock
    ) -> None:
        self._storage, self._job, self._lease_s = storage, job, lease_s
        self._files, self._clock = files, clock
        self.lease = LeaderLease(storage, job, host, files, clock, lease_s / RENEWALS, lease_s)
        self._locked_since: float | None = None

    def look(self) -> ElectionStep:
        """Say what this process does next."""
        holder, age = self.lease.holder()
        is_here = holder is not None and holder.machine == self.lease.mine.machine
        address = read_address(self._storage)
        has_address = (
            holder is not None and address is not None and address.process == holder.process
        )
        seen = DriverView(
            holder,
            age,
            is_dead=holder is not None and is_here and not is_alive(holder.process),
            has_address=has_address,
            is_locked=holder is None and self._is_locked(),
            locked_s=self._locked_s(has_address=has_address),
        )
        return next_step(seen, self._lease_s)

    def _is_locked(self) -> bool:
        try:
            DriverLock(self._storage, self._job, self._clock).release()
        except NotOwnerError:
            return True
        return False

    def _locked_s(self, *, has_address: bool) -> float:
        """Return for how long there has been a driver that cannot be joined, as one on Spark."""
        now = self._clock.monotonic()
        if has_address:
            self._locked_since = None
            return 0.0
        self._locked_since = now if self._locked_since is None else self._locked_since
        return now - self._locked_since

    def stand(self) -> tuple[DriverLock, str] | None:
        """Try to become the driver; ``None``: another process is faster.

        Returns:
            The lock, and the host of the driver before if that is frozen, not dead.

        1. Only one process of the host tries at a time. 2. Nobody may have come to drive since
        this one looked. 3. The lock is taken; from one that is frozen it is taken away. 4. The
        lease is.
        """
        with sole_user(self._storage / "election.lock") as is_alone:
            if not is_alone or self.look() is not ElectionStep.STAND:
                return None
            holder, _ = self.lease.holder()
            frozen = ""
            try:
                lock = DriverLock(self._storage, self._job, self._clock)
            except NotOwnerError:
                frozen = holder.host_id if holder is not None else ""
                lock = DriverLock(self._storage, self._job, self._clock, seize=True)
            try:
                self.lease.force()
            except OSError:
                lock.release()
                raise
            return lock, frozen
