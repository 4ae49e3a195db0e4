"""What is committed for one task: where its stores stand, and the files that hold them.

A store is filled from the ``snapshots`` and the ``segments`` after them. A merge replaces
some of these files by one that stands for them, exactly, or does nothing.
"""

from __future__ import annotations

import msgspec

from headrace.coordinator.hosts.record import Former, former_hosts
from headrace.state.snapshots import SnapshotDecision
from headrace.state.tiers import Run, decide, live_bytes, plan_merge
from headrace.task.orders import NO_WATERMARK, Merged, MergeOrder, SegmentRef


class TaskState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is committed for one task.

    ``epoch`` and ``attempt`` tell which changes its stores must hold. ``snapshots`` are what
    a store begins with, to be applied one after the other by key groups: none, one, or after
    a change of task count several, which may hold deletions and be of another lineage. After
    them it stands at ``snapshot_epoch`` and ``snapshot_attempt``; ``segments`` are the changes
    since, in epoch order. ``waiting`` messages wait for asynchronous calls, and have held what
    follows these at the watermark ``held``. ``shape`` changes whenever a merge took effect;
    ``expires`` says that some entries live for a time only. ``former`` are hosts that it ran on
    before ``host``, whose disks may still hold some of its state.
    """

    epoch: int = -1
    attempt: str = ""
    snapshots: tuple[SegmentRef, ...] = ()
    snapshot_epoch: int = -1
    snapshot_attempt: str = ""
    segments: tuple[SegmentRef, ...] = ()
    shape: int = 0
    state_bytes: int = 0
    expires: bool = False
    event_deadline: int | None = None
    wall_deadline: int | None = None
    host: str = ""
    held: int | None = None
    waiting: int = 0
    former: Former = ()

    @property
    def files(self) -> tuple[SegmentRef, ...]:
        """Everything that a store is filled from, in the order it is applied."""
        return (*self.snapshots, *self.segments)

    @property
    def segment_bytes(self) -> int:
        """This task's part of the changelog since the snapshots."""
        return sum(ref.bytes for ref in self.segments)

    @property
    def snapshot_bytes(self) -> int:
        """This task's part of the snapshots."""
        return sum(ref.bytes for ref in self.snapshots)


class TaskChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an epoch changed of one task; from the deadlines on, all is always as it is now.

    ``segment`` holds the epoch's changes, ``merged`` what stands for earlier files.
    """

    segment: SegmentRef | None = None
    merged: Merged | None = None
    state_bytes: int = 0
    expires: bool = False
    event_deadline: int | None = None
    wall_deadline: int | None = None
    host: str = ""
    held: int | None = None
    waiting: int = 0


def merge_order(task: TaskState, now_ms: int, watermark: int = NO_WATERMARK) -> MergeOrder | None:
    """Return which of a task's files to merge next, ``None`` for none.

    Args:
        task: what is committed for it.
        now_ms: the wall clock of the committed epoch.
        watermark: of the stage after it.
    """
    plan = plan_merge(*_runs(task), task.state_bytes, expires=task.expires)
    if plan is None:
        return None
    files = task.files[plan.begin : plan.end]
    stands = (task.snapshot_epoch, task.snapshot_attempt)
    if plan.end > len(task.snapshots):
        stands = (files[-1].epoch, files[-1].attempt)
    return MergeOrder(files, *stands, plan.is_snapshot, now_ms, watermark)


def snapshot_reason(task: TaskState) -> SnapshotDecision:
    """Return the figures that decide over a snapshot of a task."""
    return decide(*_runs(task), task.state_bytes, expires=task.expires)


def state_bytes(task: TaskState) -> int:
    """Return about how much the live entries of a task take, as its files hold them.

    A task tells of its stores as they were before the epoch that it ran, so the first changes of
    all are taken as a whole.
    """
    if not task.state_bytes and len(task.files) == 1:
        return task.segment_bytes + task.snapshot_bytes
    return live_bytes(*_runs(task), task.state_bytes, expires=task.expires)


def _runs(task: TaskState) -> tuple[list[Run], list[Run]]:
    return (
        [Run(ref.bytes, ref.rows) for ref in task.snapshots],
        [Run(ref.bytes, ref.rows) for ref in task.segments],
    )


def can_replace(task: TaskState, merged: Merged) -> bool:
    """Say whether the files that a merge stands for are still there, adjacent and as they were."""
    return _replaced(task, merged) is not None


def changed(task: TaskState, change: TaskChange) -> TaskState:
    """Return a task after one more epoch."""
    merged = change.merged and _replaced(task, change.merged)
    if merged:
        task = merged
    held = task.epoch
    if change.segment is not None:
        task = msgspec.structs.replace(
            task,
            epoch=change.segment.epoch,
            attempt=change.segment.attempt,
            segments=(*task.segments, change.segment),
        )
    return msgspec.structs.replace(
        task,
        state_bytes=change.state_bytes,
        expires=change.expires,
        event_deadline=change.event_deadline,
        wall_deadline=change.wall_deadline,
        host=change.host,
        held=change.held,
        waiting=change.waiting,
        former=former_hosts(task.former, task.host, held, change.host),
    )


def _replaced(task: TaskState, merged: Merged) -> TaskState | None:
    """Put a merged file in the place of what it stands for; ``None`` when it does not fit."""
    ref, count, base = merged.ref, len(merged.sources), len(task.snapshots)
    paths = [held.path for held in task.files]
    begin = 0 if merged.snapshot else _index(paths, merged.sources[:1])
    end = begin + count
    if not count or tuple(paths[begin:end]) != merged.sources:
        return None
    if end < base or (begin < base and not merged.snapshot):
        return None
    # Where a store stands after the last of what is replaced.
    stands = (task.snapshot_epoch, task.snapshot_attempt)
    if end > base:
        stands = (task.files[end - 1].epoch, task.files[end - 1].attempt)
    if (ref.epoch, ref.attempt) != stands:
        return None
    shape = task.shape + 1
    if merged.snapshot:
        return msgspec.structs.replace(
            task,
            snapshots=(ref,),
            snapshot_epoch=ref.epoch,
            snapshot_attempt=ref.attempt,
            segments=task.files[end:],
            shape=shape,
        )
    if ref.first_epoch != task.files[begin].first_epoch:
        return None
    kept = (*task.files[base:begin], ref, *task.files[end:])
    return msgspec.structs.replace(task, segments=kept, shape=shape)


def _index(paths: list[str], wanted: tuple[str, ...]) -> int:
    return paths.index(wanted[0]) if wanted and wanted[0] in paths else len(paths)
