"""Whether a run is being merged: until that is over, it is the run that is to be merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.inspection.part_readers import part_readers
from headrace.files import Files


class Note(msgspec.Struct, frozen=True):
    """A merge that was begun: the run, and in how many parts each output is merged."""

    run: str
    parts: dict[str, int]


@contextmanager
def merging(
    settings: Settings, job: str, run: str, parts: Mapping[str, int], files: Files, clock: Clock
) -> Iterator[None]:
    """Note that a run is merged by a block; who dies or fails in it leaves the note.

    Args:
        settings: where the job is.
        job: whose run it is.
        run: the lineage of its first part.
        parts: of each output, by operator.
        files: the file system.
        clock: for names.
    """
    path = _path(settings, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    note = Note(run, dict(parts))
    files.replace(path, msgspec.json.encode(note), clock.new_id())
    yield
    files.remove(path)


def begun(settings: Settings, job: str, run: str) -> Note | None:
    """Return what is noted of the merge of a run that is not over."""
    note = _note(settings, job)
    return note if note is not None and note.run == run else None


def is_noted(settings: Settings, job: str) -> bool:
    """Say whether a merge of a job's run was begun, and is not over, whatever run it was."""
    return bool(job) and _path(settings, job).exists()


def is_half_merged(settings: Settings, job: str, clock: Clock) -> bool:
    """Say whether a merge of the job's last run was begun, and is not over."""
    note = _note(settings, job)
    return note is not None and any(
        reader.state().lineage == note.run for reader in part_readers(settings, job, clock)
    )


def _note(settings: Settings, job: str) -> Note | None:
    try:
        data = _path(settings, job).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=Note)
    except msgspec.DecodeError:  # of a version that merged each output in one part
        return Note(data.decode(errors="replace"), {})


def _path(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "merging"
