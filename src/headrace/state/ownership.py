"""One owner at a time for a task's local directory, across processes and within one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from headrace.errors import UnavailableError

_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class StoreHeldError(UnavailableError):
    """Another process, which may be dying, has the store open. Try again in a moment."""

    code = "HR203"


class DirectoryLock:
    """A flock on ``LOCK`` in a directory; it ends with the process, however that ends.

    Args:
        directory: made when missing, for its user only.

    Raises:
        StoreHeldError: another owner holds it; a dying worker lets go soon, so try again.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise StoreHeldError(
                f"state directory {directory} is held by process {owner or 'unknown'}; "
                "one task has one owner: try again when it has ended",
                directory=str(directory),
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Let go; doing it twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _forget_in_child() -> None:
    # A child shares the parent's locks by its copies of the descriptors: closing these
    # leaves the parent's lock in place, keeping them would hold it beyond the parent's end.
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
