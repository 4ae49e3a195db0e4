"""Where a job's files are: the storage its epochs commit to, and the copy where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.config import Settings
from headrace.config.durability import Durability

STORAGES = "_storage"
"""Folder of a state directory with the storages of jobs; no job can have this name."""


@dataclass(frozen=True)
class Places:
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
        if self.copy is not None and not (self.storage / "manifests").is_dir():
            return self.copy
        return self.storage


def newest_of(settings: Settings, job: str) -> Path:
    """Return the folder with the newest epoch of a job, whatever it was run with.

    A job that keeps a copy commits to a host's own disk, and a command need not know it. Of a copy
    that is as new that disk counts: what a driver leaves of itself is there.
    """
    shared = settings.jobs_dir / job
    own = settings.state_dir / STORAGES / job
    epoch = _newest_epoch(own)
    return own if epoch >= 0 and epoch >= _newest_epoch(shared) else shared


def _newest_epoch(storage: Path) -> int:
    names = (path.stem for path in (storage / "manifests").glob("[0-9]*.json"))
    return max(map(int, names), default=-1)


def places(settings: Settings, job: str) -> Places:
    """Return where the files of a job are under these settings."""
    shared = settings.jobs_dir / job
    if not Durability.parse(settings.state.durability).is_backup:
        return Places(shared, None)
    return Places(settings.state_dir / STORAGES / job, shared)
