"""What a job was before it was scaled out for a backfill in its place, until it is scaled in."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.manifest import JobState
from headrace.files import Files


class ScaledOut(msgspec.Struct, frozen=True):
    """A backfill that is under way, or was broken off.

    Args:
        begin: the time that it was asked to begin at.
        run: the job's number of the run since it was reset for that.
        tasks: of each keyed stage meanwhile; ``None``: as before.
        counts: of each keyed stage before.
    """

    begin: str
    run: int
    tasks: int | None
    counts: dict[str, int]


def held(settings: Settings, job: str) -> ScaledOut | None:
    """Return the backfill of a job that has not been scaled in."""
    path = _note(settings, job)
    return msgspec.json.decode(path.read_bytes(), type=ScaledOut) if path.exists() else None


def hold(settings: Settings, job: str, note: ScaledOut, files: Files, clock: Clock) -> None:
    """Note what a job is to be again."""
    path = _note(settings, job)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.replace(path, msgspec.json.encode(note), clock.new_id())


def let_go(settings: Settings, job: str, files: Files) -> None:
    """Forget it: the job is as it was."""
    files.remove(_note(settings, job))


def counts_before(note: ScaledOut | None, state: JobState) -> dict[str, int]:
    """Return the tasks that a job has when nothing is scaled out.

    Args:
        note: of a backfill that was broken off; who has given the job other tasks since meant it.
        state: of the job.
    """
    is_out = note is not None and set(state.task_counts.values()) <= {note.tasks}
    return dict(note.counts if note is not None and is_out else state.task_counts)


def _note(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "scaled-out"
