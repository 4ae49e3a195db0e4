"""Puts a recording where a job can go on from it: its streams on a bus, its state in a storage."""

from __future__ import annotations

import binascii
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from headrace.bus.memory import MemoryBus
from headrace.bus.restored import Restored
from headrace.coordinator.commit_log import CommitLog
from headrace.coordinator.manifest import base_manifest, encode_manifest
from headrace.coordinator.recording.archive import ArchiveReader
from headrace.coordinator.recording.form import RecordedPartition, RecordedStream, Recording
from headrace.coordinator.recording.recorder import OFFSET, bare_state
from headrace.coordinator.storage import JobStorage
from headrace.coordinator.table_files import LoadedFile
from headrace.errors import CorruptDataError
from headrace.plan.tables import TableFile

_STATE = re.compile(r"state/((?:segment|snapshot)/(?!\.)[^/\\]+)")
_JOB = re.compile(r"(?!\.)[^/\\\0]+")
_UNFIT = (pa.ArrowException, binascii.Error, KeyError, OverflowError, TypeError, ValueError)


def check_names(recording: Recording, origin: str) -> None:
    """Make sure that nothing outside of a job's own folder is written or read.

    A recording may come from anybody, and its digests tell damage only.

    Raises:
        CorruptDataError: a name leads elsewhere, or is of a file that it does not hold.
    """
    state, members = recording.state, recording.members
    if not _JOB.fullmatch(recording.job) or state.job != recording.job:
        raise _unfit(origin, f"a job cannot be called {recording.job!r}, its state {state.job!r}")
    for member in members:
        if member.startswith("state/") and not _STATE.fullmatch(member):
            raise _unfit(origin, f"it cannot hold {member!r}")
    for file in sorted(bare_state(state).files()):
        if f"state/{file}" not in members:
            raise _unfit(origin, f"its state names {file!r}, which it does not hold")


@contextmanager
def _told(origin: str, what: str) -> Iterator[None]:
    """Tell of content that is whole but not what it should be."""
    try:
        yield
    except _UNFIT as error:
        raise _unfit(origin, f"{what} is not what it should be ({error})") from error


def _unfit(origin: str, what: str) -> CorruptDataError:
    return CorruptDataError(
        f"recording {origin} cannot be used: {what}; record the epoch again", file=origin
    )


def restore_streams(archive: ArchiveReader, bus: MemoryBus) -> None:
    """Make the streams of a recording.

    Raises:
        CorruptDataError: a member is damaged.
    """
    for stream in archive.recording.streams:
        with _told(archive.origin, f"stream {stream.name!r}"):
            parts = [_restored(archive, stream, part) for part in stream.parts]
            bus.restore(stream.spec, stream.schema, stream.added, parts)
    for alias, name in archive.recording.aliases.items():
        bus.alias(alias, name)


def _restored(archive: ArchiveReader, stream: RecordedStream, part: RecordedPartition) -> Restored:
    if not part.member:
        return Restored(part.begin, part.end)
    batches, last = [], part.begin - 1
    with pa.ipc.open_stream(io.BytesIO(archive.read(part.member))) as reader:
        for batch in reader:
            batch.validate(full=True)  # what points outside of its buffers would be read there
            offsets = np.asarray(batch.column(OFFSET).to_numpy(), np.int64)
            inside = np.diff(offsets, prepend=last, append=part.end) > 0
            if not inside.all():
                raise ValueError(f"offsets of {part.member} are not within {part.begin}-{part.end}")
            last = int(offsets[-1]) if len(offsets) else last
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
        path = storage.root / member.removeprefix("state/")
        storage.files.write_new(path, archive.chunks(member))
    state = bare_state(archive.recording.state)
    log.publish(state.epoch, encode_manifest(base_manifest(state, ""))[0])


def loaded_files(archive: ArchiveReader) -> Mapping[str, LoadedFile]:
    """Return the files of broadcast stores as the job had read them, by the user's name.

    Raises:
        CorruptDataError: a member is damaged.
    """
    found = {}
    for file in archive.recording.files:
        data = archive.read(file.member)
        with _told(archive.origin, file.member), pa.ipc.open_stream(data) as reader:
            schema = reader.schema
            for batch in reader:
                batch.validate(full=True)
        found[file.file] = LoadedFile(TableFile(schema, file.path, file.digest), data)
    return found
