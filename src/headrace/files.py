"""The file system, behind one small class that tests can slow down or break.

Everything durable goes through here: a file is written once under a new name, made durable,
and never changed; a name is published by linking, so of two racing processes one wins.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from headrace.errors import CorruptDataError, UnavailableError

Bytes: TypeAlias = bytes | memoryview | pa.Buffer
_MOST_CHUNKS = 512


def _syncfs(descriptor: int) -> int:
    """Sync one file system; what has no such call answers -1."""
    try:
        return int(ctypes.CDLL(None, use_errno=True).syncfs(descriptor))
    except (AttributeError, OSError):
        return -1


class Files:
    """Durable files on a local or shared POSIX file system.

    Args:
        sync: whether writes are made durable with fsync; tests of logic switch it off.
    """

    def __init__(self, *, sync: bool = True) -> None:
        self.sync = sync

    def write_new(self, path: Path, chunks: Iterable[Bytes], *, durable: bool = True) -> int:
        """Write a file that must not exist yet, make its content durable, return its bytes.

        The folder is made when missing. The name is durable only after ``sync_folder``.
        A file that does not outlive its epoch need not be ``durable``.
        """
        with _created(path) as file:
            try:
                size = self._fill(file, chunks)
                if durable:
                    self.sync_file(file.fileno())
                return size
            except OSError as error:
                error.filename = error.filename or str(path)
                path.unlink(missing_ok=True)  # a full disk gets its room back
                raise

    def _fill(self, file: FileIO, chunks: Iterable[Bytes]) -> int:
        size = 0
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            while view:
                written = file.write(view)
                size += written
                view = view[written:]
        return size

    def append(self, descriptor: int, chunks: Iterable[Bytes]) -> None:
        """Write chunks at the end of a file that was opened to append; not yet durable."""
        left = [view for view in (memoryview(chunk).cast("B") for chunk in chunks) if view]
        while left:
            written = os.writev(descriptor, left[:_MOST_CHUNKS])
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    def publish(
        self,
        path: Path,
        data: bytes,
        unique: str,
        on_written: Callable[[], None] | None = None,
    ) -> bool:
        """Create ``path`` with ``data`` if it is absent, durably and in one step.

        1. Write a temporary file and fsync it. 2. Link it to ``path``. 3. Fsync the folder.

        Args:
            path: the name to create.
            data: the whole content.
            unique: a name part that no other writer uses.
            on_written: called between steps 1 and 2.

        Returns:
            True when this call created it, False when it was there already.
        """
        temporary = path.with_name(f".{path.name}.{unique}.tmp")
        self.write_new(temporary, [data])
        try:
            if on_written is not None:
                on_written()
            os.link(temporary, path)
        except FileExistsError:
            self.sync_folder(path.parent)  # what the caller builds on must be durable
            return False
        finally:
            temporary.unlink(missing_ok=True)
        self.sync_folder(path.parent)
        return True

    def link(self, temporary: Path, path: Path) -> None:
        """Give a durable file another name, which must be free, durably; it keeps its own."""
        os.link(temporary, path)
        self.sync_folder(path.parent)

    def replace(self, path: Path, data: bytes, unique: str) -> None:
        """Set the content of a small file that is never mapped, in one step."""
        temporary = path.with_name(f".{path.name}.{unique}.tmp")
        self.write_new(temporary, [data])
        os.replace(temporary, path)
        self.sync_folder(path.parent)

    def rename(self, path: Path, name: Path) -> None:
        """Give a durable file another name instead of its own; ``sync_folder`` makes it last."""
        os.rename(path, name)

    def sync_file(self, descriptor: int) -> None:
        """Make the content of an open file durable; a failure is never retried."""
        if self.sync:
            os.fsync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        if not self.sync:
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_system(self, folder: Path) -> None:
        """Make all durable that was written to the file system of a folder, names as well.

        For many files at once, of which each would wait for the disk by itself.
        """
        if not self.sync:
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _syncfs(descriptor) != 0:
                os.sync()
        finally:
            os.close(descriptor)

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file."""
        return path.read_bytes()

    def map(self, path: Path) -> pa.Buffer:
        """Return the content as a memory-mapped buffer, without reading it.

        Raises:
            CorruptDataError: the file is missing although something durable names it.
        """
        try:
            with pa.memory_map(str(path), "r") as mapped:
                return mapped.read_buffer()
        except FileNotFoundError as error:
            raise CorruptDataError(
                f"file {path} is missing, though it is named", file=str(path)
            ) from error

    def names(self, folder: Path | str) -> list[str]:
        """Return the sorted names in a folder, without temporary ones; empty when absent."""
        try:
            return sorted(name for name in os.listdir(folder) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def remove(self, path: Path) -> None:
        """Remove a file; it may be gone already. Processes that map it keep their view."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _created(path: Path) -> FileIO:
    """Open a new file; its folder, which mostly is there, is made only when it is not."""
    try:
        return open(path, "xb", buffering=0)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "xb", buffering=0)


class DiskFullError(UnavailableError):
    """A disk has no room left. Make room: a job that waits for it goes on by itself."""

    code = "HR206"
    move = "make room on that disk; a running job goes on by itself, one that stopped is run again"


def is_full(error: BaseException) -> bool:
    """Say whether an error is that of a disk without room, or of a quota that is used up."""
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    return isinstance(error, DiskFullError)


def disk_error(error: OSError) -> UnavailableError:
    """Return a refusal of the disk in the words of a user: which file, why, what next."""
    where = error.filename or "a file"
    kind = DiskFullError if is_full(error) else UnavailableError
    return kind(
        f"the disk refused {where}: {error.strerror or error}; nothing of this epoch is visible: "
        "put the disk in order, then run again"
    )
