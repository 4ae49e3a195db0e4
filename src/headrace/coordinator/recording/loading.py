"""Puts a recording where a job can go on from it: its streams on a bus, its state in a storage."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headrace.bus.memory import MemoryBus
from headrace.bus.restored import Restored
from headrace.coordinator.commit_log import CommitLog
from headrace.coordinator.manifest import base_manifest, encode_manifest
from headrace.coordinator.recording.archive import ArchiveReader
from headrace.coordinator.recording.form import RecordedPartition, RecordedStream
from headrace.coordinator.recording.recorder import OFFSET
from headrace.coordinator.storage import JobStorage
from headrace.coordinator.table_files import LoadedFile
from headrace.errors import CorruptDataError
from headrace.plan.tables import TableFile

_STATE = re.compile(r"state/((?:segment|snapshot)/(?!\.)[^/]+)")


def restore_streams(archive: ArchiveReader, bus: MemoryBus) -> None:
    """Make the streams of a recording.

    Raises:
        CorruptDataError: a member is damaged.
    """
    for stream in archive.recording.streams:
        parts = [_restored(archive, stream, part) for part in stream.parts]
        bus.restore(stream.spec, stream.schema, stream.added, parts)
    for alias, name in archive.recording.aliases.items():
        bus.alias(alias, name)


def _restored(archive: ArchiveReader, stream: RecordedStream, part: RecordedPartition) -> Restored:
    if not part.member:
        return Restored(part.begin, part.end)
    batches = []
    with pa.ipc.open_stream(io.BytesIO(archive.read(part.member))) as reader:
        for batch in reader:
            offsets = np.asarray(batch.column(OFFSET).to_numpy(), np.int64)
            batches.append((offsets, batch.select(stream.schema.names)))
    return Restored(part.begin, part.end, batches)


def restore_state(archive: ArchiveReader, storage: JobStorage, log: CommitLog) -> None:
    """Write the files of the state, and a manifest that names them.

    Raises:
        CorruptDataError: a member is damaged.
    """
    storage.create()
    for member in archive.recording.members:
        if not member.startswith("state/"):
            continue
        found = _STATE.fullmatch(member)
        if found is None:
            raise CorruptDataError(f"a recording cannot hold {member!r}; record the epoch again")
        storage.files.write_new(storage.root / found[1], archive.chunks(member))
    state = archive.recording.state
    log.publish(state.epoch, encode_manifest(base_manifest(state, ""))[0])


def loaded_files(archive: ArchiveReader) -> Mapping[str, LoadedFile]:
    """Return the files of broadcast stores as the job had read them, by the user's name.

    Raises:
        CorruptDataError: a member is damaged.
    """
    found = {}
    for file in archive.recording.files:
        data = archive.read(file.member)
        with pa.ipc.open_stream(data) as reader:
            schema = reader.schema
        found[file.file] = LoadedFile(TableFile(schema, file.path, file.digest), data)
    return found
