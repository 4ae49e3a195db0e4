"""The file system, behind one small class that tests can slow down or break.

Everything durable goes through here: a file is written once under a new name, made durable,
and never changed; a name is published by linking, so of two racing processes one wins.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from headrace.clock import Clock, Deadline
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.remote import PART as REMOTE
from headrace.remote import RemoteFile, address_of, is_remote

Bytes: TypeAlias = bytes | memoryview | pa.Buffer
_MOST_CHUNKS = 512
_READ_BYTES = 64 << 10

TRASH = ".trash-"
"""How the names begin of folders that are about to be removed."""


def new_name() -> str:
    """Return a name that no other writer uses, on whatever host; it decides nothing."""
    return os.urandom(8).hex()


def _syncfs(descriptor: int) -> int:
    """Sync one file system; what has no such call answers -1."""
    try:
        return int(ctypes.CDLL(None, use_errno=True).syncfs(descriptor))
    except (AttributeError, OSError):
        return -1


def is_alive(process: int) -> bool:
    """Say whether a process of this machine runs.

    One that has ended and that its parent has not asked about yet, as in many containers nobody
    ever does, does not.
    """
    try:
        os.kill(process, 0)
    except PermissionError:
        pass
    except OSError:
        return False
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # another system, or it has ended since
        return True
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def temporary_path(path: Path) -> Path:
    """Return a hidden path beside another, which no other writer uses."""
    return path.with_name(f".{path.name}.{new_name()}.tmp")


class Files:
    """Durable files on a local or shared POSIX file system, and objects by paths of ``remote``.

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
        if REMOTE in str(path) and (far := _far(path)) is not None:
            temporary = temporary_path(path)
            size = self.write_new(temporary, chunks, durable=False)
            try:
                if not far.upload(temporary, new=size <= _AT_ONCE):
                    raise FileExistsError(errno.EEXIST, "object exists", str(path))
            finally:
                temporary.unlink(missing_ok=True)
            return size
        with self._created(path, durable=durable) as file:
            try:
                size = 0
                for chunk in chunks:
                    view = memoryview(chunk).cast("B")
                    while view:
                        written = file.write(view)
                        size += written
                        view = view[written:]
                if durable:
                    self.sync_file(file.fileno())
                return size
            except OSError as error:
                error.filename = error.filename or str(path)
                path.unlink(missing_ok=True)  # a full disk gets its room back
                raise

    def _created(self, path: Path, *, durable: bool) -> FileIO:
        """Open a new file; its folder, which mostly is there, is made only when it is not."""
        try:
            return open(path, "xb", buffering=0)
        except FileNotFoundError:
            self.make_missing(path.parent, durable=durable)
            return open(path, "xb", buffering=0)

    def append(self, descriptor: int, chunks: Iterable[Bytes]) -> None:
        """Write chunks at the end of a file that was opened to append; not yet durable."""
        left = [view for chunk in chunks if (view := memoryview(chunk).cast("B"))]
        while left:
            written = os.writev(descriptor, left[:_MOST_CHUNKS])
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    def publish(
        self, path: Path, data: bytes, on_written: Callable[[], None] | None = None
    ) -> bool:
        """Create ``path`` with ``data`` if it is absent, durably and in one step.

        1. Write a temporary file and fsync it. 2. Link it to ``path``. 3. Fsync the folder.

        Args:
            path: the name to create.
            data: the whole content.
            on_written: called between steps 1 and 2.

        Returns:
            True when this call created it, False when it was there already.
        """
        if REMOTE in str(path) and (far := _far(path)) is not None:
            if on_written is not None:
                on_written()
            return far.storage.put_new(far.name, data)
        temporary = temporary_path(path)
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

    def publish_again(self, path: Path, data: bytes) -> None:
        """Create ``path`` with ``data``, or let it be as new: who tidies by age leaves it."""
        if REMOTE in str(path) and (far := _far(path)) is not None:
            return far.storage.put(far.name, data)
        while not self.publish(path, data):
            with contextlib.suppress(FileNotFoundError):  # tidied at this moment
                os.utime(path)
                return None
        return None

    def link(self, temporary: Path, path: Path, *, durable: bool = True) -> None:
        """Give a durable file another name, which must be free; it keeps its own.

        With ``durable`` the name lasts; else ``sync_folder`` makes those of a folder last. One of
        the two may stand for an object that never changes, or both.
        """
        if REMOTE in str(temporary) and (source := _far(temporary)) is not None:
            temporary = source.local()
        if REMOTE in str(path) and (far := _far(path)) is not None:
            copy = temporary_path(path)
            os.link(temporary, copy)
            try:
                if not far.upload(copy, new=copy.stat().st_size <= _AT_ONCE):
                    raise FileExistsError(errno.EEXIST, "object exists", str(path))
            finally:
                copy.unlink(missing_ok=True)
            return
        os.link(temporary, path)
        if durable:
            self.sync_folder(path.parent)

    def replace(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Set the content of a small file that is never mapped, in one step.

        One that is not ``durable`` may be as before, or empty, after a loss of power.
        """
        if REMOTE in str(path) and (far := _far(path)) is not None:
            return far.storage.put(far.name, data)
        temporary = temporary_path(path)
        self.write_new(temporary, [data], durable=durable)
        os.replace(temporary, path)
        if durable:
            self.sync_folder(path.parent)
        return None

    def rename(self, path: Path, name: Path) -> None:
        """Give a file or folder another name instead of its own; ``sync_folder`` makes it last."""
        for one in (path, name):
            if REMOTE in str(one) and _far(one) is not None:
                raise InvalidInputError(
                    f"{path} cannot be renamed to {name}: an object storage has no such step; use "
                    "a folder of a file system for this"
                )
        os.rename(path, name)

    def make_folder(self, folder: Path, mode: int = 0o777) -> None:
        """Make a folder, with those above it, unless it is there; its name is durable either way.

        Who made a folder above may have died before it made the name durable, so all are made so
        that this user may have made, on the same file system.

        Args:
            folder: to be made.
            mode: of the folder, where it is made; those above it have the usual one.
        """
        self.make_missing(folder, mode, durable=False)
        if not self.sync:
            return
        device = folder.stat().st_dev
        for parent in folder.absolute().parents:
            found = parent.stat()
            if found.st_dev != device:
                return
            try:
                self.sync_folder(parent)
            except PermissionError:
                if found.st_uid == os.geteuid():
                    raise
            if found.st_uid != os.geteuid():
                return

    def make_missing(self, folder: Path, mode: int = 0o777, *, durable: bool = True) -> None:
        """Make a folder, with those above it; only what is made here becomes durable."""
        try:
            folder.mkdir(mode)
        except FileExistsError:
            return
        except FileNotFoundError:
            self.make_missing(folder.parent, durable=durable)
            folder.mkdir(mode, exist_ok=True)
        if durable:
            self.sync_folder(folder.parent)

    def remove_tree(self, folder: Path) -> None:
        """Remove a folder with all that is in it: at once under its name, which never comes back.

        What a process left that died in here has a name that begins with ``TRASH``.

        Args:
            folder: may be gone already.
        """
        if REMOTE in str(folder) and (far := _far(folder)) is not None:
            return far.remove_tree()
        gone = folder.with_name(f"{TRASH}{new_name()}")
        with contextlib.suppress(FileNotFoundError):
            self.rename(folder, gone)
            self.sync_folder(folder.parent)  # half a tree must not be found under its name
            shutil.rmtree(gone, ignore_errors=True)
        return None

    def sync_file(self, descriptor: int) -> None:
        """Make the content of an open file durable; a failure is never retried."""
        if self.sync:
            os.fsync(descriptor)

    def sync_path(self, path: Path) -> None:
        """Make the content of a file durable that nobody here has open."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync_file(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable; those of objects are."""
        if not self.sync or REMOTE in str(folder):
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
        if REMOTE in str(path) and (far := _far(path)) is not None:
            return far.storage.get(far.name)
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    def map(self, path: Path) -> pa.Buffer:
        """Return the content as a memory-mapped buffer, without reading it; a small one is read.

        Raises:
            CorruptDataError: the file is missing although something durable names it.
        """
        far = _far(path) if REMOTE in str(path) else None
        try:
            local = path if far is None else far.local()
            if 0 < os.stat(local).st_size <= _READ_BYTES:  # half the time of a mapping
                with open(local, "rb", buffering=0) as file:
                    return pa.py_buffer(file.readall())
            with pa.memory_map(str(local), "r") as mapped:
                return mapped.read_buffer()
        except FileNotFoundError as error:
            raise CorruptDataError(
                f"file {address_of(path)} is missing, though it is named", file=str(path)
            ) from error

    def names(self, folder: Path | str) -> list[str]:
        """Return the sorted names in a folder, without temporary ones; empty when absent."""
        if REMOTE in str(folder) and (far := _far(folder)) is not None:
            return far.names()
        try:
            return sorted([name for name in os.listdir(folder) if not name.startswith(".")])
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, path: Path) -> None:
        """Remove a file; it may be gone already. Processes that map it keep their view."""
        if REMOTE in str(path) and (far := _far(path)) is not None:
            return far.remove()
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return None

    def exists(self, path: Path) -> bool:
        """Say whether there is a file or a folder, and in an object storage anything below it."""
        far = _far(path) if REMOTE in str(path) else None
        return path.exists() if far is None else far.exists()

    def status(self, path: Path) -> FileStatus:
        """Return the size of a file, and when it was written by the clock of its file system.

        Raises:
            FileNotFoundError: it is not there.
        """
        far = _far(path) if REMOTE in str(path) else None
        if far is None:
            found = path.stat()
            return FileStatus(found.st_size, found.st_mtime)
        if (info := far.info()) is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(path))
        return FileStatus(info.size, info.written_s)

    def now_s(self, folder: Path) -> float:
        """Return the time by the clock of the file system of a folder, s since 1970."""
        probe = temporary_path(folder / "clock")
        if is_remote(probe):
            probe = folder / "clocks" / new_name()
        self.write_new(probe, [b"1"], durable=False)
        try:
            return self.status(probe).written_s
        finally:
            self.remove(probe)


def local_copy(path: Path) -> Path:
    """Return a durable file of this host with the content of a file that never changes.

    Raises:
        FileNotFoundError: it is not there.
    """
    far = _far(path) if REMOTE in str(path) else None
    if far is None:
        return path
    local = far.local()
    descriptor = os.open(local, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return local


class FileStatus(NamedTuple):
    """The bytes of a file, and when it was written, s since 1970."""

    size: int
    written_s: float


_AT_ONCE = 64 << 20
"""A larger file goes to an object storage in parts, which refuses no name; nobody else has it."""


def _far(path: Path | str) -> RemoteFile | None:
    """Return what a path with ``REMOTE`` in it stands for; ``None``: it is a file here.

    Callers look for that first: each epoch asks for dozens of local files.
    """
    far = RemoteFile(path)
    return None if far.is_own else far


def write_private(path: Path, data: bytes) -> None:
    """Set the content of a small file that only its owner can read, in one step; not durable.

    Args:
        path: of the file; its folder is made when missing, for its owner alone.
        data: the whole content.
    """
    if REMOTE in str(path) and (far := _far(path)) is not None:
        return far.storage.put(far.name, data)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}-{new_name()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
    return None


class DiskFullError(UnavailableError):
    """A disk has no room left. Make room: a job that waits for it continues by itself."""

    code = "HR206"
    move = "free space on that disk; a running job then continues, a stopped one must be run again"


def is_full(error: BaseException) -> bool:
    """Say whether an error is that of a disk without room, or of a quota that is used up."""
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    return isinstance(error, DiskFullError)


def disk_error(error: OSError) -> UnavailableError:
    """Return a refusal of the disk in the words of a user: which file, why, what next."""
    if isinstance(error, UnavailableError):  # of an object storage, which says it better
        return error
    where = error.filename or "a file"
    kind = DiskFullError if is_full(error) else UnavailableError
    return kind(
        f"the disk refused {where}: {error.strerror or error}; nothing of this epoch is visible: "
        "put the disk in order, then run again"
    )


PAUSE_S = 0.0005
PAUSE_MOST_S = 0.01


def take_lock(descriptor: int, clock: Clock, timeout_s: float) -> bool:
    """Take the lock of an open file; False when another process has it all the time."""
    deadline = Deadline(clock, timeout_s)
    pause = PAUSE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline.expired:
                return False
        else:
            return True
        clock.sleep(deadline.remaining(pause))
        pause = min(2 * pause, PAUSE_MOST_S)


@contextlib.contextmanager
def sole_user(path: Path) -> Iterator[bool]:
    """Hold the lock of a file for a block, unless another process does; says whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)
