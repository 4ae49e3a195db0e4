"""One owner at a time for a task's local directory, across processes and within one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path
from typing import NamedTuple

from headrace.errors import NotOwnerError, UnavailableError

MARK = "owner-"
_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class StoreHeldError(UnavailableError):
    """Another process, which may be dying, has the store open. Try again in a moment."""

    code = "HR203"
    move = "try again in a moment; headrace jobs ls tells who runs the job"


class Owner(NamedTuple):
    """For whom a directory is opened: the job, by the lineage it began with, and a generation."""

    origin: str
    generation: int

    @property
    def mark(self) -> str:
        """The name of the file that tells of it."""
        return f"{MARK}{self.generation:08d}-{self.origin}"


class DirectoryLock:
    """A flock on ``LOCK`` in a directory; it ends with the process, however that ends.

    An owner leaves a mark with its generation, also where the directory is held by another:
    who is older and still alive finds it before its next write, and lets go.

    Args:
        directory: made when missing, for its user only.
        owner: for whom; none for what has no driver.

    Raises:
        StoreHeldError: another owner holds it; a dying worker lets go soon, so try again.
        NotOwnerError: a newer generation has taken it.
    """

    def __init__(self, directory: Path, owner: Owner | None = None) -> None:
        self._directory, self._owner = directory, owner
        self._descriptor = _locked(directory, owner)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)
        try:
            self.own(owner)
        except BaseException:
            self.release()
            raise

    def own(self, owner: Owner | None) -> None:
        """Go on for an owner, and make sure that no newer one has taken the directory.

        Raises:
            NotOwnerError: one has; let go, and write nothing more.
        """
        if owner is None:
            return
        newest = 0
        others = []
        for name in os.listdir(self._directory):
            if not name.startswith(MARK):
                continue
            number, _, origin = name.removeprefix(MARK).partition("-")
            if origin == owner.origin:
                newest = max(newest, int(number))
            if name != owner.mark:
                others.append(name)
        if newest > owner.generation:
            raise NotOwnerError(
                f"state directory {self._directory} was taken by generation {newest} of its job; "
                f"this is generation {owner.generation} and stops",
                directory=str(self._directory),
            )
        if newest < owner.generation:
            (self._directory / owner.mark).touch()
        for name in others:
            (self._directory / name).unlink(missing_ok=True)

    def release(self) -> None:
        """Let go; doing it twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _locked(directory: Path, owner: Owner | None) -> int:
    """Return a descriptor of the lock file that is in the directory now, locked."""
    while True:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = directory / "LOCK"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # collected since it was made
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            if owner is not None:
                (directory / owner.mark).touch()
            raise StoreHeldError(
                f"state directory {directory} is held by process {holder or 'unknown'}; "
                "one task has one owner: try again when it has ended",
                directory=str(directory),
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        os.close(descriptor)  # the directory was collected meanwhile


def _forget_in_child() -> None:
    # A child shares the parent's locks by its copies of the descriptors: closing these
    # leaves the parent's lock in place, keeping them would hold it beyond the parent's end.
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
