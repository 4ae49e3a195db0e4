"""The rows that waited in internal streams, put into those of the job that begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.coordinator.savepoints.form import SavedStream, Savepoint, damaged
from headrace.errors import InvalidInputError
from headrace.plan.parts import feed_stream

_UNFIT = (pa.ArrowException, OSError, ValueError, InvalidInputError)


def stream_names(saved: Savepoint, job: str) -> list[str]:
    """Return the names of the internal streams that a job of this name has."""
    return [feed_stream(job, one.operator) for one in saved.streams]


def restore_streams(folder: Path, saved: Savepoint, job: str, bus: Bus) -> None:
    """Make the internal streams of a job, which are not there; their rows begin at offset 0.

    Raises:
        CorruptDataError: a file of the savepoint is not what it should be.
    """
    for one in saved.streams:
        try:
            _restore(folder, one, feed_stream(job, one.operator), bus)
        except _UNFIT as error:
            raise damaged(folder, f"rows of {one.operator!r} cannot be used: {error}") from error


def _restore(folder: Path, saved: SavedStream, name: str, bus: Bus) -> None:
    schema = pa.ipc.open_stream((folder / saved.files[0].path).read_bytes()).schema
    stream = bus.create(StreamSpec(name, len(saved.files), schema))
    for partition, file in enumerate(saved.files):
        for batch in _batches(folder / file.path):
            stream.append(partition, batch)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
        for batch in reader:
            batch.validate(full=True)  # what points outside of its buffers would be read there
            yield batch
