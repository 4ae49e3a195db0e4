"""A job that appends nothing while results are merged into it, whether it runs or not.

The merge lock ends with its process, so no job waits for one that died. A driver that sees it
begins no epoch; where its API cannot be asked, it is asked through the job's storage.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from headrace.bus import Fence
from headrace.clock import Clock
from headrace.closeable import Closeable
from headrace.config import Settings
from headrace.control.client import UnreachableError, reachable
from headrace.control.job_handle import HOLD, NOBODY_MERGES, RunningHandle
from headrace.coordinator.commands import CutSavepoint, HoldAnswer, HoldForMerge, RequestChannel
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.inspection.job_reader import part_readers
from headrace.coordinator.job_storage import DriverLock, JobContext
from headrace.coordinator.manifest_writer import fenced_writer, generation_of
from headrace.coordinator.operations.paired_jobs import has_merge_marker
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.files import Files, take_lock
from headrace.remote import is_remote

WAIT_S = 2.0
"""For those who look whether somebody has the lock, which takes no time."""

MERGE_POLL_S = 0.1


class MergeHolder(msgspec.Struct, frozen=True):
    """Who merges the run of another job into one."""

    other: str
    process: int
    host: str


class MergeLock(Closeable):
    """The right to merge into a job.

    Args:
        settings: where the job is.
        job: its name.
        other: whose results come.
        clock: for waiting.

    Raises:
        NotOwnerError: another process merges into it; says which.
    """

    def __init__(self, settings: Settings, job: str, other: str, clock: Clock) -> None:
        path = _lock_path(settings, job)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take_lock(self._file, clock, WAIT_S):
            held = _describe_holder(self._file)
            self.close()
            raise NotOwnerError(f"job {job!r} {_merging_text(held)}; wait for its end", job=job)
        os.ftruncate(self._file, 0)
        merger = MergeHolder(other, os.getpid(), os.uname().nodename)
        os.pwrite(self._file, msgspec.json.encode(merger), 0)

    def close(self) -> None:
        """Release it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def merge_holder(settings: Settings, job: str) -> MergeHolder | None:
    """Return who merges into a job now; ``None``: nobody."""
    try:
        file = os.open(_lock_path(settings, job), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _describe_holder(file) or MergeHolder("", 0, "")
    finally:
        os.close(file)
    return None


class MergeHold:
    """Lets a driver begin no epoch as long as somebody merges into its job.

    Args:
        settings: where the job is.
        job: its name.
        control: of the driver.
        notify: takes a line about a merge that ended before it was done.
    """

    def __init__(
        self, settings: Settings, job: str, control: JobControl, notify: Callable[[str], None]
    ) -> None:
        self._settings, self._job, self._control, self._notify = settings, job, control, notify
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> bool:
        """Hold the driver if somebody merges now, until that process is done or gone."""
        with self._lock:
            merger = merge_holder(self._settings, self._job)
            if merger is None:
                return False
            self._control.merging.set()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._wait, args=(merger,), name="headrace-merge-hold", daemon=True
                )
                self._thread.start()
            return True

    def _wait(self, merger: MergeHolder) -> None:
        while not self._over.wait(MERGE_POLL_S):
            with self._lock:
                try:
                    now = merge_holder(self._settings, self._job)
                except OSError:  # those who merge cannot be reached this time
                    continue
                if now is None:
                    self._control.merging.clear()
                    self._thread = None
                    break
                merger = now
        if not self._over.is_set() and has_merge_marker(self._settings, merger.other):
            self._notify(
                f"the merge of {merger.other} into job {self._job} ended before it was done, and "
                "the job continues; to complete it, give the command that began it again, in the "
                "same words"
            )

    def close(self) -> None:
        """Wait for nobody any more; the driver has ended, and the next one looks for itself."""
        self._over.set()
        self._control.merging.clear()


def _describe_holder(file: int) -> MergeHolder | None:
    try:
        return msgspec.json.decode(os.pread(file, 1000, 0), type=MergeHolder)
    except msgspec.DecodeError:  # taken this instant, and not signed yet
        return None


def _merging_text(merger: MergeHolder | None) -> str:
    if merger is None:
        return "is being merged into by another process"
    return f"is being merged with {merger.other!r} by process {merger.process} on {merger.host}"


def _lock_path(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "merge.lock"


POLL_S, POLL_REMOTE_S = 0.2, 1.0
"""How often a driver looks whether it is to be held; in an object storage, by a request."""


class HoldResponder:
    """Looks for who asks that a driver be held, and answers.

    Args:
        storage: of the job.
        look: holds the driver if somebody merges, and says whether somebody does.
        files: the file system.
        clock: for names.
    """

    def __init__(self, storage: Path, look: Callable[[], bool], files: Files, clock: Clock) -> None:
        self._look, self._every_s = look, POLL_REMOTE_S if is_remote(storage) else POLL_S
        self._requests = RequestChannel(storage, files, clock, HoldForMerge)

    def run(self, over: threading.Event) -> None:
        """Look until it is over."""
        while not over.wait(self._every_s):
            with suppress(OSError):  # the disk is full, or away: the caller waits
                request = self._requests.pending()
                if request is not None:
                    answer = HoldAnswer(self._look(), os.uname().nodename)
                    self._requests.answer(request, answer)


def request_hold(context: JobContext, wait_s: float) -> None:
    """Let a running driver look at the lock of merges, which this process has.

    Args:
        context: of the job.
        wait_s: for the driver to answer.

    Raises:
        InvalidInputError: it does not see the lock, so it would not be still.
        UnavailableError: it does not answer.
    """
    client = reachable(context.settings, context.job)
    if client is not None:
        try:
            HOLD.ask(client)
        except UnreachableError:
            pass
        except InvalidInputError as error:
            if NOBODY_MERGES not in error.message:
                raise
            raise _unseen(context.job, client.place.host) from error
        else:
            return
    channel = RequestChannel(context.storage, context.files, context.clock, HoldForMerge)
    answer = channel.ask(HoldForMerge(), wait_s)
    if not answer.is_held:
        raise _unseen(context.job, answer.host)


def _unseen(job: str, host: str) -> InvalidInputError:
    return InvalidInputError(
        f"the driver of job {job!r}, on host {host}, does not see that this process is about to "
        "merge, for their hosts share no locks of files: merge on that host, or stop the job first",
        job=job,
    )


@contextmanager
def quiesced(context: JobContext, other: str, wait_s: float) -> Iterator[Fence]:
    """Let a job have all of its outputs out, and send none, for a block.

    A running driver begins no epoch as long as this process holds the lock of merges, which ends
    with it: killed in the block, it leaves nothing behind.

    Args:
        context: of the job.
        other: whose results come; shown to those who ask why the job is still.
        wait_s: for the epoch under way.

    Yields:
        What is to be named in what is appended for the job meanwhile: once another driver has
        begun, the bus refuses it.

    Raises:
        InvalidInputError: there is no such job, or its driver does not see the lock.
        NotOwnerError: another process merges into it.
        UnavailableError: the driver does not answer.
    """
    job, clock = context.job, context.clock
    readers = part_readers(context.settings, job)
    with MergeLock(context.settings, job, other, clock):
        try:
            lock = DriverLock(context.storage, job, clock)
        except NotOwnerError:
            request_hold(context, wait_s)
            parts = {reader.root: reader.state() for reader in readers}
            handle = RunningHandle(context.settings, job, parts, context.files, clock)
            handle.ask(CutSavepoint(still=True), wait_s)
            yield Fence(job, readers[0].log.newest_generation()[0])
            return
        with lock:
            fences = []
            group = generation_of(context, readers[0].root)
            for reader in readers:
                with fenced_writer(context, reader.root, group) as (writer, publish):
                    publish()
                    fences.append(writer.fence)
            yield fences[0]
