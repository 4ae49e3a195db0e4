"""How a process of a shared job comes to drive it, keeps that, and notices that it has lost it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.clock import Clock
from headrace.coordinator.backup.lease import Lease
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.storage import DriverLock, is_alive
from headrace.errors import HeadraceError, NotOwnerError
from headrace.files import Files
from headrace.standalone.election import Move, Seen, is_deposed, next_move
from headrace.standalone.places import read_address

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
        self.lease = Lease(storage, job, host, files, clock, lease_s / RENEWALS, lease_s)
        self._locked_since: float | None = None

    def look(self) -> Move:
        """Say what this process does next."""
        holder, age = self.lease.holder()
        is_here = holder is not None and holder.machine == self.lease.mine.machine
        address = read_address(self._storage)
        has_address = (
            holder is not None and address is not None and address.process == holder.process
        )
        seen = Seen(
            holder,
            age,
            is_dead=holder is not None and is_here and not is_alive(holder.process),
            has_address=has_address,
            is_locked=holder is None and self._is_locked(),
            locked_s=self._locked_s(has_address=has_address),
        )
        return next_move(seen, self._lease_s)

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
        with _alone(self._storage / "election.lock") as is_alone:
            if not is_alone or self.look() is not Move.STAND:
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


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


class Keeper:
    """Renews the lease of a driver from a thread, and tells when it has lost the job.

    Args:
        lease: of this process, which it holds.
        storage: of the job.
        generation: returns that of the driver; 0: none yet.
        on_lost: called once, from the thread.
        files: the file system.
        clock: where time comes from.
        every_s: how often it looks.
    """

    def __init__(
        self,
        lease: Lease,
        storage: Path,
        generation: Callable[[], int],
        on_lost: Callable[[], None],
        files: Files,
        clock: Clock,
        every_s: float,
    ) -> None:
        self._lease, self._generation, self._on_lost = lease, generation, on_lost
        self._log, self._every_s = FileCommitLog(storage, files, clock), every_s
        self._over = threading.Event()
        self.has_lost = False
        self._thread = threading.Thread(target=self._keep, name="headrace-lease", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._over.wait(self._every_s):
            with suppress(OSError, HeadraceError):  # the next look may find better
                newest, _ = self._log.newest_generation()
                holder, _ = self._lease.holder()
                if is_deposed(self._lease.mine, holder, self._generation(), newest):
                    self.has_lost = True
                    self._on_lost()
                    return
                self._lease.renew()

    def close(self) -> None:
        """Keep it no longer; one that is still held is given back."""
        self._over.set()
        self._thread.join()
        if not self.has_lost:
            with suppress(OSError):
                self._lease.release()
