"""Records an epoch, what it read and the state before it, in one file; and restores it.

Recording takes nothing from a driver that runs meanwhile, and needs none. Restoring puts the
streams on a bus and the state in a storage, where a job can continue from it.
"""

from __future__ import annotations

import binascii
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from headrace.bus import Bus, OffsetBatch, Stream
from headrace.bus.memory import MemoryBus, RestoredRows
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.bindings import LoadedFile
from headrace.coordinator.commit_log import CommitLog
from headrace.coordinator.inspection.job_reader import TRIES, JobReader
from headrace.coordinator.job_storage import JobStorage
from headrace.coordinator.manifest import JobState, base_manifest, encode_manifest
from headrace.coordinator.operations.recording_archive import (
    FORMAT,
    VERSION,
    ArchiveReader,
    ArchiveWriter,
    RecordedFile,
    RecordedPartition,
    RecordedStream,
    Recording,
)
from headrace.coordinator.operations.recording_scope import (
    EpochFacts,
    check_offsets,
    check_recordable,
    check_rows,
    epoch_facts,
    offsets_needed,
)
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import Files
from headrace.plan.inference import TableFile

OFFSET_COLUMN = "__offset"
"""The column with the offset of each row."""

KEPT_SETTINGS = {
    "job": (
        *("tasks", "key_groups", "dead_letters", "call_timeout_s", "rows_per_message"),
        *("max_concurrency", "threads"),
    ),
    "state": ("overlay_bytes",),
}
"""What results depend on, by section."""


@dataclass(frozen=True)
class Recorder:
    """Records epochs of one job, or of one part of it.

    Args:
        reader: of its manifests.
        bus: its streams.
        settings: of the run; of them only those go to a file that results depend on.
        clock: for an epoch that has not run.
        parts: readers of all parts of a job that has several: streams of others are described,
            too, for the whole graph is planned.
        files: the file system.
    """

    reader: JobReader
    bus: Bus
    settings: Settings
    clock: Clock
    parts: Sequence[JobReader] = ()
    files: Files = field(default_factory=lambda: Files(sync=False))

    def record(
        self, path: Path, epoch: int | None = None, tasks: Collection[str] = ()
    ) -> tuple[Recording, int]:
        """Write an epoch to a file.

        Args:
            path: of the file; one that is there is replaced.
            epoch: its number; the one after the last committed one when left out: that on
                which a job fails.
            tasks: only what these need, each as STAGE/NUMBER; all when empty.

        Returns:
            What the recording says, and the size of the file in bytes.

        Raises:
            InvalidInputError: the epoch cannot be recorded; says why, and which can.
            CorruptDataError: a file that it needs is damaged.
        """
        for left in reversed(range(TRIES)):
            limit = self.settings.epoch.max_rows
            facts = epoch_facts(self.reader, epoch, tasks, self.bus, self.clock, limit, self.files)
            try:
                return self._written(path, facts)
            except FileNotFoundError as error:  # a driver swept it meanwhile
                if not left:
                    raise InvalidInputError(
                        f"epoch {facts.plan.epoch} of job {self.reader.job!r} cannot be recorded: "
                        f"{error.filename} is gone; record a later one"
                    ) from error
        raise AssertionError

    def _written(self, path: Path, facts: EpochFacts) -> tuple[Recording, int]:
        unlogged = check_recordable(facts)
        needed = offsets_needed(facts)
        streams = {name: self.bus.stream(name) for name in needed}
        for name, stream in streams.items():
            if stream.address and any(start < end for start, end in needed[name]):
                # Several rows have one offset there, and a recording has an offset for each.
                raise InvalidInputError(
                    f"part {self.reader.job!r} reads {name!r}, which a topic carries, and cannot "
                    'be recorded; record a part before it, or run the job with via="bus"',
                    stream=name,
                )
        check_offsets(facts, needed, streams)
        with ArchiveWriter(path) as archive:
            for file in sorted(detached_state(facts.state).files()):
                archive.add_file(f"state/{file}", self.reader.root / file)
            recorded = [
                _stream(archive, number, name, streams[name], parts)
                for number, (name, parts) in enumerate(needed.items())
            ]
            check_offsets(facts, needed, streams)  # still nothing was compacted meanwhile
            sparse = [stream for stream in recorded if stream.compact]
            check_rows(facts, {one.name: sum(p.rows for p in one.parts) for one in sparse})
            described = (*recorded, *self._others(needed))
            names = {stream.name for stream in described}
            aliases = self.bus.aliases().items()
            recording = Recording(
                format=FORMAT,
                version=VERSION,
                job=facts.state.job,
                epoch=facts.plan.epoch,
                kind=facts.kind,
                state=detached_state(facts.state),
                plan=facts.plan,
                settings=_kept_settings(self.settings),
                streams=described,
                files=tuple(self._files(archive, facts)),
                members=archive.members,
                failure=facts.failure,
                unlogged=tuple(unlogged),
                aliases={alias: name for alias, name in aliases if name in names},
            )
            return recording, archive.finish(recording)

    def _others(self, read: Collection[str]) -> Iterator[RecordedStream]:
        """Describe the streams of the job that this epoch does not read."""
        catalogs = [part.catalog(part.state()) for part in self.parts or (self.reader,)]
        names = [
            name
            for one in catalogs
            for name in (
                *one.outputs,
                *one.sends,
                *one.inputs.values(),
                *(table.stream for table in one.tables),
            )
        ]
        there = {*self.bus.names(), *self.bus.aliases()}
        for name in dict.fromkeys(names):
            if name in there and name not in read:
                stream = self.bus.stream(name)
                yield RecordedStream.of(name, stream, stream.spec.partitions)

    def _files(self, archive: ArchiveWriter, facts: EpochFacts) -> Iterator[RecordedFile]:
        for table in facts.catalog.tables:
            if table.file:
                archive.add_file(table.path, self.reader.root / table.path)
                yield RecordedFile(table.file, table.path, table.digest, table.path)


def _kept_settings(settings: Settings) -> dict[str, dict[str, Any]]:
    return {
        section: {name: getattr(getattr(settings, section), name) for name in names}
        for section, names in KEPT_SETTINGS.items()
    }


def _stream(
    archive: ArchiveWriter,
    number: int,
    name: str,
    stream: Stream,
    parts: Sequence[tuple[int, int]],
) -> RecordedStream:
    """Record what is needed of a stream, each partition in the batches in which it is read."""
    spec = stream.spec
    schema = spec.schema.append(pa.field(OFFSET_COLUMN, pa.int64()))
    recorded = []
    for partition, (start, end) in enumerate(parts):
        if start == end:
            recorded.append(RecordedPartition(start, end))
            continue
        begin = max(start, stream.begins()[partition])
        member = f"streams/{number}/{partition}.arrow"
        batches = (_with_offsets(one, schema) for one in stream.read(partition, begin, end))
        rows = archive.add_batches(member, schema, batches)
        recorded.append(RecordedPartition(begin, end, rows, member))
    described = RecordedStream.of(name, stream, max(1, len(parts)))
    return replace(described, parts=tuple(recorded))


def _with_offsets(found: OffsetBatch, schema: pa.Schema) -> pa.RecordBatch:
    offsets = pa.array(np.asarray(found.offsets, np.int64))
    return pa.RecordBatch.from_arrays([*found.batch.columns, offsets], schema=schema)


def detached_state(state: JobState) -> JobState:
    """Return a state that a driver elsewhere can continue from: nothing is left to be sent."""
    tasks = {name: replace(task, host="") for name, task in state.tasks.items()}
    return replace(
        state,
        tasks=tasks,
        outputs=(),
        sinks=(),
        durability="epoch",
        copy_of="",
        generation=0,
        kept_from=state.epoch,
        rescaled_at=max(state.rescaled_at, 0),
    )


_STATE = re.compile(r"state/((?:segment|snapshot)/(?!\.)[^/\\]+)")
_JOB = re.compile(r"(?!\.)[^/\\\0]+")
_UNFIT = (pa.ArrowException, binascii.Error, KeyError, OverflowError, TypeError, ValueError)


def check_names(recording: Recording, origin: str) -> None:
    """Make sure that nothing outside of a job's own folder is written or read.

    A recording may come from anybody, and its digests detect damage only.

    Raises:
        CorruptDataError: a name leads elsewhere, or is of a file that it does not hold.
    """
    state, members = recording.state, recording.members
    if not _JOB.fullmatch(recording.job) or state.job != recording.job:
        raise _unfit(origin, f"a job cannot be called {recording.job!r}, its state {state.job!r}")
    for member in members:
        if member.startswith("state/") and not _STATE.fullmatch(member):
            raise _unfit(origin, f"it cannot hold {member!r}")
    for file in sorted(detached_state(state).files()):
        if f"state/{file}" not in members:
            raise _unfit(origin, f"its state names {file!r}, which it does not hold")


@contextmanager
def _named_errors(origin: str, what: str) -> Iterator[None]:
    """Report content that is whole but not what it should be."""
    try:
        yield
    except _UNFIT as error:
        raise _unfit(origin, f"{what} is not what it should be ({error})") from error


def _unfit(origin: str, what: str) -> CorruptDataError:
    return CorruptDataError(
        f"recording {origin} cannot be used: {what}; record the epoch again", file=origin
    )


def restore_recorded_streams(archive: ArchiveReader, bus: MemoryBus) -> None:
    """Make the streams of a recording.

    Raises:
        CorruptDataError: a member is damaged.
    """
    for stream in archive.recording.streams:
        with _named_errors(archive.origin, f"stream {stream.name!r}"):
            parts = [_restored(archive, stream, part) for part in stream.parts]
            bus.restore(stream.spec, stream.schema, stream.added, parts, stream.identity)
    for alias, name in archive.recording.aliases.items():
        bus.alias(alias, name)


def _restored(
    archive: ArchiveReader, stream: RecordedStream, part: RecordedPartition
) -> RestoredRows:
    if not part.member:
        return RestoredRows(part.begin, part.end)
    batches, last = [], part.begin - 1
    with pa.ipc.open_stream(io.BytesIO(archive.read(part.member))) as reader:
        for batch in reader:
            batch.validate(full=True)  # what points outside of its buffers would be read there
            offsets = np.asarray(batch.column(OFFSET_COLUMN).to_numpy(), np.int64)
            inside = np.diff(offsets, prepend=last, append=part.end) > 0
            if not inside.all():
                raise ValueError(f"offsets of {part.member} are not within {part.begin}-{part.end}")
            last = int(offsets[-1]) if len(offsets) else last
            batches.append((offsets, batch.select(stream.schema.names)))
    return RestoredRows(part.begin, part.end, batches)


def restore_state(archive: ArchiveReader, storage: JobStorage, log: CommitLog) -> None:
    """Write the files of the state, and a manifest that names them.

    Raises:
        CorruptDataError: a member is damaged.
    """
    storage.create()
    for member in archive.recording.members:
        if not member.startswith("state/"):
            continue
        path = storage.root / member.removeprefix("state/")
        storage.files.write_new(path, archive.chunks(member))
    state = detached_state(archive.recording.state)
    log.publish(state.epoch, encode_manifest(base_manifest(state, ""))[0])


def restored_files(archive: ArchiveReader) -> Mapping[str, LoadedFile]:
    """Return the files of broadcast stores as the job had read them, by the user's name.

    Raises:
        CorruptDataError: a member is damaged.
    """
    found = {}
    for file in archive.recording.files:
        data = archive.read(file.member)
        with _named_errors(archive.origin, file.member), pa.ipc.open_stream(data) as reader:
            schema = reader.schema
            for batch in reader:
                batch.validate(full=True)
        found[file.file] = LoadedFile(TableFile(schema, file.path, file.digest), data)
    return found
