"""How one process comes to drive a job, keeps that, and notices that another has taken over.

1. The lock of the host is taken. Where another process has it, that one is named, and that is
all; but for a takeover: 2. a generation is taken, which refuses whatever the driver before still
commits, and which it finds by itself within a second or two, and releases the lock. 3. From one
that does not, as one that is frozen, the lock is taken away. 4. The lease in the storage is
renewed, so that drivers of hosts where the lock is not seen are refused, too; by the same thread
the newest generation is looked at.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from headrace.clock import Clock, Deadline
from headrace.config import Settings
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_events import JobEvent, JobEventFile
from headrace.coordinator.job_storage import job_storages
from headrace.coordinator.leader_lease import LeaderLease
from headrace.coordinator.manifest_writer import holder_text
from headrace.coordinator.worker_host import host_identity
from headrace.errors import HeadraceError, NotOwnerError
from headrace.files import Files

RELEASE_S = 15.0
"""So long a driver that is fenced has to end its epoch and let go of the lock."""

LOOK_S = 1.0
POLL_S = 0.2


class LeaderLock(Protocol):
    """A lock on driving a job, held from its making on."""

    def release(self) -> None:
        """Let go of it."""
        ...


class LeaderLockFactory(Protocol):
    """Makes a lock, or is refused."""

    def __call__(self, root: Path, job: str, clock: Clock, *, seize: bool = False) -> LeaderLock:
        """Take the lock; with ``seize`` from whoever has it."""
        ...


@contextmanager
def hold_leader_lock(
    locking: LeaderLockFactory,
    root: Path,
    job: str,
    clock: Clock,
    files: Files,
    tell: Callable[[str], None],
    *,
    takes_over: bool,
) -> Iterator[None]:
    """Hold the lock of a job for a block.

    Args:
        locking: makes the lock.
        root: the job's storage.
        job: its name.
        clock: for waiting.
        files: the file system.
        tell: called with a line when a driver is fenced.
        takes_over: fence the driver that has the lock, instead of being refused.

    Raises:
        NotOwnerError: another process drives the job.
    """
    lock = _take(locking, root, job, clock, files, tell, takes_over=takes_over)
    try:
        yield
    finally:
        lock.release()


def _take(
    locking: LeaderLockFactory,
    root: Path,
    job: str,
    clock: Clock,
    files: Files,
    tell: Callable[[str], None],
    *,
    takes_over: bool,
) -> LeaderLock:
    try:
        return locking(root, job, clock)
    except NotOwnerError as error:
        if not takes_over:
            error.also = "with --takeover it is fenced, and this one drives"
            raise
    fence = _TakeoverFence(FileCommitLog(root, files, clock), job, clock)
    who = fence.fenced
    said = f"job {job!r} is taken over from {who}, of generation {fence.before}"
    tell(f"{said}; it has {RELEASE_S:.0f} s to stop")
    deadline = Deadline(clock, RELEASE_S)
    while not deadline.expired:
        fence.check()
        with suppress(NotOwnerError):
            lock = locking(root, job, clock)
            JobEventFile(root).append(JobEvent(clock.now_ms(), "takeover", said))
            return lock
        clock.sleep(POLL_S)
    fence.check()
    tell(f"{who} did not stop, so it may be frozen: its lock is taken away")
    lock = locking(root, job, clock, seize=True)
    JobEventFile(root).append(JobEvent(clock.now_ms(), "takeover", f"{said}, which did not stop"))
    return lock


class _TakeoverFence:
    """A generation that keeps the driver of a job from committing, until this process drives.

    Of several processes that take a job over at the same time the last one gets it.

    Args:
        log: of the job.
        job: its name.
        clock: time.
    """

    def __init__(self, log: FileCommitLog, job: str, clock: Clock) -> None:
        self._log, self._job, self._clock = log, job, clock
        self.before, holder = log.newest_generation()
        self._own, self._fenced = (os.getpid(), os.uname().nodename), _process(holder)
        self.fenced = f"process {holder.get('process', '?')} on {holder.get('host', '?')}"
        if holder.get("takes_over"):
            self.fenced += ", which was about to take it over itself"
        self._mine = self._take()

    def _take(self) -> int:
        told: dict[str, str | int] = {"process": os.getpid(), "host": os.uname().nodename}
        told |= {"time_ms": self._clock.now_ms(), "takes_over": 1}
        return self._log.take_generation(told)

    def check(self) -> None:
        """Make sure that nobody came after this process; the driver itself is fenced anew.

        Raises:
            NotOwnerError: another process takes the job over, too, and came later.
        """
        newest, holder = self._log.newest_generation()
        if newest <= self._mine:
            return
        if _process(holder) not in (self._fenced, self._own):
            raise NotOwnerError(
                f"process {holder.get('process')} on {holder.get('host')} takes job "
                f"{self._job!r} over at the same time, and came later, so it drives: headrace "
                "jobs ls shows who runs it",
                job=self._job,
            )
        self._mine = self._take()  # it had just begun, and took one after that which fences it


def _process(holder: Mapping[str, str | int]) -> tuple[object, object]:
    return holder.get("process"), holder.get("host")


def keep_own_job(
    settings: Settings, job: str, control: JobControl, clock: Clock, files: Files
) -> AbstractContextManager[None]:
    """Keep a job that this process drives alone; a copy in job_dir has a lease of its own.

    Args:
        settings: of the run.
        job: its name.
        control: told to stop when the job is lost.
        clock: for names.
        files: the file system.
    """
    where, lease = job_storages(settings, job), None
    if where.copy is None:
        host = host_identity(settings.state_dir, clock, files)
        lease = LeaderLease(where.storage, job, host, files, clock)
    return keep_leadership(lease, where.storage, job, control, clock, files)


@contextmanager
def keep_leadership(
    lease: LeaderLease | None, root: Path, job: str, control: JobControl, clock: Clock, files: Files
) -> Iterator[None]:
    """Keep a job for a block, and stop when another driver has begun.

    Args:
        lease: in the storage; ``None`` where a copy in job_dir has one.
        root: the job's storage.
        job: its name.
        control: told to stop when the job is lost.
        clock: for names.
        files: the file system.

    Raises:
        NotOwnerError: another driver had begun, and nothing else went wrong before.
    """
    keeper = _LeaseKeeper(lease, root, job, control, clock, files)
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()
    if keeper.lost is not None:
        raise keeper.lost


class _LeaseKeeper:
    """Renews a lease and looks at generations, from a thread."""

    def __init__(
        self,
        lease: LeaderLease | None,
        root: Path,
        job: str,
        control: JobControl,
        clock: Clock,
        files: Files,
    ) -> None:
        self._lease, self._job, self._control = lease, job, control
        self._log = FileCommitLog(root, files, clock)
        self._first, _ = self._log.newest_generation()
        self._own = (os.getpid(), os.uname().nodename)
        self._own_number = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="headrace-tenure", daemon=True)
        self.lost: NotOwnerError | None = None

    def start(self) -> None:
        if self._lease is not None:
            self._lease.force()
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        if self._lease is not None and self.lost is None:
            with suppress(OSError):  # then it ends by itself, a while later
                self._lease.release()

    def _keep(self) -> None:
        while not self._over.wait(LOOK_S):
            with suppress(OSError, HeadraceError):  # the next look may find better
                number, holder = self._log.newest_generation()
                own = _process(holder) == self._own
                if own:
                    self._own_number = number
                elif number > self._first:
                    by, job = holder_text(holder), self._job
                    self.lost = NotOwnerError.taken_over(
                        f"job {job!r}", self._own_number, newer=number, holder=by, job=job
                    )
                    self._control.fenced.set()
                    self._control.stop.set()
                    return
                if self._lease is not None:
                    self._lease.renew()
