"""Where the files of a job are, who drives it, and how leftovers go.

Below the job's folder: ``manifests``, ``generations``, ``plans`` and ``tables`` (by digest),
and, all named by epoch, generation, slot and attempt: ``orders``, ``exchange``, ``segment``,
``snapshot`` and ``output``. ``job_storages`` distinguishes the storage that epochs commit to from
its copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from headrace.bus import Bus
from headrace.clock import Clock, Deadline, SystemClock
from headrace.config import Durability, Settings
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.faults import fault
from headrace.files import Files, is_alive
from headrace.remote import is_remote

FOLDERS = ("orders", "exchange", "segment", "snapshot", "output")
_NAME = re.compile(r"(\d{12})-(\d{8})-")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


KEPT_PLANS = 20
ORPHAN_S = 600.0
HOLDER_S = 1.0


class JobStorage:
    """The folder of one job.

    Args:
        root: of the job.
        files: the file system.
    """

    def __init__(self, root: Path, files: Files) -> None:
        self.root, self.files = root, files

    def create(self) -> None:
        """Make the folders that are missing, readable by their owner only; their names last."""
        self.files.make_missing(self.root, 0o700, durable=False)
        for name in (*FOLDERS, "manifests", "generations"):
            self.files.make_missing(self.root / name, durable=False)
        if not is_remote(self.root):
            self.files.make_folder(self.root / "manifests")

    def tidy(self, generation: int, plan: str, tables: Collection[str] = ()) -> None:
        """Remove what drivers before left when they were killed, a while after that.

        Plans, but for the newest few; files of broadcast stores; temporary files that were never
        linked; stop files and checkpoints of older generations. A driver that starts at the same
        time loses nothing.

        Args:
            generation: of the driver.
            plan: of the driver, by its name; it stays, however long ago it was first used.
            tables: files of broadcast stores that it uses.
        """
        taken = self.root / "generations" / f"{generation:08d}.json"
        now = self.files.status(taken).written_s
        names = [name for name in self.files.names(self.root / "plans") if name != plan]
        plans = []
        if len(names) >= KEPT_PLANS:
            names.sort(key=lambda name: self._written_s("plans", name))
            plans = [self.root / "plans" / name for name in names]
        near = [name for name in self.files.names(self.root) if name.startswith("stop-")]
        stops = [self.root / name for name in near if int(name[5:]) < generation]
        unused = [
            self.root / "tables" / name
            for name in self.files.names(self.root / "tables")
            if f"tables/{name}" not in tables
            and now - self._written_s("tables", name, now) > ORPHAN_S
        ]
        for path in (*plans[: 1 - KEPT_PLANS], *self._temporary(now), *stops, *unused):
            fault("tidy.due")
            self.files.remove(path)
        for path in self.root.glob("query/*"):
            if int(path.name) < generation:
                shutil.rmtree(path, ignore_errors=True)

    def _written_s(self, folder: str, name: str, gone: float = 0.0) -> float:
        with contextlib.suppress(FileNotFoundError):
            return self.files.status(self.root / folder / name).written_s
        return gone

    def sweep(self, epoch: int, generation: int, named: set[str], *, is_over: bool = False) -> int:
        """Remove files of finished epochs that nothing names; returns how many.

        Temporary files of processes that were killed go as well, a while after that.

        Args:
            epoch: the newest committed one; files of later epochs stay.
            generation: of the caller; files of later ones stay.
            named: paths below the root that the folded state names.
            is_over: the job has ended, so nobody merges any more.
        """
        removed = 0
        for folder in FOLDERS:
            for name in self.files.names(self.root / folder):
                found = _NAME.match(name)
                if found is None or f"{folder}/{name}" in named:
                    continue
                if int(found[1]) <= epoch and int(found[2]) <= generation:
                    fault("sweep.due")
                    self.files.remove(self.root / folder / name)
                    removed += 1
        with contextlib.suppress(FileNotFoundError):  # pruned meanwhile
            now = self.files.status(self.root / "manifests" / f"{epoch:012d}.json").written_s
            for path in self._temporary(now):
                self.files.remove(path)
        for path in _hidden(self.root) if is_over else ():
            if path.name.startswith(".merge-"):
                self.files.remove(path)
        return removed

    def _temporary(self, now: float) -> list[Path]:
        return [path for path in _hidden(self.root) if _age(path, now) > ORPHAN_S]


def _hidden(root: Path) -> list[Path]:
    """Return the temporary files in the folders of a storage; a search by a pattern costs more."""
    found = []
    for folder in _names(root):
        inside = f"{root}/{folder}"
        found += [f"{inside}/{name}" for name in _names(inside) if _is_temporary(name)]
    return list(map(Path, found))


def _names(folder: Path | str) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def generation_of(name: str) -> int | None:
    """Return the generation that a file of an epoch was made in; ``None`` for other names."""
    found = _NAME.search(name)
    return None if found is None else int(found[2])


def check_job_name(name: str) -> str:
    """Return a job's name if it can name a folder.

    Raises:
        InvalidInputError: other characters than letters, digits, dot, dash, underscore.
    """
    if not _JOB.fullmatch(name):
        raise InvalidInputError(
            f"job name {name!r} cannot be used; begin with a letter or digit, continue with "
            "letters, digits, '.', '_' or '-', 100 characters at most"
        )
    return name


def _age(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _locked(path: Path) -> int:
    """Open and lock a file that others may replace at any time.

    Raises:
        BlockingIOError: another process has the lock.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(file).st_ino == path.stat().st_ino:
                    return file
        except BlockingIOError:
            os.close(file)
            raise
        os.close(file)


class DriverLock:
    """One driver for each job on a host: a lock that ends with its process.

    Args:
        root: of the job.
        job: its name.
        clock: for waiting until a holder that has just begun says who it is.
        seize: take it away from a process that has it but is frozen. The file is replaced: that
            process keeps a lock on one that nobody finds any more, and what it still does is
            refused by its generation.

    Raises:
        NotOwnerError: another process holds it; names that process.
    """

    def __init__(
        self, root: Path, job: str, clock: Clock | None = None, *, seize: bool = False
    ) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = root / "driver.lock"
        if seize:
            new = root / f".driver.lock-{(clock or SystemClock()).new_id()}"
            self._file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sign()
            os.replace(new, path)
            return
        try:
            self._file = _locked(path)
        except BlockingIOError as error:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            holder = self._holder(clock or SystemClock())
            os.close(self._file)
            raise NotOwnerError(
                f"job {job!r} is already driven by process {holder} on this host; stop that one "
                f"first: headrace jobs stop {job}, or run this job under another name with --name",
                job=job,
            ) from error
        self._sign()

    def _sign(self) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def _holder(self, clock: Clock) -> str:
        """Read who holds the lock; one that took it this instant has not written it yet."""
        deadline = Deadline(clock, HOLDER_S)
        while True:
            said = os.pread(self._file, 20, 0).decode(errors="replace").strip()
            if said.isdigit() and is_alive(int(said)):
                return said
            if deadline.expired:
                return "unknown"
            clock.sleep(HOLDER_S / 100)

    def release(self) -> None:
        """Release it; doing so twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> DriverLock:
        """Hold the lock for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release it."""
        self.release()


STORAGES = "_storage"
"""Folder of a state directory with the storages of jobs; no job can have this name."""


@dataclass(frozen=True)
class JobStorages:
    """The folders of one job.

    Args:
        storage: where epochs commit.
        copy: the folder in job_dir that is kept up in the background, if any.
    """

    storage: Path
    copy: Path | None

    @property
    def readable(self) -> Path:
        """The storage, or on a host that has none the copy."""
        if self.copy is not None and not Files(sync=False).exists(self.storage / "manifests"):
            return self.copy
        return self.storage


def newest_storage(settings: Settings, job: str) -> Path:
    """Return the folder with the newest epoch of a job, whatever it was run with.

    A job that keeps a copy commits to a host's own disk, and a command need not know it. Of a copy
    that is as new that disk counts: what a driver leaves of itself is there.
    """
    shared = settings.jobs_dir / job
    own = settings.state_dir / STORAGES / job
    epoch = _newest_epoch(own)
    return own if epoch >= 0 and epoch >= _newest_epoch(shared) else shared


def _newest_epoch(storage: Path) -> int:
    names = Files(sync=False).names(storage / "manifests")
    found = [name.removesuffix(".json") for name in names]
    return max((int(name) for name in found if name.isdigit()), default=-1)


def job_storages(settings: Settings, job: str) -> JobStorages:
    """Return where the files of a job are under these settings."""
    shared = settings.jobs_dir / job
    if not Durability.parse(settings.state.durability).is_backup:
        return JobStorages(shared, None)
    return JobStorages(settings.state_dir / STORAGES / job, shared)


@dataclass(frozen=True)
class JobContext:
    """A job, and what is needed to do something to it.

    Args:
        settings: of the run, or with the durability that the job was last run with.
        job: its name.
        bus: its inputs and outputs.
        files: the file system.
        clock: time and names.
        notify: takes a line when something is wrong although what is done continues.
    """

    settings: Settings
    job: str
    bus: Bus
    files: Files
    clock: Clock
    notify: Callable[[str], None] = lambda line: None

    @property
    def storages(self) -> JobStorages:
        """Where the files of the job are."""
        return job_storages(self.settings, self.job)

    @property
    def storage(self) -> Path:
        """Where its epochs commit."""
        return self.storages.storage

    @property
    def newest(self) -> Path:
        """The folder with its newest epoch, whatever it was run with."""
        return newest_storage(self.settings, self.job)
