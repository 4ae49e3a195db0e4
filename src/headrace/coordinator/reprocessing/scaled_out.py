"""What a job was before it was scaled out for a backfill in its place, until it is scaled in."""

from __future__ import annotations

from collections.abc import Sequence
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
        was: of each keyed stage when this was noted, which may be after another try.
        cut: stages that had as many as the code said, by which a job is cut anew when it is reset.
    """

    begin: str
    run: int
    tasks: int | None
    counts: dict[str, int]
    was: dict[str, int] = {}
    cut: tuple[str, ...] = ()


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


def scaled_out(
    begin: str,
    tasks: int | None,
    before: ScaledOut | None,
    parts: Sequence[JobState],
    run: int,
) -> ScaledOut:
    """Return what is to be noted of a backfill that begins, or goes on.

    Args:
        begin: the time that it was asked to begin at.
        tasks: of each keyed stage meanwhile; ``None``: as they are.
        before: the note of one that was broken off.
        parts: states of the job's parts as they were found.
        run: the job's number of the run that it is.
    """
    counts = counts_before(before, *parts)
    if before is None:
        cut = [stage for part in parts if part.rescaled_at < 0 for stage in part.task_counts]
    else:
        cut = [stage for stage in before.cut if counts.get(stage) == before.counts.get(stage)]
    was = {stage: count for part in parts for stage, count in part.task_counts.items()}
    return ScaledOut(begin, run, tasks, counts, was, tuple(cut))


def counts_before(note: ScaledOut | None, *parts: JobState) -> dict[str, int]:
    """Return the tasks that a job has when nothing is scaled out.

    Args:
        note: of a backfill that was broken off; who has given the job other tasks since meant it.
        parts: states of the job's parts.
    """
    found = {} if note is None else dict(note.counts)
    for part in parts:
        for stage, count in part.task_counts.items():
            if note is None or not _is_by_note(note, part, stage):
                found[stage] = count
            elif count != note.tasks:
                found.setdefault(stage, count)  # the code has it since
    return found


def _is_by_note(note: ScaledOut, part: JobState, stage: str) -> bool:
    """Say whether a stage has its tasks by the backfill: of its code after the reset, or of it."""
    ours = {note.tasks, note.was.get(stage)}
    return part.rescaled_at < 0 or part.task_counts[stage] in ours


def _note(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "scaled-out"
