"""Who merges into a job: a lock that ends with its process, so no job waits for one that died."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.bus.locks import take_lock
from headrace.clock import Clock
from headrace.closing import Closing
from headrace.config import Settings
from headrace.coordinator.loop import Control
from headrace.coordinator.reprocessing.unmerged import is_noted
from headrace.errors import NotOwnerError

WAIT_S = 2.0
"""For those who look whether somebody has the lock, which takes no time."""

POLL_S = 0.1


class Merger(msgspec.Struct, frozen=True):
    """Who merges the run of another job into one."""

    other: str
    process: int
    host: str


class MergeLock(Closing):
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
        path = _path(settings, job)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take_lock(self._file, clock, WAIT_S):
            held = _told(self._file)
            self.close()
            raise NotOwnerError(f"job {job!r} {_words(held)}; wait for its end", job=job)
        os.ftruncate(self._file, 0)
        merger = Merger(other, os.getpid(), os.uname().nodename)
        os.pwrite(self._file, msgspec.json.encode(merger), 0)

    def close(self) -> None:
        """Let go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def merger_of(settings: Settings, job: str) -> Merger | None:
    """Return who merges into a job now; ``None``: nobody."""
    try:
        file = os.open(_path(settings, job), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _told(file) or Merger("", 0, "")
    finally:
        os.close(file)
    return None


class MergeHold:
    """Lets a driver begin no epoch as long as somebody merges into its job.

    Args:
        settings: where the job is.
        job: its name.
        control: of the driver.
        tell: takes a line about a merge that ended before it was done.
    """

    def __init__(
        self, settings: Settings, job: str, control: Control, tell: Callable[[str], None]
    ) -> None:
        self._settings, self._job, self._control, self._tell = settings, job, control, tell
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> bool:
        """Hold the driver if somebody merges now, until that process is done or gone."""
        with self._lock:
            merger = merger_of(self._settings, self._job)
            if merger is None:
                return False
            self._control.merging.set()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._wait, args=(merger,), name="headrace-merge-hold", daemon=True
                )
                self._thread.start()
            return True

    def _wait(self, merger: Merger) -> None:
        while not self._over.wait(POLL_S):
            with self._lock:
                try:
                    now = merger_of(self._settings, self._job)
                except OSError:  # who merges cannot be told this time
                    continue
                if now is None:
                    self._control.merging.clear()
                    self._thread = None
                    break
                merger = now
        if not self._over.is_set() and is_noted(self._settings, merger.other):
            self._tell(
                f"the merge of {merger.other} into job {self._job} ended before it was done, and "
                "the job goes on; to complete it, give the command that began it again, in the "
                "same words"
            )

    def close(self) -> None:
        """Wait for nobody any more; the driver has ended, and the next one looks for itself."""
        self._over.set()
        self._control.merging.clear()


def _told(file: int) -> Merger | None:
    try:
        return msgspec.json.decode(os.pread(file, 1000, 0), type=Merger)
    except msgspec.DecodeError:  # taken this instant, and not signed yet
        return None


def _words(merger: Merger | None) -> str:
    if merger is None:
        return "is being merged into by another process"
    return f"is being merged with {merger.other!r} by process {merger.process} on {merger.host}"


def _path(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "merge.lock"
