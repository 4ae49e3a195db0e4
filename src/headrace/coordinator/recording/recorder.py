"""Records an epoch: what it read and the state before it, in one file.

Takes nothing from a driver that runs meanwhile, and needs none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import OffsetBatch
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.inspection.inspection import TRIES, JobReader
from headrace.coordinator.manifest import JobState
from headrace.coordinator.recording.archive import ArchiveWriter
from headrace.coordinator.recording.collecting import Facts, facts_of
from headrace.coordinator.recording.form import (
    FORMAT,
    VERSION,
    RecordedFile,
    RecordedPartition,
    RecordedStream,
    Recording,
)
from headrace.coordinator.recording.needs import (
    check_offsets,
    check_recordable,
    check_rows,
    offsets_needed,
)
from headrace.errors import InvalidInputError
from headrace.files import Files

OFFSET = "__offset"
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
        clock: for an epoch that has not run, and for names.
        parts: readers of all parts of a job that has several: streams of others are described,
            too, for a graph is planned as a whole.
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
            facts = facts_of(self.reader, epoch, tasks, self.bus, self.clock, limit, self.files)
            try:
                return self._written(path, facts)
            except FileNotFoundError as error:  # a driver swept it meanwhile
                if not left:
                    raise InvalidInputError(
                        f"epoch {facts.plan.epoch} of job {self.reader.job!r} cannot be recorded: "
                        f"{error.filename} is gone; record a later one"
                    ) from error
        raise AssertionError

    def _written(self, path: Path, facts: Facts) -> tuple[Recording, int]:
        unlogged = check_recordable(facts)
        needed = offsets_needed(facts)
        streams = {name: self.bus.stream(name) for name in needed}
        check_offsets(facts, needed, streams)
        with ArchiveWriter(path, self.clock.new_id()) as archive:
            for file in sorted(bare_state(facts.state).files()):
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
                state=bare_state(facts.state),
                plan=facts.plan,
                settings=_kept(self.settings),
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
                spec = self.bus.stream(name).spec
                yield RecordedStream.of(name, spec, spec.partitions)

    def _files(self, archive: ArchiveWriter, facts: Facts) -> Iterator[RecordedFile]:
        for table in facts.catalog.tables:
            if table.file:
                archive.add_file(table.path, self.reader.root / table.path)
                yield RecordedFile(table.file, table.path, table.digest, table.path)


def _kept(settings: Settings) -> dict[str, dict[str, Any]]:
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
    schema = spec.schema.append(pa.field(OFFSET, pa.int64()))
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
    described = RecordedStream.of(name, spec, max(1, len(parts)))
    return replace(described, parts=tuple(recorded))


def _with_offsets(found: OffsetBatch, schema: pa.Schema) -> pa.RecordBatch:
    offsets = pa.array(np.asarray(found.offsets, np.int64))
    return pa.RecordBatch.from_arrays([*found.batch.columns, offsets], schema=schema)


def bare_state(state: JobState) -> JobState:
    """Return a state that a driver elsewhere can go on from: nothing is left to be sent."""
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
