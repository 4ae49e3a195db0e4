"""Removes local state that nobody needs any more: of removed jobs, and of tasks of the past.

Runs on each host, in whichever process comes first. What is not needed is marked, and goes
when it has not been needed for a while and nobody has it open; it could be built again from
the job's storage, so the pause only saves work.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

from headrace.clock import Clock
from headrace.coordinator.backup.places import STORAGES
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.identity import host_identity
from headrace.coordinator.manifest import JobState
from headrace.coordinator.planning import task_name
from headrace.coordinator.storage import DriverLock
from headrace.coordinator.task_files import TaskState
from headrace.errors import HeadraceError, NotOwnerError
from headrace.files import Files
from headrace.records.keys import group_range
from headrace.state.ownership import DirectoryLock, StoreHeldError

RECORD = "STORAGE"
DELETED = "DELETED"
UNNEEDED = "UNNEEDED"
TRASH = ".trash-"
"""How the names begin of folders that are about to be removed."""


def record_storage(state_dir: Path, storage: Path, files: Files, clock: Clock) -> None:
    """Leave a word, beside the state of a job, of where its storage is."""
    path = state_dir / storage.name / RECORD
    if _text(path) != str(storage):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.replace(path, str(storage).encode(), clock.new_id())


def collect(state_dir: Path, files: Files, clock: Clock, keep_s: float) -> list[Path]:
    """Remove what has not been needed for ``keep_s`` seconds; returns the folders that went.

    A job is gone when its folder is no longer in a job_dir that is there, or holds a file
    ``DELETED``. Of a job that is there, tasks are gone whose key groups no task has now, and
    those that run on another host and have no standby here. What cannot be judged, such as when
    job_dir does not answer, stays; so does what is open.
    """
    with _alone(state_dir) as is_alone:
        if not is_alone:
            return []
        for path in state_dir.glob(f"**/{TRASH}*"):
            shutil.rmtree(path, ignore_errors=True)
        host = host_identity(state_dir, clock, files)
        jobs = _jobs(state_dir, files)
        found = [path for folder in jobs for path in _unneeded(folder, host, files, clock)]
        found += [path for path in _storages(state_dir, files) if (path / DELETED).exists()]
        return [path for path in found if _is_due(path, clock, keep_s) and _remove(path, clock)]


def collect_beside(state_dir: Path, files: Files, clock: Clock, keep_s: float) -> None:
    """Collect in a thread, which nobody waits for; what fails is left for another time."""

    def run() -> None:
        with contextlib.suppress(OSError, HeadraceError):
            collect(state_dir, files, clock, keep_s)

    Thread(target=run, name="headrace-collector", daemon=True).start()


@contextmanager
def _alone(state_dir: Path) -> Iterator[bool]:
    """Say whether no other process of the host collects now."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(state_dir / "COLLECTOR", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _jobs(state_dir: Path, files: Files) -> list[Path]:
    folders = [state_dir / name for name in files.names(state_dir)]
    return [folder for folder in folders if (folder / RECORD).exists()]


def _storages(state_dir: Path, files: Files) -> list[Path]:
    folder = state_dir / STORAGES
    return [folder / name for name in files.names(folder)]


def _unneeded(folder: Path, host: str, files: Files, clock: Clock) -> list[Path]:
    """Return the folder of a job that is gone, or those of its tasks that are."""
    storage = Path(_text(folder / RECORD))
    try:
        if (storage / DELETED).exists() or (storage.parent.is_dir() and not storage.exists()):
            return [folder]
        _needed(folder)
        wanted = _task_folders(storage, host, files, clock)
    except (OSError, HeadraceError):
        return []
    gone = []
    for path in folder.iterdir():
        if path.is_dir() and wanted is not None and path.name not in wanted:
            gone.append(path)
        else:
            _needed(path)
    return gone


def _task_folders(storage: Path, host: str, files: Files, clock: Clock) -> set[str] | None:
    """Return the names of the folders of the tasks that a host has now; ``None``: not known."""
    if not files.names(storage / "manifests"):
        return None
    state = load_state(FileCommitLog(storage, files, clock))
    if state is None:
        return None
    return {
        "{}-{}-{}".format(stage, *group_range(task, count, state.key_groups))
        for stage, count in state.task_counts.items()
        for task in range(count)
        if host in _hosts_of(state, task_name(stage, task))
        or state.tasks.get(task_name(stage, task), TaskState()).host == ""
    }


def _hosts_of(state: JobState, name: str) -> set[str]:
    """Return where a task runs, and where its standbys are."""
    own = state.tasks.get(name, TaskState()).host
    return {own, *(standby.host for standby in state.standbys.get(name, ()))}


def _needed(path: Path) -> None:
    if path.is_dir():
        (path / UNNEEDED).unlink(missing_ok=True)


def _is_due(path: Path, clock: Clock, keep_s: float) -> bool:
    """Say whether a folder has been marked for so long; the first time marks it."""
    now, since = clock.now_ms(), _text(path / UNNEEDED)
    if not since.isdigit():
        (path / UNNEEDED).write_text(str(now))
        since = str(now)
    return now - int(since) >= keep_s * 1000


def _remove(path: Path, clock: Clock) -> bool:
    """Remove a folder unless somebody has it, or a part of it, open."""
    trash = path.with_name(f"{TRASH}{clock.new_id()}")
    with ExitStack() as held:
        try:
            if (path / "driver.lock").exists():
                held.callback(DriverLock(path, path.name, clock).release)
            for lock in sorted(path.glob("**/LOCK")):
                if not any(part.startswith("db-") for part in lock.relative_to(path).parts):
                    held.callback(DirectoryLock(lock.parent).release)
        except (StoreHeldError, NotOwnerError):
            return False
        path.rename(trash)  # who waits for a lock in it finds that it is no longer in its place
    shutil.rmtree(trash, ignore_errors=True)
    return True


def _text(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.read_text()
    return ""
