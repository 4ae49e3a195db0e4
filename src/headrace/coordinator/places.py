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


def places(settings: Settings, job: str) -> Places:
    """Return where the files of a job are under these settings."""
    shared = settings.jobs_dir / job
    if not Durability.parse(settings.state.durability).is_backup:
        return Places(shared, None)
    return Places(settings.state_dir / STORAGES / job, shared)
