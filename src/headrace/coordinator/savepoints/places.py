"""Where savepoints are kept unless somebody says otherwise; lists them, and deletes one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.savepoints.form import (
    MANIFEST,
    Savepoint,
    check_savepoint_name,
    read_savepoint,
)
from headrace.coordinator.storage import check_job_name
from headrace.errors import CorruptDataError, HeadraceError, InvalidInputError
from headrace.files import Files

FOLDER = "_savepoints"
"""Beside the storages of jobs; no job can have this name. It outlives the deletion of a job."""


@dataclass(frozen=True)
class KeptSavepoint:
    """A savepoint that was found: its folder, and what it says or why that cannot be read."""

    path: Path
    saved: Savepoint | None
    problem: str = ""


def savepoints_dir(settings: Settings, job: str) -> Path:
    """Return the folder of a job's savepoints."""
    return settings.jobs_dir / FOLDER / check_job_name(job)


def kept_savepoints(folder: Path) -> Iterator[KeptSavepoint]:
    """Yield the savepoints in a folder, by their names; other things in it are passed over."""
    for name in Files(sync=False).names(folder):
        path = folder / name
        if not (path / MANIFEST).is_file():
            continue
        try:
            yield KeptSavepoint(path, read_savepoint(path))
        except HeadraceError as error:
            yield KeptSavepoint(path, None, error.message)


def find_savepoint(settings: Settings, job: str, word: str) -> Path:
    """Return the folder that is meant by a path, or by the name of one of a job's savepoints.

    Raises:
        InvalidInputError: there is none; names those that are there.
    """
    own = savepoints_dir(settings, job)
    for path in (Path(word), own / word):
        if (path / MANIFEST).is_file():
            return path
    names = ", ".join(one.path.name for one in kept_savepoints(own)) or "none"
    raise InvalidInputError(
        f"no savepoint {word!r}: it is no folder with {MANIFEST}, and job {job!r} has {names}",
        job=job,
    )


def delete_savepoint(folder: Path, name: str, files: Files, clock: Clock) -> Path:
    """Remove a savepoint; it is gone, or there as a whole, whoever dies.

    Raises:
        InvalidInputError: there is none of that name.
    """
    path = folder / check_savepoint_name(name)
    with suppress(CorruptDataError):  # a damaged one may go as well
        read_savepoint(path)
    gone = folder / f".deleted-{clock.new_id()}"
    files.rename(path, gone)
    files.sync_folder(folder)
    for left in folder.glob(".deleted-*"):
        shutil.rmtree(left, ignore_errors=True)
    return path
