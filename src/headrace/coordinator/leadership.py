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

from headrace.clock import Clock, Deadline
from headrace.coordinator.commit_log import FileCommitLog, holder_text
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_events import JobEvent, JobEventFile
from headrace.coordinator.job_storage import DriverLock, JobContext
from headrace.coordinator.leader_lease import RENEWALS, LeaderLease, LeaseHolder
from headrace.coordinator.worker_host import host_identity
from headrace.errors import HeadraceError, NotOwnerError
from headrace.files import Files

RELEASE_S = 15.0
"""So long a driver that is fenced has to end its epoch and release the lock."""

LOOK_S = 1.0
POLL_S = 0.2


def take_leader_lock(
    root: Path,
    job: str,
    clock: Clock,
    files: Files,
    notify: Callable[[str], None],
    *,
    takes_over: bool,
    release_s: float | None = None,
) -> DriverLock:
    """Take the lock of a job.

    Args:
        root: the job's storage.
        job: its name.
        clock: for waiting.
        files: the file system.
        notify: called with a line when a driver is fenced.
        takes_over: fence the driver that has the lock, instead of being refused.
        release_s: how long that has to release it; ``RELEASE_S`` when left out.

    Raises:
        NotOwnerError: another process drives the job.
    """
    try:
        return DriverLock(root, job, clock)
    except NotOwnerError as error:
        if not takes_over:
            error.also = "with --takeover it is fenced, and this one drives"
            raise
    limit_s = RELEASE_S if release_s is None else release_s
    fence = _TakeoverFence(FileCommitLog(root, files), job, clock)
    who = fence.fenced
    said = f"job {job!r} is taken over from {who}, of generation {fence.before}"
    notify(f"{said}; it has {limit_s:.0f} s to stop")
    deadline = Deadline(clock, limit_s)
    while not deadline.expired:
        fence.check()
        with suppress(NotOwnerError):
            lock = DriverLock(root, job, clock)
            JobEventFile(root).append(JobEvent(clock.now_ms(), "takeover", said))
            return lock
        clock.sleep(POLL_S)
    fence.check()
    notify(f"{who} did not stop, so it may be frozen: its lock is taken away")
    lock = DriverLock(root, job, clock, seize=True)
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
        record: dict[str, str | int] = {"process": os.getpid(), "host": os.uname().nodename}
        record |= {"time_ms": self._clock.now_ms(), "takes_over": 1}
        return self._log.take_generation(record)

    def check(self) -> None:
        """Make sure that nobody came after this process; the driver itself is fenced again.

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


def keep_own_job(context: JobContext, control: JobControl) -> AbstractContextManager[None]:
    """Keep a job that this process drives alone; a copy in job_dir has a lease of its own.

    Args:
        context: of the job.
        control: stopped when the job is lost.
    """
    job, files, clock = context.job, context.files, context.clock
    where, lease = context.storages, None
    if where.copy is None:
        host = host_identity(context.settings.state_dir, clock, files)
        lasts_s = context.settings.job.lease_s
        lease = LeaderLease(where.storage, job, host, files, clock, lasts_s / RENEWALS, lasts_s)
    return keep_leadership(lease, where.storage, job, control, files)


@contextmanager
def keep_leadership(
    lease: LeaderLease | None, root: Path, job: str, control: JobControl, files: Files
) -> Iterator[None]:
    """Keep a job for a block, and stop when another driver has begun.

    Args:
        lease: in the storage; ``None`` where a copy in job_dir has one.
        root: the job's storage.
        job: its name.
        control: stopped when the job is lost.
        files: the file system.

    Raises:
        NotOwnerError: another driver had begun, and nothing else went wrong before.
    """

    def stop(lost: NotOwnerError) -> None:
        control.fenced.set()
        control.stop.set()

    if lease is not None:
        lease.force()
    with LeaseKeeper(lease, FileCommitLog(root, files), job, stop, LOOK_S) as keeper:
        yield
    if keeper.lost is not None:
        raise keeper.lost


def is_replaced(
    mine: LeaseHolder | None, seen: LeaseHolder | None, generation: int, newest: int
) -> bool:
    """Say whether a driver has lost the job: to a newer generation, or to the lease's holder.

    Args:
        mine: what this driver has written into the lease.
        seen: what is in it now.
        generation: of this driver; the newest of before, while it has none.
        newest: generation there is.
    """
    return newest > generation or (seen is not None and seen != mine)


class LeaseKeeper:
    """Renews the lease of a driver from a thread, and notices when another has the job.

    Args:
        lease: that this process holds; ``None`` where a copy in job_dir has one.
        log: of the job.
        job: its name.
        on_lost: called once, from the thread, with the error that the driver ends with.
        every_s: how often it looks.
        yields: whether a driver that finds another in its lease gives the job up, before that
            one takes a generation.
    """

    def __init__(
        self,
        lease: LeaderLease | None,
        log: FileCommitLog,
        job: str,
        on_lost: Callable[[NotOwnerError], None],
        every_s: float,
        *,
        yields: bool = False,
    ) -> None:
        self._lease, self._log, self._job, self._on_lost = lease, log, job, on_lost
        self._every_s, self._yields = every_s, yields
        self._known, _ = log.newest_generation()
        self._own = (os.getpid(), os.uname().nodename)
        self._mine = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="headrace-lease", daemon=True)
        self.lost: NotOwnerError | None = None

    def __enter__(self) -> LeaseKeeper:
        """Begin to renew it."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing, and give back a lease that is still held."""
        self._over.set()
        self._thread.join()
        if self._lease is not None and self.lost is None:
            with suppress(OSError):  # then it ends by itself, a while later
                self._lease.release()

    def _keep(self) -> None:
        while not self._over.wait(self._every_s):
            with suppress(OSError, HeadraceError):  # the next look may find better
                self.lost = self._look()
                if self.lost is not None:
                    self._on_lost(self.lost)
                    return
                if self._lease is not None:
                    self._lease.renew()

    def _look(self) -> NotOwnerError | None:
        """Return the error to stop with, when another driver has the job."""
        newest, taker = self._log.newest_generation()
        if _process(taker) == self._own:
            self._mine = self._known = newest
        mine = seen = None
        if self._lease is not None and self._yields:
            mine, (seen, _) = self._lease.mine, self._lease.holder()
        if not is_replaced(mine, seen, self._known, newest):
            return None
        newer = newest if newest > self._known else 0
        if newer:
            by = holder_text(taker)
        else:
            by = "" if seen is None else f"process {seen.process} on {seen.host}"
        return NotOwnerError.taken_over(
            f"job {self._job!r}", self._mine, newer=newer, holder=by, job=self._job
        )
