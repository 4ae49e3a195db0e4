"""The manifest of an epoch, and the job's state as the fold of all manifests.

A base manifest holds the whole state, a delta what one epoch changed; the state after
epoch N is the last base up to N with the deltas after it. A file is a JSON line and the
BLAKE2 digest of that line; each manifest names the digest of the one before.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from headrace.errors import CorruptDataError
from headrace.task.orders import NO_WATERMARK, FileRef, OutputPart

FORMAT = 1


class InputPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far one partition has been read, and the highest event time below that, ms."""

    next_offset: int
    max_time: int = NO_WATERMARK


class TaskState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is committed for one task.

    ``epoch`` and ``attempt`` tell which changes its stores must hold; ``segments`` are
    those since ``snapshot``, in epoch order. ``segment_bytes`` is this task's part of them.
    The snapshot stands at the changes of ``snapshot_epoch`` and ``snapshot_attempt``.
    """

    epoch: int = -1
    attempt: str = ""
    segments: tuple[FileRef, ...] = ()
    segment_bytes: int = 0
    snapshot: FileRef | None = None
    snapshot_epoch: int = -1
    snapshot_attempt: str = ""
    snapshot_bytes: int = 0
    state_bytes: int = 0
    event_deadline: int | None = None
    wall_deadline: int | None = None
    host: str = ""


class JobState(msgspec.Struct, frozen=True):
    """Everything that is true of a job after an epoch.

    ``until`` holds the offsets at which each partition ends, where the run is bounded;
    ``fingerprint`` what must not change under this state; ``tasks`` is by "stage/task", and
    ``task_counts`` tells how many of them share the key groups of each keyed stage.
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
    counts: dict[str, int] = {}
    ended: bool = False

    def files(self) -> set[str]:
        """Return every file that the state names, relative to the job's storage."""
        named = {part.path for part in self.outputs}
        for task in self.tasks.values():
            named.update(segment.path for segment in task.segments)
            if task.snapshot is not None:
                named.add(task.snapshot.path)
        return named


class TaskChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an epoch changed of one task; deadlines and host are always the new ones."""

    attempt: str = ""
    segment: FileRef | None = None
    segment_bytes: int = 0
    snapshot: FileRef | None = None
    snapshot_epoch: int = -1
    snapshot_bytes: int = 0
    state_bytes: int = 0
    event_deadline: int | None = None
    wall_deadline: int | None = None
    host: str = ""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One committed epoch: its changes, or with ``base`` the whole state after it."""

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
    counts: dict[str, int] = {}
    ended: bool = False


_DECODER = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> tuple[bytes, str]:
    """Return the bytes of a manifest file, and its digest."""
    line = msgspec.json.encode(manifest)
    digest = hashlib.blake2b(line, digest_size=16).hexdigest()
    return line + b"\n" + digest.encode() + b"\n", digest


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
        manifest = _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"manifest {origin} cannot be read: {error}", file=origin) from error
    if manifest.format != FORMAT:
        raise CorruptDataError(
            f"manifest {origin} has format {manifest.format}, this version reads {FORMAT}",
            file=origin,
        )
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
    inputs = {stream: dict(partitions) for stream, partitions in state.inputs.items()}
    for stream, partitions in manifest.inputs.items():
        inputs.setdefault(stream, {}).update(partitions)
    tasks = dict(state.tasks)
    for name, change in manifest.tasks.items():
        tasks[name] = _changed(tasks.get(name, TaskState()), change, manifest.epoch)
    counts = dict(state.counts)
    for name, count in manifest.counts.items():
        counts[name] = counts.get(name, 0) + count
    return JobState(
        job=state.job,
        lineage=state.lineage,
        generation=manifest.generation,
        epoch=manifest.epoch,
        time_ms=manifest.time_ms,
        digest=digest,
        key_groups=state.key_groups,
        fingerprint=state.fingerprint,
        inputs=inputs,
        until=manifest.until if manifest.until is not None else state.until,
        watermarks={**state.watermarks, **manifest.watermarks},
        tasks=tasks,
        task_counts=state.task_counts,
        outputs=manifest.outputs,
        counts=counts,
        ended=manifest.ended,
    )


def _changed(task: TaskState, change: TaskChange, epoch: int) -> TaskState:
    segments, size = task.segments, task.segment_bytes
    if change.snapshot is not None:
        segments = tuple(s for s in segments if s.epoch > change.snapshot_epoch)
        size = 0
    if change.segment is not None:
        segments, size = (*segments, change.segment), size + change.segment_bytes
    kept = change.snapshot is None
    return TaskState(
        epoch=epoch if change.segment is not None else task.epoch,
        attempt=change.attempt if change.segment is not None else task.attempt,
        segments=segments,
        segment_bytes=size,
        snapshot=task.snapshot if kept else change.snapshot,
        snapshot_epoch=task.snapshot_epoch if kept else change.snapshot_epoch,
        snapshot_attempt=task.snapshot_attempt if kept else task.attempt,
        snapshot_bytes=task.snapshot_bytes if kept else change.snapshot_bytes,
        state_bytes=change.state_bytes,
        event_deadline=change.event_deadline,
        wall_deadline=change.wall_deadline,
        host=change.host,
    )
