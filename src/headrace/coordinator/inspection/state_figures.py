"""A job's own figures for the cost model, and what it does with its files, from its manifests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from headrace.coordinator.commit_log import CommitLog
from headrace.coordinator.history import states
from headrace.coordinator.manifest import JobState
from headrace.coordinator.task_files import merge_order, snapshot_reason, state_bytes
from headrace.errors import InvalidInputError
from headrace.state.cost_model import CostModel


@dataclass(frozen=True)
class TaskFigures:
    """What a rebuild of one task reads, and why its files are as they are.

    ``reason`` weighs a snapshot; ``due`` says which merge comes next, empty for none.
    """

    name: str
    state_bytes: int
    files: int
    snapshot_bytes: int
    segment_bytes: int
    reason: str
    due: str


@dataclass(frozen=True)
class StateFigures:
    """A job's state over its newest epochs.

    ``epochs`` and ``seconds`` are of the stretch that is looked at; ``rows`` and
    ``changelog_bytes`` were written in it, ``merged_bytes`` written again by merges.
    """

    job: str
    epoch: int
    epochs: int
    seconds: float
    rows: int
    changelog_bytes: int
    merged_bytes: int
    tasks: tuple[TaskFigures, ...]

    @property
    def state_bytes(self) -> int:
        """About how much the live entries of all stores take."""
        return sum(task.state_bytes for task in self.tasks)

    @property
    def interval_s(self) -> float | None:
        """Seconds from one epoch to the next; ``None`` where there was one only."""
        return self.seconds / self.epochs if self.epochs and self.seconds else None

    @property
    def rebuild_bytes(self) -> int:
        """What all tasks together read when their local state is lost."""
        return sum(task.snapshot_bytes + task.segment_bytes for task in self.tasks)

    @property
    def model(self) -> CostModel:
        """The cost model with these figures."""
        rate = self.rows / self.seconds if self.seconds else 0.0
        entry = self.changelog_bytes / self.rows if self.rows else 0.0
        return CostModel(self.state_bytes, rate, entry)


def state_figures(log: CommitLog, job: str, epochs: int) -> StateFigures:
    """Read a job's figures.

    Args:
        log: its manifests.
        job: its name.
        epochs: at most so many of the newest are looked at.

    Raises:
        InvalidInputError: the job has no epoch yet.
        CorruptDataError: a manifest is damaged or missing.
    """
    known = log.epochs()
    found = list(states(log, known[-1]))[-epochs - 1 :] if known else []
    if not found:
        raise InvalidInputError(f"job {job!r} has no epoch; run it first, or check its name")
    newest = found[-1]
    written = [_written(before, after) for before, after in pairwise(found)]
    return StateFigures(
        job,
        newest.epoch,
        len(written),
        (newest.time_ms - found[0].time_ms) / 1000,
        sum(rows for rows, _, _ in written),
        sum(logged for _, logged, _ in written),
        sum(merged for _, _, merged in written),
        _tasks(newest),
    )


def _written(before: JobState, after: JobState) -> tuple[int, int, int]:
    """Return the rows and bytes that an epoch logged, and the bytes that it had merged."""
    rows = logged = merged = 0
    for name, task in after.tasks.items():
        held = before.tasks.get(name)
        known = {ref.path for ref in held.files} if held is not None else set()
        for ref in task.files:
            if ref.path in known:
                continue
            if ref.first_epoch == ref.epoch == after.epoch:
                rows, logged = rows + ref.rows, logged + ref.bytes
            else:
                merged += ref.bytes
    return rows, logged, merged


def _tasks(state: JobState) -> tuple[TaskFigures, ...]:
    found = []
    for name, task in sorted(state.tasks.items(), key=lambda item: _order(item[0])):
        merge = merge_order(task, state.time_ms)
        due = ""
        if merge is not None:
            what = "a snapshot" if merge.snapshot else "one segment"
            size = sum(ref.bytes for ref in merge.sources)
            due = f"{len(merge.sources)} files of {size / 1e6:.1f} MB into {what}"
        found.append(
            TaskFigures(
                name,
                state_bytes(task),
                len(task.files),
                task.snapshot_bytes,
                task.segment_bytes,
                str(snapshot_reason(task)),
                due,
            )
        )
    return tuple(found)


def _order(name: str) -> tuple[str, int]:
    stage, _, number = name.rpartition("/")
    return (stage, int(number))
