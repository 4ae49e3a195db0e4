"""The rows of a stream by parts of its keys, so that one part at a time is held in memory.

A part is a range of nothing but the hash of the key: rows of one key are in one part, in every
stream and whenever it is asked. Rows of streams of several parts lie in a file without a name,
below ``TMPDIR``, which goes with the process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bus.bus import Stream
from headrace.closing import Closing
from headrace.records.keys import hash_key

PART_ROWS = 50_000
PART_BYTES = 4 << 20
"""A sixteenth of what the bus takes at once, for parts differ and merge functions add."""

PENDING_BYTES = 32 << 20

Row = dict[str, Any]


def part_count(stream: Stream) -> int:
    """Return in how many parts the rows of a stream are handled."""
    rows = size = 0
    for partition, begin in enumerate(stream.begins()):
        for part in stream.read(partition, begin):
            rows += part.batch.num_rows
            size += part.batch.nbytes
    return max(1, -(-rows // PART_ROWS), -(-size // PART_BYTES))


def key_names(batch: pa.RecordBatch, keys: Sequence[str]) -> list[str]:
    """Return the key of each row as text: NaN is equal to itself, and lists can be keys."""
    columns = (batch.column(key).to_pylist() for key in keys)
    return [repr(list(values)) for values in zip(*columns, strict=True)]


class Parted(Closing):
    """A stream's rows by parts.

    Args:
        stream: read once to its end when this is made, but for a single part.
        columns: of the rows.
        keys: among these.
        parts: how many.
    """

    def __init__(
        self, stream: Stream, columns: Sequence[str], keys: Sequence[str], parts: int
    ) -> None:
        self._stream, self._columns, self._keys = stream, list(columns), list(keys)
        self._spill = None if parts == 1 else Spill()
        if self._spill is not None:
            for partition, batch in self._batches():
                hashes = [hash_key(name.encode()) for name in key_names(batch, keys)]
                part_of = np.array(hashes, np.uint64) % np.uint64(parts)
                self._spill.add(batch, partition, part_of.astype(np.int64))
            self._spill.flush()

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        for partition, begin in enumerate(self._stream.begins()):
            for part in self._stream.read(partition, begin, columns=self._columns):
                yield partition, part.batch

    def read(self, part: int) -> Iterator[tuple[int, pa.RecordBatch, list[str]]]:
        """Yield the rows of a part in their order: partition, batch, the key of each row."""
        found = self._batches() if self._spill is None else self._spill.read(part)
        for partition, batch in found:
            yield partition, batch, key_names(batch, self._keys)

    def close(self) -> None:
        """Let the file go."""
        if self._spill is not None:
            self._spill.close()


class Spill(Closing):
    """Batches of one schema in a file without a name, by part."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="headrace-")  # noqa: SIM115 - closed by close
        self._pieces: dict[int, list[tuple[int, int, int]]] = {}
        self._pending: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]] = []
        self._size = self._partition = 0
        self._schema: pa.Schema | None = None

    def add(self, batch: pa.RecordBatch, partition: int, part_of: npt.NDArray[np.int64]) -> None:
        """Take rows of a partition, each with its part; order holds within a part."""
        if partition != self._partition or self._size >= PENDING_BYTES:
            self.flush()
        self._partition = partition
        self._pending.append((batch, part_of))
        self._size += batch.nbytes

    def flush(self) -> None:
        """Write what is held."""
        if not self._pending:
            return
        rows = pa.Table.from_batches([batch for batch, _ in self._pending]).combine_chunks()
        part_of = np.concatenate([one for _, one in self._pending])
        self._pending, self._size = [], 0
        ordered = rows.take(pa.array(np.argsort(part_of, kind="stable")))
        present, counts = np.unique(part_of, return_counts=True)
        begins = np.cumsum(counts) - counts
        for part, begin, count in zip(
            present.tolist(), begins.tolist(), counts.tolist(), strict=True
        ):
            self.write(ordered.slice(begin, count), self._partition, part)

    def write(self, rows: pa.Table, partition: int, part: int) -> None:
        """Write rows of one part at once."""
        self._schema = rows.schema
        for batch in rows.to_batches():
            data = batch.serialize()
            at = self._file.seek(0, os.SEEK_END)
            self._file.write(data)
            self._pieces.setdefault(part, []).append((partition, at, data.size))

    def read(self, part: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of a part: partition and batch."""
        for partition, at, size in self._pieces.get(part, ()):
            self._file.seek(at)
            yield (
                partition,
                pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), self._schema),
            )

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
