"""Whether a run is being merged: until that is over, it is the run that is to be merged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.inspection.part_readers import part_readers
from headrace.files import Files


@contextmanager
def merging(settings: Settings, job: str, run: str, files: Files, clock: Clock) -> Iterator[None]:
    """Note that a run is merged by a block; who dies or fails in it leaves the note.

    Args:
        settings: where the job is.
        job: whose run it is.
        run: the lineage of its first part.
        files: the file system.
        clock: for names.
    """
    note = _note(settings, job)
    note.parent.mkdir(parents=True, exist_ok=True)
    files.replace(note, run.encode(), clock.new_id())
    yield
    files.remove(note)


def is_half_merged(settings: Settings, job: str, clock: Clock) -> bool:
    """Say whether a merge of the job's last run was begun, and is not over."""
    note = _note(settings, job)
    return note.exists() and any(
        reader.state().lineage == note.read_text() for reader in part_readers(settings, job, clock)
    )


def _note(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "merging"
