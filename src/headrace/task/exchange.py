"""Exchange files: what a ``partition_by`` sends from one level to the next.

A file holds frames (``records.frame``); the rows of each are sorted by key group, arrival
order kept within a group. A footer gives for each frame its position and where each group
begins, so a task maps the file and takes just its groups. Layout: frames, then the index as
one Arrow frame (``position: int64``, ``starts: list<uint32>``), then its position, 8 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.records.frame import encode_frame, read_frame, read_header
from headrace.records.key_hashes import key_hashes
from headrace.records.keys import key_groups
from headrace.task.chunk import Chunk, Groups, from_exchange

FRAME_ROWS = 1 << 20
_INDEX = pa.schema([("position", pa.int64()), ("starts", pa.list_(pa.uint32()))])
_TAIL = struct.Struct("<Q")
Starts = npt.NDArray[np.uint32]


def lagging(chunk: Chunk, delay_ms: int) -> Chunk:
    """Return rows whose watermarks are behind by the lag of the stage that they go to."""
    if not delay_ms or chunk.watermarks is None:
        return chunk
    return replace(chunk, watermarks=chunk.watermarks - delay_ms)


class ExchangeWriter:
    """Collects one task's rows for one exchange and writes them at the end of the epoch.

    Args:
        schema: the exchange's columns, hidden ones included.
        keys: the key columns of the sending side.
        groups: number of key groups of the job.
    """

    def __init__(self, schema: pa.Schema, keys: tuple[str, ...], groups: int) -> None:
        self._schema, self._keys, self._groups = schema, keys, groups
        self._pieces: list[tuple[pa.RecordBatch, Groups]] = []
        self.rows = 0

    def add(self, chunk: Chunk) -> None:
        """Take the rows of a chunk; its columns must not change afterwards."""
        columns = [chunk.batch.column(name) for name in self._keys]
        hashes = key_hashes(columns or [pa.array(np.zeros(chunk.rows, np.int64))])
        groups = key_groups(hashes, self._groups).astype(np.uint16)
        self._pieces.append((chunk.to_exchange(self._schema), groups))
        self.rows += chunk.rows

    def write(self, files: Files, path: Path) -> tuple[int, list[int]]:
        """Write the file and return its bytes and the rows of each key group.

        It is not made durable: after a loss of power its epoch never happened.
        """
        chunks: list[bytes | pa.Buffer] = []
        positions, starts, position = [], [], 0
        totals = np.zeros(self._groups, np.int64)
        for batch, begins in self.frames():
            totals += np.diff(begins)
            encoded = encode_frame(batch)
            positions.append(position)
            starts.append(begins)
            chunks += encoded
            position += sum(len(piece) for piece in encoded)
        columns = [pa.array(positions, pa.int64()), pa.array(starts, _INDEX[1].type)]
        index = pa.record_batch(columns, schema=_INDEX)
        chunks += [*encode_frame(index), _TAIL.pack(position)]
        return files.write_new(path, chunks, durable=False), totals.tolist()

    def frames(self) -> Iterator[tuple[pa.RecordBatch, Starts]]:
        """Yield the rows sorted by key group, frame by frame, and where each group begins."""
        for batch, groups in self._merged():
            order = np.argsort(groups, kind="stable")
            counts = np.bincount(groups, minlength=self._groups)
            begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
            yield batch.take(pa.array(order)), begins

    def _merged(self) -> Iterator[tuple[pa.RecordBatch, Groups]]:
        begin = 0
        while begin < len(self._pieces):
            end, rows = begin, 0
            while end < len(self._pieces) and (end == begin or rows < FRAME_ROWS):
                rows += self._pieces[end][0].num_rows
                end += 1
            batches = [piece[0] for piece in self._pieces[begin:end]]
            groups = np.concatenate([piece[1] for piece in self._pieces[begin:end]])
            yield (batches[0] if len(batches) == 1 else pa.concat_batches(batches)), groups
            begin = end


class ExchangeReader:
    """Reads some key groups of an exchange file; shared by the tasks of a slot.

    Bytes are verified once, when a frame is first read.
    """

    def __init__(self, files: Files, path: Path, schema: pa.Schema) -> None:
        self._data, self._schema, self._origin = files.map(path), schema, str(path)
        if self._data.size < _TAIL.size:
            raise CorruptDataError(f"exchange file {path} is cut short", file=str(path))
        at = _TAIL.unpack(self._data.slice(self._data.size - _TAIL.size).to_pybytes())[0]
        if read_header(self._data, at, self._origin).end != self._data.size - _TAIL.size:
            raise CorruptDataError(
                f"exchange file {path} is damaged: its last 8 bytes name no index", file=str(path)
            )
        index = self._frame(at, _INDEX)
        self._positions: list[int] = index.column(0).to_pylist()
        starts = index.column(1).flatten().to_numpy()
        self._starts = starts.reshape(len(self._positions), -1) if len(starts) else starts
        self._batches: dict[int, pa.RecordBatch] = {}

    def _frame(self, position: int, schema: pa.Schema) -> pa.RecordBatch:
        frame = read_header(self._data, position, self._origin)
        return read_frame(self._data, frame, schema, self._origin)

    def read(self, first: int, last: int) -> Iterator[Chunk]:
        """Yield the rows of key groups ``first`` to before ``last``, frame by frame."""
        for number, position in enumerate(self._positions):
            starts = self._starts[number]
            begin, end = int(starts[first]), int(starts[last])
            if begin == end:
                continue
            if number not in self._batches:
                self._batches[number] = self._frame(position, self._schema)
            sizes = np.diff(starts[first : last + 1])
            groups = np.repeat(np.arange(first, last, dtype=np.uint16), sizes)
            yield from_exchange(self._batches[number].slice(begin, end - begin), groups)
