"""Folders that take changes from their newest holder alone: a fence where the change lands.

A process may freeze after any check and wake when another has its place. So its right to change
a folder is itself a folder in it, ``fence/<generation>-<unique>``. A file that gets a name is
linked or renamed out of that one, and a file that goes is renamed into it, each by one call of the
operating system. Who takes the right with a newer generation first renames the folders of the
older ones away: from then on their calls find nothing and fail.

A lock, which ``alone`` takes, only keeps those apart who hold the right at the same time. It says
which right its owner has, so one that is frozen in the middle of a change holds nobody up.

``DirectoryLock`` is for what lies on a host's own disk and one process has open, such as a
database: a lock that ends with the process, and a mark that a newer generation leaves for older
ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOENT
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.clock import Clock, Deadline
from headrace.errors import NotOwnerError, UnavailableError
from headrace.files import Bytes, Files, new_name

FOLDER = "fence"
_GONE = ".gone-"
SEIZE_S = 30.0
"""So long a holder waits for a helper that has the lock."""

PAUSE_S = 0.02


class FencedFiles(Files):
    """Files of some folders, changed by their newest holder alone; others are unchanged.

    Until ``take`` or ``join`` was called, and for paths elsewhere, it does as the files beneath.
    What has a name that nobody else uses may be written by anyone: ``write_new`` is not fenced.

    Args:
        files: the file system.
        root: of the folder; the right to change it is kept below it.
        others: further folders that the right is for, on the same file system.
    """

    def __init__(self, files: Files, root: Path, *others: Path) -> None:
        super().__init__(sync=files.sync)
        self._inner, self._place = files, root / FOLDER
        self._within = tuple(f"{folder}/" for folder in (root, *others))
        self._staged = f"{self._place}/"
        self._own: Path | None = None
        self._held = (-1, "")
        self._leads = False
        self._blocked: float | None = None

    @property
    def beneath(self) -> Files:
        """The file system without the fence."""
        return self._inner

    @property
    def root(self) -> Path:
        """The folder that is fenced."""
        return self._place.parent

    def take(self, generation: int, origin: str = "") -> None:
        """Become the holder, and end the rights of all older ones.

        1. Make a folder for this one. 2. Look for a newer one, and give up if there is one. 3.
        Rename those of older ones away. Of two that take it at the same time the older one sees
        the newer in step 2, or is renamed away by it.

        Args:
            generation: of the holder; taking the same again changes nothing.
            origin: a name without a dash of what generations count for; that of another origin
                is always older.

        Raises:
            NotOwnerError: a newer holder has it; so it is with every later change.
        """
        if self._own is not None and self._held == (generation, origin):
            return self.check()
        self._inner.make_missing(self._place, durable=False)
        own = self._own = self._place / f"{generation:08d}-{origin}-{new_name()}"
        own.mkdir()
        self._held, self._leads = (generation, origin), True
        for name in os.listdir(self._place):
            number, its_origin = read_holder(name)
            if its_origin == origin and number > generation:
                with suppress(OSError):
                    own.rmdir()
                raise self._refused()
            if name != own.name and (its_origin != origin or number < generation):
                self._end(name)
        return None

    def join(self) -> None:
        """Change the folder beside its holder, as long as that holds it.

        Raises:
            NotOwnerError: another took it meanwhile; call again.
        """
        self._inner.make_missing(self._place, durable=False)
        names = [name for name in os.listdir(self._place) if not name.startswith(_GONE)]
        newest, origin = max(map(read_holder, names), default=(0, ""))
        self.take(newest, origin)
        self._leads = False

    @contextmanager
    def alone(self, lock: Path, clock: Clock, wait_s: float) -> Iterator[None]:
        """Be the only one in a block, among those who hold the folder now.

        The lock is taken away from who has no right any more, and by a holder from a helper that
        has had it for ``SEIZE_S`` of waiting; what these still try is refused.

        Args:
            lock: a file in the folder; made when missing.
            clock: for waiting.
            wait_s: how long to wait.

        Raises:
            BlockingIOError: another has the lock.
            FileNotFoundError: the folder is gone.
            NotOwnerError: a newer holder has taken it.
        """
        file = self._locked(lock, clock, Deadline(clock, wait_s))
        try:
            self.check()
            os.ftruncate(file, 0)
            os.pwrite(file, self._name.encode(), 0)
            yield
        finally:
            os.close(file)

    @property
    def _name(self) -> str:
        return "" if self._own is None else self._own.name

    def _locked(self, lock: Path, clock: Clock, deadline: Deadline) -> int:
        while True:
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file).st_ino == os.stat(lock).st_ino:
                    self._blocked = None
                    return file
                os.close(file)  # it was taken away from another meanwhile
            except BlockingIOError:
                owner = os.pread(file, 200, 0).decode(errors="replace")
                os.close(file)
                if self._may_seize(owner, clock):
                    return self._seized(lock, owner)
                if deadline.expired:
                    raise
                clock.sleep(PAUSE_S)

    def _may_seize(self, owner: str, clock: Clock) -> bool:
        self.check()
        if not self._leads or not owner or owner == self._name:
            return False
        if not (self._place / owner).exists():
            return True
        now = clock.monotonic()
        self._blocked = now if self._blocked is None else self._blocked
        return now - self._blocked >= SEIZE_S

    def _seized(self, lock: Path, owner: str) -> int:
        self._blocked = None
        self._end(owner)
        new = self.staged("lock")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.rename(new, lock)
        except BaseException:
            os.close(file)
            raise
        return file

    def _end(self, name: str) -> None:
        gone = self._place / f"{_GONE}{name.removeprefix(_GONE)}-{new_name()}"
        with suppress(FileNotFoundError):
            os.rename(self._place / name, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def leave(self) -> None:
        """Hold the folder no more: whatever is still tried is refused."""
        if self._own is not None:
            self._end(self._own.name)

    def staged(self, name: str) -> Path:
        """Return a path of the holder's own, which ``rename`` and ``link`` give a name elsewhere.

        Raises:
            NotOwnerError: it is not the holder any more.
        """
        if self._own is None:
            raise self._refused()
        self.check()
        return self._own / name

    def check(self) -> None:
        """Make sure that no newer holder has taken the folder; a fence only for this moment.

        Raises:
            NotOwnerError: one has.
        """
        with self.holding():
            if self._own is not None:
                self._own.stat()

    def publish(
        self, path: Path, data: bytes, on_written: Callable[[], None] | None = None
    ) -> bool:
        """Create ``path`` with ``data`` if it is absent; see ``Files.publish``.

        Raises:
            NotOwnerError: a newer holder has taken the folder; nothing was created.
        """
        if (own := self._own_of(path)) is None:
            return self._inner.publish(path, data, on_written)
        with self._written(own, path, data) as temporary:
            if on_written is not None:
                on_written()
            try:
                self._inner.link(temporary, path)
            except FileExistsError:
                self.sync_folder(path.parent)  # what the caller builds on must be durable
                return False
        return True

    def replace(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Set the content of a small file; see ``Files.replace``.

        Raises:
            NotOwnerError: a newer holder has taken the folder; the file is as it was.
        """
        if (own := self._own_of(path)) is None:
            return self._inner.replace(path, data, durable=durable)
        with self._written(own, path, data, durable=durable) as temporary:
            self._inner.rename(temporary, path)
        if durable:
            self.sync_folder(path.parent)
        return None

    @contextmanager
    def _written(
        self, own: Path, path: Path, data: bytes, *, durable: bool = True
    ) -> Iterator[Path]:
        temporary = own / f"{path.name}.{new_name()}.tmp"
        with self.holding():
            super().write_new(temporary, [data], durable=durable)
            try:
                self._inner.make_missing(path.parent)
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)

    def link(self, temporary: Path, path: Path, *, durable: bool = True) -> None:
        """Give a durable file another name; see ``Files.link``.

        Raises:
            NotOwnerError: a newer holder has taken the folder; the name is not there.
        """
        if (own := self._own_of(path)) is None:
            return self._inner.link(temporary, path, durable=durable)
        with self.holding():
            if self._is_staged(temporary) or self._is_staged(path):
                return self._inner.link(temporary, path, durable=durable)
            hidden = own / f"link-{threading.get_ident()}"
            hidden.unlink(missing_ok=True)
            self._inner.link(temporary, hidden, durable=False)
            try:
                return self._inner.link(hidden, path, durable=durable)
            finally:
                hidden.unlink(missing_ok=True)

    def make_missing(self, folder: Path, mode: int = 0o777, *, durable: bool = True) -> None:
        """Make a folder unless it is there; see ``Files.make_missing``.

        Raises:
            NotOwnerError: it was to be staged, and a newer holder has taken the folder.
        """
        if not self._is_staged(folder):
            return self._inner.make_missing(folder, mode, durable=durable)
        with self.holding():
            folder.mkdir(mode)
        return None

    def rename(self, path: Path, name: Path) -> None:
        """Give a file or folder another name; only what is ``staged`` is fenced.

        Raises:
            NotOwnerError: a newer holder has taken the folder; nothing was renamed.
        """
        with self.holding():
            self._inner.rename(path, name)

    def remove(self, path: Path) -> None:
        """Remove a file; see ``Files.remove``.

        Raises:
            NotOwnerError: a newer holder has taken the folder; the file is there.
        """
        if (own := self._own_of(path)) is None:
            return self._inner.remove(path)
        gone = own / f"gone-{threading.get_ident()}"
        with self.holding(may_be_gone=True):
            self._inner.rename(path, gone)
            self._inner.remove(gone)
        return None

    def remove_tree(self, folder: Path) -> None:
        """Remove a folder; see ``Files.remove_tree``.

        Raises:
            NotOwnerError: a newer holder has taken the folder around it; it is there.
        """
        if (own := self._own_of(folder)) is None:
            return self._inner.remove_tree(folder)
        gone = own / f"tree-{new_name()}"
        with self.holding(may_be_gone=True):
            self._inner.rename(folder, gone)
            self.sync_folder(folder.parent)
            shutil.rmtree(gone, ignore_errors=True)
        return None

    def _own_of(self, path: Path) -> Path | None:
        own = self._own
        return own if own is not None and str(path).startswith(self._within) else None

    def _is_staged(self, path: Path) -> bool:
        return str(path).startswith(self._staged)

    @contextmanager
    def holding(self, *, may_be_gone: bool = False) -> Iterator[None]:
        """Distinguish a right that was taken away from a file that is not there.

        Args:
            may_be_gone: a file that is not there is no error.

        Raises:
            NotOwnerError: a block met a file that is missing, and a newer holder is why.
            FileNotFoundError: there is no such file, or the whole folder is gone.
        """
        try:
            yield
        except FileNotFoundError as error:
            if self._own is None or self._own.exists():
                if not may_be_gone:
                    raise
            elif self._place.exists():
                raise self._refused() from error
            else:
                raise FileNotFoundError(ENOENT, "the folder is gone", str(self.root)) from error

    def _refused(self) -> NotOwnerError:
        names = self.names(self._place)
        newest, _ = max(map(read_holder, names), default=(-1, ""))
        return NotOwnerError.taken_over(
            str(self.root), max(self._held[0], 0), newer=max(newest, 0), directory=str(self.root)
        )

    def write_new(self, path: Path, chunks: Iterable[Bytes], *, durable: bool = True) -> int:
        """Write a file that must not exist yet; see ``Files.write_new``."""
        if self._is_staged(path):
            with self.holding():
                return super().write_new(path, chunks, durable=durable)
        return self._inner.write_new(path, chunks, durable=durable)

    def _created(self, path: Path, *, durable: bool) -> FileIO:
        del durable
        return open(path, "xb", buffering=0)  # a folder that was taken away must not come back

    def sync_file(self, descriptor: int) -> None:
        """Make the content of an open file durable."""
        self._inner.sync_file(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        self._inner.sync_folder(folder)

    def sync_system(self, folder: Path) -> None:
        """Make all durable that was written to the file system of a folder."""
        self._inner.sync_system(folder)

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file."""
        return self._inner.read(path)

    def map(self, path: Path) -> pa.Buffer:
        """Return the content as a memory-mapped buffer."""
        return self._inner.map(path)

    def names(self, folder: Path | str) -> list[str]:
        """Return the sorted names in a folder, without temporary ones."""
        return self._inner.names(folder)


def read_holder(name: str) -> tuple[int, str]:
    """Return the generation and the origin of a holder by the name of its folder."""
    number, _, rest = name.partition("-")
    return (int(number), rest.partition("-")[0]) if number.isdigit() else (-1, "")


OWNER_PREFIX = "owner-"
_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class StoreHeldError(UnavailableError):
    """Another process, which may be dying, has the store open. Try again in a moment."""

    code = "HR203"
    move = "try again in a moment; headrace jobs ls shows who runs the job"


class DirectoryOwner(NamedTuple):
    """For whom a directory is opened: the job, by the lineage it began with, and a generation."""

    origin: str
    generation: int

    @property
    def mark(self) -> str:
        """The name of its file."""
        return f"{OWNER_PREFIX}{self.generation:08d}-{self.origin}"


class DirectoryLock:
    """A flock on ``LOCK`` in a directory; it ends with the process, however that ends.

    An owner leaves a mark with its generation, also where the directory is held by another:
    who is older and still alive finds it before its next write, and closes.

    Args:
        directory: made when missing, for its user only.
        owner: for whom; none for what has no driver.

    Raises:
        StoreHeldError: another owner holds it; a dying worker releases it soon, so try again.
        NotOwnerError: a newer generation has taken it.
    """

    def __init__(self, directory: Path, owner: DirectoryOwner | None = None) -> None:
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

    def own(self, owner: DirectoryOwner | None) -> None:
        """Continue for an owner, and make sure that no newer one has taken the directory.

        Raises:
            NotOwnerError: one has; close, and write nothing more.
        """
        if owner is None:
            return
        newest = 0
        others = []
        for name in os.listdir(self._directory):
            if not name.startswith(OWNER_PREFIX):
                continue
            number, _, origin = name.removeprefix(OWNER_PREFIX).partition("-")
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
        """Release it; doing it twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _locked(directory: Path, owner: DirectoryOwner | None) -> int:
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
        with suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        os.close(descriptor)  # the directory was collected meanwhile


def _forget_in_child() -> None:
    # A child shares the parent's locks by its copies of the descriptors: closing these
    # leaves the parent's lock in place, keeping them would hold it beyond the parent's end.
    for lock in list(_held):
        with suppress(OSError):
            lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
