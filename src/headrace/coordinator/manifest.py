"""The manifest of an epoch, and the job's state as the fold of all manifests.

A base manifest holds the whole state, a delta what one epoch changed; the state after
epoch N is the last base up to N with the deltas after it. A file is a JSON line and the
BLAKE2 digest of that line; each manifest names the digest of the one before.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from headrace.coordinator.hosts.record import Happening, Hosts, folded, told
from headrace.coordinator.standby.placing import Standbys
from headrace.coordinator.task_files import TaskChange, TaskState, changed
from headrace.errors import CorruptDataError
from headrace.task.orders import NO_WATERMARK, OutputPart, SinkPart

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
    ``task_counts`` tells how many of them share the key groups of each keyed stage; after
    epoch ``rescaled_at`` these win over the settings. Files of epochs from ``kept_from`` on
    are not swept. ``durability`` tells what is promised, as its setting does; ``copy_of`` is the
    digest of the manifest that this is a copy of, where epochs commit elsewhere. ``tables``
    holds the offsets up to which broadcast stores were read. ``origin`` is the lineage that the
    job began with; empty: this one. ``wake_ms`` is the wall clock at which watermarks move on
    although no row comes. ``operators`` says what each one did so far, for people. ``bootstrap``
    holds the offsets up to which inputs are read before any other.
    ``standbys`` are the copies of tasks' stores on other hosts; ``hosts`` those that tasks are
    placed on, or were, by identity, and ``story`` what became of them lately. ``run`` counts how
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
    story: tuple[Happening, ...] = ()

    def files(self) -> set[str]:
        """Return every file that the state names, relative to the job's storage."""
        named = {part.path for part in self.outputs} | {part.path for part in self.sinks}
        for task in self.tasks.values():
            named.update(ref.path for ref in task.files)
        return named


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One committed epoch: its changes, or with ``base`` the whole state after it.

    ``is_half`` tells that it holds state without its offsets, or offsets without their state, and
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
    story: tuple[Happening, ...] = ()


class _Form(msgspec.Struct):
    format: int


_DECODER = msgspec.json.Decoder(Manifest)
_FORM = msgspec.json.Decoder(_Form)


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
        form = _FORM.decode(line).format
        if form != FORMAT:
            raise CorruptDataError(
                f"manifest {origin} has format {form}, this version reads {FORMAT}; go on with the "
                "version that wrote it, or run the job under another name",
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
    inputs = {stream: dict(partitions) for stream, partitions in state.inputs.items()}
    for stream, partitions in manifest.inputs.items():
        inputs.setdefault(stream, {}).update(partitions)
    tasks = dict(state.tasks)
    for name, change in manifest.tasks.items():
        tasks[name] = changed(tasks.get(name, TaskState()), change)
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
        tables=manifest.tables or state.tables,
        watermarks={**state.watermarks, **manifest.watermarks},
        tasks=tasks,
        task_counts=state.task_counts,
        outputs=manifest.outputs,
        sinks=manifest.sinks,
        counts=counts,
        ended=manifest.ended,
        kept_from=max(state.kept_from, manifest.kept_from),
        rescaled_at=state.rescaled_at,
        durability=state.durability,
        copy_of=state.copy_of,
        origin=state.origin,
        wake_ms=manifest.wake_ms,
        operators=_operators(state, manifest),
        bootstrap=state.bootstrap,
        standbys={name: s for name, s in {**state.standbys, **manifest.standbys}.items() if s},
        run=state.run,
        hosts=folded(state.hosts, manifest.hosts),
        story=told(state.story, manifest.story),
    )


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
