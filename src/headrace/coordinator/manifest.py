"""The manifest of an epoch, and the job's state as the fold of all manifests.

A base manifest holds the whole state, a delta what one epoch changed; the state after
epoch N is the last base up to N with the deltas after it. A file is a JSON line and the
BLAKE2 digest of that line; each manifest names the digest of the one before.

Of each task it has where its stores stand, and the files that hold them: a store is filled from
the ``snapshots`` and the ``segments`` after them. A compaction replaces some of these files by
one that stands for them, exactly, or does nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Literal, TypeVar

import msgspec

from headrace.coordinator.host_state import (
    ClusterEvent,
    FormerHosts,
    Hosts,
    Standby,
    Standbys,
    former_hosts,
    merge_hosts,
    recent_events,
)
from headrace.errors import CorruptDataError
from headrace.runtime.orders import (
    NO_WATERMARK,
    Merged,
    MergeOrder,
    OutputPart,
    SegmentRef,
    SinkPart,
    TaskProgress,
)
from headrace.state import compaction_policy as policy
from headrace.state.compaction_policy import (
    MAX_FILES,
    RunSize,
    SnapshotDecision,
    decide_snapshot,
    live_bytes,
    plan_compaction,
)
from headrace.state.segment import SNAPSHOT


class PendingCompaction(msgspec.Struct, frozen=True, array_like=True):
    """A merge that was ordered and is not committed: the name of its file, and what goes into it.

    The rest is as in ``MergeOrder``. The slot that runs the task next is asked for the same.
    """

    path: str = ""
    sources: tuple[str, ...] = ()
    snapshot: bool = False
    now_ms: int = 0
    watermark: int = NO_WATERMARK

    @classmethod
    def of(cls, order: MergeOrder) -> PendingCompaction:
        """Return what is kept of an order."""
        sources = tuple(source.path for source in order.sources)
        return cls(order.path, sources, order.snapshot, order.now_ms, order.watermark)


NO_COMPACTION = PendingCompaction()
_BYTES = attrgetter("bytes")


class TaskState(TaskProgress, frozen=True, omit_defaults=True):
    """What is committed for one task.

    ``epoch`` and ``attempt`` say which changes its stores must hold. ``snapshots`` are what
    a store begins with, to be applied one after the other by key groups: none, one, or after
    a change of task count several, which may hold deletions and be of another lineage. After
    them it stands at ``snapshot_epoch`` and ``snapshot_attempt``; ``segments`` are the changes
    since, in epoch order. ``shape`` changes whenever a merge took effect. ``former`` are hosts
    that it ran on before ``host``, whose disks may still hold some of its state. ``merging`` is
    what was ordered to be merged.
    """

    epoch: int = -1
    attempt: str = ""
    snapshots: tuple[SegmentRef, ...] = ()
    snapshot_epoch: int = -1
    snapshot_attempt: str = ""
    segments: tuple[SegmentRef, ...] = ()
    shape: int = 0
    host: str = ""
    former: FormerHosts = ()
    merging: PendingCompaction | None = None

    @property
    def files(self) -> tuple[SegmentRef, ...]:
        """Everything that a store is filled from, in the order it is applied."""
        return (*self.snapshots, *self.segments)

    @property
    def file_bytes(self) -> int:
        """This task's part of all these files."""
        return sum(map(_BYTES, (*self.snapshots, *self.segments)))

    @property
    def segment_bytes(self) -> int:
        """This task's part of the changelog since the snapshots."""
        return sum(map(_BYTES, self.segments))

    @property
    def snapshot_bytes(self) -> int:
        """This task's part of the snapshots."""
        return sum(map(_BYTES, self.snapshots))


class TaskChange(TaskProgress, frozen=True, omit_defaults=True):
    """What an epoch changed of one task, and where that and its host are now.

    ``segment`` holds the epoch's changes, ``merged`` what stands for earlier files. ``merging`` is
    a merge that was ordered; ``NO_COMPACTION``: the one before is no longer wanted.
    """

    segment: SegmentRef | None = None
    merged: Merged | None = None
    merging: PendingCompaction | None = None
    host: str = ""


NEW_TASK = TaskState()
"""A task that has committed nothing."""


_T = TypeVar("_T", bound=TaskProgress)


def with_progress(task: _T, now: TaskProgress) -> _T:
    """Return a task that is where another struct says that it is.

    Fields are passed by name: each task of an epoch comes here, and ``**`` takes three times as
    long.
    """
    return msgspec.structs.replace(
        task,
        state_bytes=now.state_bytes,
        expires=now.expires,
        event_deadline=now.event_deadline,
        wall_deadline=now.wall_deadline,
        watermark_hold_ms=now.watermark_hold_ms,
        waiting=now.waiting,
        swept_ms=now.swept_ms,
    )


def unchanged_task(task: TaskState) -> TaskChange:
    """Return the change of a task in an epoch that it did not run in."""
    return with_progress(TaskChange(host=task.host), task)


def next_compaction(
    task: TaskState, now_ms: int, watermark: int = NO_WATERMARK, name: str = ""
) -> MergeOrder | None:
    """Return the merge that is under way, else which of a task's files to merge next.

    Args:
        task: what is committed for it.
        now_ms: the wall clock of the committed epoch.
        watermark: of the stage after it.
        name: of the file of a merge that begins now, which nothing else ever has.
    """
    merging = task.merging
    if merging is None:
        count = len(task.snapshots) + len(task.segments)
        most_gain = task.file_bytes + count * policy.FILE_COST_BYTES
        if count < policy.FAN_IN and most_gain <= policy.MINIMUM_GAIN_BYTES:
            return None  # too few to merge, and too small for a snapshot, whatever is in them
        plan = plan_compaction(*_runs(task), task.state_bytes, expires=task.expires)
        if plan is None:
            return None
        begin, end = plan.begin, plan.end
        folder = SNAPSHOT if plan.is_snapshot else "segment"
        merging = PendingCompaction(f"{folder}/{name}", (), plan.is_snapshot, now_ms, watermark)
    else:
        begin = _index([ref.path for ref in task.files], merging.sources[:1])
        end = begin + len(merging.sources)
    files = task.files[begin:end]
    stands = (task.snapshot_epoch, task.snapshot_attempt)
    if end > len(task.snapshots):
        stands = (files[-1].epoch, files[-1].attempt)
    return MergeOrder(
        files,
        *stands,
        merging.snapshot,
        merging.now_ms,
        merging.watermark,
        merging.path,
        at_once=len(task.files) > MAX_FILES,
    )


def snapshot_reason(task: TaskState) -> SnapshotDecision:
    """Return the figures that decide over a snapshot of a task."""
    return decide_snapshot(*_runs(task), task.state_bytes, expires=task.expires)


def state_bytes(task: TaskState) -> int:
    """Return about how much the live entries of a task take, as its files hold them.

    A task describes its stores as they were before the epoch that it ran, so the first changes of
    all are taken together.
    """
    if not task.state_bytes and len(task.files) == 1:
        return task.file_bytes
    if not task.snapshots:  # any entry may have been written again
        return min(task.state_bytes, task.segment_bytes)
    return live_bytes(*_runs(task), task.state_bytes, expires=task.expires)


def _runs(task: TaskState) -> tuple[list[RunSize], list[RunSize]]:
    return (
        [RunSize(ref.bytes, ref.rows) for ref in task.snapshots],
        [RunSize(ref.bytes, ref.rows) for ref in task.segments],
    )


def is_applicable(task: TaskState, merged: Merged) -> bool:
    """Say whether the files that a merge stands for are still there, adjacent and as they were."""
    return _with_compacted(task, merged) is not None


def apply_change(task: TaskState, change: TaskChange) -> TaskState:
    """Return a task after one more epoch."""
    merged = change.merged and _with_compacted(task, change.merged)
    if merged:
        task = merged
    if change.merging is not None:
        wanted = change.merging if change.merging.path else None
        task = msgspec.structs.replace(task, merging=wanted)
    if task.host != change.host:
        former = former_hosts(task.former, task.host, task.epoch, change.host)
        task = msgspec.structs.replace(task, host=change.host, former=former)
    if change.segment is not None:
        task = msgspec.structs.replace(
            task,
            epoch=change.segment.epoch,
            attempt=change.segment.attempt,
            segments=(*task.segments, change.segment),
        )
    return with_progress(task, change)


def _with_compacted(task: TaskState, merged: Merged) -> TaskState | None:
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
            merging=None,
        )
    if ref.first_epoch != task.files[begin].first_epoch:
        return None
    kept = (*task.files[base:begin], ref, *task.files[end:])
    return msgspec.structs.replace(task, segments=kept, shape=shape, merging=None)


def _index(paths: list[str], wanted: tuple[str, ...]) -> int:
    return paths.index(wanted[0]) if wanted and wanted[0] in paths else len(paths)


FORMAT = 2
SINK_ROWS = "sink."
"""What the counts of rows begin with that a sink was sent; its operator follows."""


class InputPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far one partition has been read, and the highest event time below that, ms.

    ``read_ms`` is the wall clock of the last epoch that read rows of it, or that first knew of
    it. Where the lateness follows the delays, ``delays`` counts them, and ``watermark`` is the
    partition's, which otherwise follows from the highest event time. Of an internal stream
    ``max_time`` is the highest mark, and ``ended`` says that nothing follows.
    """

    next_offset: int
    max_time: int = NO_WATERMARK
    read_ms: int = 0
    watermark: int = NO_WATERMARK
    delays: tuple[int, ...] = ()
    ended: bool = False

    def watermark_behind(self, lateness_ms: int) -> int:
        """Return the partition's watermark where it stays so far behind, unless it follows."""
        if self.delays or self.max_time == NO_WATERMARK:
            return self.watermark
        return self.max_time - lateness_ms

    def lag(self, end: int) -> int:
        """Return how many rows lie between here and the end of the partition."""
        return max(0, end - self.next_offset)


def partition_lags(positions: Mapping[int, InputPosition], ends: Sequence[int]) -> list[int]:
    """Return how many rows lie before each partition of an input.

    Args:
        positions: of the input; a partition that it has none of is read from its beginning.
        ends: of its stream, by partition.
    """
    first = InputPosition(0)
    return [positions.get(partition, first).lag(end) for partition, end in enumerate(ends)]


class OperatorState(msgspec.Struct, frozen=True, array_like=True):
    """What an operator has counted so far; when it last sent rows, and when it last received any.

    When: the number of an epoch, and its clock, ms.
    """

    counts: dict[str, int] = {}
    epoch: int = -1
    time_ms: int = 0
    received_epoch: int = -1
    received_ms: int = 0


class JobState(msgspec.Struct, frozen=True):
    """Everything that is true of a job after an epoch.

    ``until`` holds the offsets at which each partition ends, where the run is bounded;
    ``fingerprint`` what must not change under this state; ``tasks`` is by "stage/task", and
    ``task_counts`` says how many of them share the key groups of each keyed stage; after
    epoch ``rescaled_at`` these win over the settings. Files of epochs from ``kept_from`` on
    are not swept. ``durability`` says what is promised, as its setting does; ``copy_of`` is the
    digest of the manifest that this is a copy of, where epochs commit elsewhere. ``tables``
    holds the offsets up to which broadcast stores were read. ``origin`` is the lineage that the
    job began with; empty: this one. ``wake_ms`` is the wall clock at which watermarks move on
    although no row comes. ``operators`` says what each one did so far, for people. ``bootstrap``
    holds the offsets up to which inputs are read before any other.
    ``identities`` has the identity of the stream of each input operator, and of each broadcast
    store, which its offsets are of; of what is not in it, as in older states, nothing is known.
    ``standbys`` are the copies of tasks' stores on other hosts; ``hosts`` those that tasks are
    placed on, or were, by identity, and ``host_events`` their latest events. ``run`` counts how
    often the job was begun without state.
    """

    job: str
    lineage: str
    generation: int
    epoch: int
    time_ms: int
    digest: str
    key_groups: int
    fingerprint: dict[str, str]
    inputs: dict[str, dict[int, InputPosition]]
    until: dict[str, list[int]] | None = None
    watermarks: dict[str, int] = {}
    tasks: dict[str, TaskState] = {}
    task_counts: dict[str, int] = {}
    outputs: tuple[OutputPart, ...] = ()
    sinks: tuple[SinkPart, ...] = ()
    counts: dict[str, int] = {}
    ended: bool = False
    kept_from: int = 0
    rescaled_at: int = -1
    durability: str = "epoch"
    copy_of: str = ""
    origin: str = ""
    tables: dict[str, list[int]] = {}
    wake_ms: int | None = None
    operators: dict[str, OperatorState] = {}
    bootstrap: dict[str, list[int]] = {}
    standbys: Standbys = {}
    run: int = 1
    hosts: Hosts = {}
    host_events: tuple[ClusterEvent, ...] = msgspec.field(default=(), name="story")
    identities: dict[str, str] = {}

    def files(self) -> set[str]:
        """Return every file that the state names, relative to the job's storage."""
        named = {part.path for part in self.outputs} | {part.path for part in self.sinks}
        for task in self.tasks.values():
            named.update(ref.path for ref in task.files)
        return named

    def merging(self) -> set[str]:
        """Return the files that tasks were asked to merge others into; they may not be there."""
        wanted = (task.merging for task in self.tasks.values())
        return {merging.path for merging in wanted if merging is not None}


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One committed epoch: its changes, or with ``base`` the whole state after it.

    ``is_half`` says that it holds state without its offsets, or offsets without their state, and
    that the next manifest is to bring what is missing.
    """

    format: int
    kind: Literal["base", "delta"]
    job: str
    lineage: str
    generation: int
    epoch: int
    time_ms: int
    previous: str
    base: JobState | None = None
    inputs: dict[str, dict[int, InputPosition]] = {}
    until: dict[str, list[int]] | None = None
    watermarks: dict[str, int] = {}
    tasks: dict[str, TaskChange] = {}
    outputs: tuple[OutputPart, ...] = ()
    sinks: tuple[SinkPart, ...] = ()
    counts: dict[str, int] = {}
    ended: bool = False
    kept_from: int = 0
    tables: dict[str, list[int]] = {}
    wake_ms: int | None = None
    operators: dict[str, dict[str, int]] = {}
    is_half: bool = False
    standbys: Standbys = {}
    hosts: Hosts = {}
    host_events: tuple[ClusterEvent, ...] = msgspec.field(default=(), name="story")
    identities: dict[str, str] = {}


class _FormatOnly(msgspec.Struct):
    format: int


_DECODER = msgspec.json.Decoder(Manifest)
_FORMAT_DECODER = msgspec.json.Decoder(_FormatOnly)


def encode_manifest(manifest: Manifest) -> tuple[bytes, str]:
    """Return the bytes of a manifest file, and its digest."""
    line = msgspec.json.encode(manifest)
    digest = hashlib.blake2b(line, digest_size=16).hexdigest()
    return line + b"\n" + digest.encode() + b"\n", digest


def base_manifest(state: JobState, previous: str) -> Manifest:
    """Return a whole state as a manifest; ``previous`` is the digest of the one before."""
    return Manifest(
        format=FORMAT,
        kind="base",
        job=state.job,
        lineage=state.lineage,
        generation=state.generation,
        epoch=state.epoch,
        time_ms=state.time_ms,
        previous=previous,
        base=msgspec.structs.replace(state, digest=""),
    )


def decode_manifest(data: bytes, origin: str) -> tuple[Manifest, str]:
    """Read and verify a manifest file; returns it with its digest.

    Raises:
        CorruptDataError: the digest does not match, or the format is unknown.
    """
    line, _, rest = data.partition(b"\n")
    digest = hashlib.blake2b(line, digest_size=16).hexdigest()
    if rest != digest.encode() + b"\n":
        raise CorruptDataError(f"manifest {origin} does not match its digest", file=origin)
    try:
        form = _FORMAT_DECODER.decode(line).format
        if form != FORMAT:
            raise CorruptDataError(
                f"manifest {origin} has format {form}, this version reads {FORMAT}; continue with "
                "the version that wrote it, or run the job under another name",
                file=origin,
            )
        manifest = _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"manifest {origin} cannot be read: {error}", file=origin) from error
    return manifest, digest


def fold(state: JobState | None, manifest: Manifest, digest: str) -> JobState:
    """Return the job's state after one more manifest.

    Raises:
        CorruptDataError: the manifest does not follow the state.
    """
    if manifest.base is not None:
        return msgspec.structs.replace(manifest.base, digest=digest, generation=manifest.generation)
    if state is None or manifest.previous != state.digest or manifest.epoch != state.epoch + 1:
        found = "nothing" if state is None else f"epoch {state.epoch} ({state.digest})"
        raise CorruptDataError(
            f"manifest of epoch {manifest.epoch} follows {manifest.previous}, found {found}",
            epoch=manifest.epoch,
        )
    inputs = dict(state.inputs)
    for stream, partitions in manifest.inputs.items():
        inputs[stream] = {**inputs.get(stream, {}), **partitions}
    tasks = dict(state.tasks)
    for name, change in manifest.tasks.items():
        tasks[name] = apply_change(tasks.get(name, NEW_TASK), change)
    counts = dict(state.counts)
    for name, count in manifest.counts.items():
        counts[name] = counts.get(name, 0) + count
    return msgspec.structs.replace(
        state,
        generation=manifest.generation,
        epoch=manifest.epoch,
        time_ms=manifest.time_ms,
        digest=digest,
        inputs=inputs,
        until=manifest.until if manifest.until is not None else state.until,
        tables=manifest.tables or state.tables,
        watermarks={**state.watermarks, **manifest.watermarks},
        tasks=tasks,
        outputs=manifest.outputs,
        sinks=manifest.sinks,
        counts=counts,
        ended=manifest.ended,
        kept_from=max(state.kept_from, manifest.kept_from),
        wake_ms=manifest.wake_ms,
        operators=_operators(state, manifest),
        standbys=_standbys(state, manifest) if manifest.standbys else state.standbys,
        hosts=merge_hosts(state.hosts, manifest.hosts) if manifest.hosts else state.hosts,
        host_events=recent_events(state.host_events, manifest.host_events)
        if manifest.host_events
        else state.host_events,
        identities={**state.identities, **manifest.identities},
    )


def _standbys(state: JobState, manifest: Manifest) -> Standbys:
    merged = {**state.standbys, **manifest.standbys}
    return {name: held for name, held in merged.items() if held}


def _operators(state: JobState, manifest: Manifest) -> dict[str, OperatorState]:
    found = dict(state.operators)
    for name, counts in manifest.operators.items():
        held = found.get(name, OperatorState())
        total = dict(held.counts)
        for what, count in counts.items():
            total[what] = total.get(what, 0) + count
        now = (manifest.epoch, manifest.time_ms)
        has_sent = counts.get("sent") or counts.get("out")
        sent = now if has_sent else (held.epoch, held.time_ms)
        received = now if counts.get("received") else (held.received_epoch, held.received_ms)
        found[name] = OperatorState(total, *sent, *received)
    return found


def begin_lineage(state: JobState, lineage: str) -> JobState:
    """Return a state as the begin of a lineage.

    What was committed so far becomes what a store begins with; a store of another lineage is
    thrown away when it is next caught up. Outputs are published under the new lineage, so
    none passes for one of the old.
    """
    return msgspec.structs.replace(
        state,
        lineage=lineage,
        origin=state.origin or state.lineage,
        copy_of="",
        tasks={name: _based(task) for name, task in state.tasks.items()},
        standbys={
            name: tuple(Standby(standby.host) for standby in held)
            for name, held in state.standbys.items()
        },
    )


def _based(task: TaskState) -> TaskState:
    return msgspec.structs.replace(
        task,
        snapshots=task.files,
        snapshot_epoch=task.epoch,
        snapshot_attempt=task.attempt,
        segments=(),
        shape=task.shape + 1,
        merging=None,
    )
