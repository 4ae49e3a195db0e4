"""Another number of tasks, from a committed epoch: key groups move, no state is rewritten.

A rescale is an epoch of its own that reads nothing and begins a lineage. 1. The outputs of the
last epoch are published, under the old lineage. 2. A base manifest gives each new task the files
of the old tasks that owned its key groups, each for just these. 3. Stores of the old lineage are
thrown away where they are met, and filled from these files. Compactions in the background make
one file of them again. A temporary scale-out, for a backfill in place, notes what the job is to
be again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.config import Settings
from headrace.coordinator.epoch_ranges import task_name
from headrace.coordinator.internal_streams import check_task_counts
from headrace.coordinator.manifest import JobState, TaskState, begin_lineage
from headrace.coordinator.manifest_writer import FencedManifestWriter
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.files import Files
from headrace.plan.stages import job_of
from headrace.records.keys import group_range
from headrace.runtime.orders import SegmentRef

Groups = tuple[int, int]


def wanted_counts(state: JobState, tasks: int, stage: str | None = None) -> dict[str, int]:
    """Return the number of tasks that each keyed stage is to have.

    Args:
        state: of the job.
        tasks: of each keyed stage, or of the one that is named.
        stage: its name; all when left out.

    Raises:
        InvalidInputError: no such stage, or a number that key groups, or the partitions of an
            internal stream, cannot be dealt to.
    """
    if not state.task_counts:
        raise InvalidInputError(
            f"job {state.job!r} has no keyed stage; source stages have a task for each partition",
            job=state.job,
        )
    if stage is not None and stage not in state.task_counts:
        raise InvalidInputError(
            f"job {state.job!r} has no keyed stage {stage!r}; it has "
            f"{', '.join(map(repr, state.task_counts))}",
            job=state.job,
        )
    if not 1 <= tasks <= state.key_groups:
        raise InvalidInputError(
            f"found {tasks} tasks, expected 1 to {state.key_groups}: a task needs a key group, and "
            "their number was fixed when the job was created",
            job=state.job,
        )
    wanted = {
        name: tasks if stage in (None, name) else before
        for name, before in state.task_counts.items()
    }
    check_task_counts(state, wanted)
    return wanted


def affects(counts: Mapping[str, int], stage: str | None) -> bool:
    """Say whether a part with these stages is to be rescaled; ``None``: all are."""
    return bool(counts) if stage is None else stage in counts


def rescaled_state(state: JobState, counts: Mapping[str, int], lineage: str) -> JobState:
    """Return a state with other numbers of tasks, as the begin of a lineage.

    Inputs, watermarks and counts stay. A new task is due when the first of the old ones was
    that it comes from, and runs where the one was that it has most key groups of.

    Args:
        state: after the last epoch, whose outputs are published.
        counts: tasks of each keyed stage.
        lineage: a name that no other one ever has.
    """
    begun = begin_lineage(state, lineage)
    tasks = {}
    for stage, count in counts.items():
        before = state.task_counts[stage]
        if count == before:
            names = [task_name(stage, number) for number in range(count)]
            tasks.update({name: begun.tasks[name] for name in names if name in begun.tasks})
            continue
        old = [
            (
                state.tasks.get(task_name(stage, number), TaskState()),
                group_range(number, before, state.key_groups),
            )
            for number in range(before)
        ]
        for number in range(count):
            groups = group_range(number, count, state.key_groups)
            tasks[task_name(stage, number)] = _moved(old, groups, state.epoch + 1, lineage)
    return msgspec.structs.replace(
        begun,
        tasks=tasks,
        task_counts=dict(counts),
        standbys={},
        rescaled_at=state.epoch + 1,
    )


def setting_notice(state: JobState, tasks: int) -> str | None:
    """Say that a setting of ``job.tasks`` is not used since a rescale, if that is so."""
    if state.rescaled_at < 0 or set(state.task_counts.values()) <= {tasks}:
        return None
    counts = ", ".join(f"{name} has {count}" for name, count in state.task_counts.items())
    return (
        f"job.tasks = {tasks} is not used since the rescale of epoch {state.rescaled_at}: stage "
        f"{counts}; change it with: headrace jobs rescale {job_of(state.job)} --tasks N"
    )


def _moved(
    old: list[tuple[TaskState, Groups]], groups: Groups, epoch: int, lineage: str
) -> TaskState:
    """Make a new task of the parts of old ones that fall into its key groups."""
    parts = [(task, own) for task, own in old if _common(own, groups) is not None]
    files = tuple(
        moved
        for task, own in parts
        for ref in task.files
        if (moved := _part_of(ref, ref.groups or own, groups)) is not None
    )
    largest, _ = max(parts, key=lambda part: _width(_common(part[1], groups)))
    shares = [task.state_bytes * _width(_common(own, groups)) // _width(own) for task, own in parts]
    events = [task.event_deadline for task, _ in parts if task.event_deadline is not None]
    walls = [task.wall_deadline for task, _ in parts if task.wall_deadline is not None]
    stands = (epoch, lineage) if files else (-1, "")
    return TaskState(
        epoch=stands[0],
        attempt=stands[1],
        snapshots=files,
        snapshot_epoch=stands[0],
        snapshot_attempt=stands[1],
        shape=max(task.shape for task, _ in parts) + 1,
        state_bytes=sum(shares),
        event_deadline=min(events, default=None),
        wall_deadline=min(walls, default=None),
        host=largest.host,
        watermark_hold_ms=min(
            (task.watermark_hold_ms for task, _ in parts if task.watermark_hold_ms is not None),
            default=None,
        ),
        waiting=sum(task.waiting for task, _ in parts),
    )


def _part_of(ref: SegmentRef, held: Groups, groups: Groups) -> SegmentRef | None:
    common = _common(held, groups)
    if common is None:
        return None
    return msgspec.structs.replace(
        ref,
        groups=common,
        bytes=ref.bytes * _width(common) // _width(held),
        rows=ref.rows * _width(common) // _width(held),
    )


def _common(first: Groups, second: Groups) -> Groups | None:
    low, high = max(first[0], second[0]), min(first[1], second[1])
    return (low, high) if low < high else None


def _width(groups: Groups | None) -> int:
    return 0 if groups is None else groups[1] - groups[0]


def commit_rescale(
    writer: FencedManifestWriter,
    tasks: int,
    stage: str | None,
    publish: Callable[[], object],
) -> bool:
    """Commit a rescale; False when the job has so many tasks already.

    Args:
        writer: that has begun.
        tasks: of each keyed stage, or of the one that is named.
        stage: its name; all when left out.
        publish: brings out the outputs of the last epoch, unless that was done.

    Raises:
        InvalidInputError: no such stage, or a number that cannot be.
        NotOwnerError: a newer driver has taken over.
    """
    while True:
        publish()
        state = writer.state
        counts = wanted_counts(state, tasks, stage)
        if counts == state.task_counts:
            return False
        fault("rescale.published")
        if writer.publish_next(rescaled_state(state, counts, writer.clock.new_id())):
            fault("rescale.committed")
            return True


class TemporaryScaleOut(msgspec.Struct, frozen=True):
    """A backfill that is under way, or was broken off.

    Args:
        begin: the time that it was asked to begin at.
        run: the job's number of the run since it was reset for that.
        tasks: of each keyed stage meanwhile; ``None``: as before.
        counts: of each keyed stage before.
        was: of each keyed stage when this was noted, which may be after another try.
        cut: stages that had as many as the code said, by which a job is cut again when it is reset.
    """

    begin: str
    run: int
    tasks: int | None
    counts: dict[str, int]
    was: dict[str, int] = {}
    cut: tuple[str, ...] = ()


def current_scale_out(settings: Settings, job: str) -> TemporaryScaleOut | None:
    """Return the backfill of a job that has not been scaled in."""
    path = _scale_out_file(settings, job)
    try:
        data = Files(sync=False).read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return msgspec.json.decode(data, type=TemporaryScaleOut)


def save_scale_out(settings: Settings, job: str, note: TemporaryScaleOut, files: Files) -> None:
    """Note what a job is to be again."""
    path = _scale_out_file(settings, job)
    files.make_missing(path.parent, 0o700)
    files.replace(path, msgspec.json.encode(note))


def clear_scale_out(settings: Settings, job: str, files: Files) -> None:
    """Forget it: the job is as it was."""
    files.remove(_scale_out_file(settings, job))


def new_scale_out(
    begin: str,
    tasks: int | None,
    before: TemporaryScaleOut | None,
    parts: Sequence[JobState],
    run: int,
) -> TemporaryScaleOut:
    """Return what is to be noted of a backfill that begins, or continues.

    Args:
        begin: the time that it was asked to begin at.
        tasks: of each keyed stage meanwhile; ``None``: as they are.
        before: the note of one that was broken off.
        parts: states of the job's parts as they were found.
        run: the job's number of the run that it is.
    """
    counts = counts_before_scale_out(before, *parts)
    if before is None:
        cut = [stage for part in parts if part.rescaled_at < 0 for stage in part.task_counts]
    else:
        cut = [stage for stage in before.cut if counts.get(stage) == before.counts.get(stage)]
    was = {stage: count for part in parts for stage, count in part.task_counts.items()}
    return TemporaryScaleOut(begin, run, tasks, counts, was, tuple(cut))


def counts_before_scale_out(note: TemporaryScaleOut | None, *parts: JobState) -> dict[str, int]:
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


def _is_by_note(note: TemporaryScaleOut, part: JobState, stage: str) -> bool:
    """Say whether a stage has its tasks by the backfill: of its code after the reset, or of it."""
    ours = {note.tasks, note.was.get(stage)}
    return part.rescaled_at < 0 or part.task_counts[stage] in ours


def _scale_out_file(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "scaled-out"
