"""An exchange file as it is read, by slots and by the servers of hosts, and how it travels.

A file is frames of rows sorted by key group, an index of where each group begins in each, and 8
bytes that say where that is. Servers start with each executor, so this imports little.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.records.frame import encode_frame, read_frame, read_header

INDEX = pa.schema([("position", pa.int64()), ("starts", pa.list_(pa.uint32()))])
TAIL = struct.Struct("<Q")
Starts = npt.NDArray[np.uint32]


class Span(NamedTuple):
    """Bytes of a file."""

    position: int
    size: int


class ExchangeReader:
    """Reads some key groups of an exchange file; shared by the tasks of a slot.

    Bytes are verified once, when a frame is first read.
    """

    def __init__(self, files: Files, path: Path, schema: pa.Schema) -> None:
        self._data, self._schema, self._origin = files.map(path), schema, str(path)
        if self._data.size < TAIL.size:
            raise CorruptDataError(f"exchange file {path} is cut short", file=str(path))
        at = TAIL.unpack(self._data.slice(self._data.size - TAIL.size).to_pybytes())[0]
        header = read_header(self._data, at, self._origin)
        if header.end != self._data.size - TAIL.size:
            raise CorruptDataError(
                f"exchange file {path} is damaged: its last 8 bytes name no index", file=str(path)
            )
        index = read_frame(self._data, header, INDEX, self._origin)
        self._positions: list[int] = index.column(0).to_pylist()
        starts = index.column(1).flatten().to_numpy()
        self._starts = starts.reshape(len(self._positions), -1) if len(starts) else starts
        self._batches: dict[int, pa.RecordBatch] = {}

    def slices(self, first: int, last: int) -> Iterator[tuple[pa.RecordBatch, Starts]]:
        """Yield the rows of key groups, frame by frame, with how many each group has.

        Args:
            first: group.
            last: the one after the last.
        """
        for number, starts in self._wanted(first, last):
            begin, end = int(starts[0]), int(starts[-1])
            yield self._batch(number).slice(begin, end - begin), np.diff(starts)

    def pieces(
        self, first: int, last: int, most_bytes: int
    ) -> Iterator[tuple[Span | bytes, Starts]]:
        """Yield the rows of key groups as ``slices`` does, in frames to be sent.

        Of a frame with nothing else it says where that is in the file: who receives it verifies it.

        Args:
            first: group.
            last: the one after the last.
            most_bytes: about so large are frames that are made again.
        """
        for number, starts in self._wanted(first, last):
            begin, end = int(starts[0]), int(starts[-1])
            if begin == 0 and end == self._starts[number][-1]:
                position = self._positions[number]
                frame = read_header(self._data, position, self._origin)
                yield Span(position, frame.end - position), np.diff(starts)
                continue
            batch = self._batch(number)
            step = max(1, most_bytes * batch.num_rows // max(1, batch.nbytes))
            for at in range(begin, end, step):
                upto = min(at + step, end)
                chunks = encode_frame(batch.slice(at, upto - at))
                own: Starts = np.clip(starts, at, upto)
                yield b"".join(map(memoryview, chunks)), np.diff(own)

    def _wanted(self, first: int, last: int) -> Iterator[tuple[int, Starts]]:
        """Yield frames with rows of key groups, and where each group begins there."""
        for number in range(len(self._positions)):
            starts = self._starts[number][first : last + 1]
            if starts[0] != starts[-1]:
                yield number, starts

    def _batch(self, number: int) -> pa.RecordBatch:
        if number not in self._batches:
            frame = read_header(self._data, self._positions[number], self._origin)
            self._batches[number] = read_frame(self._data, frame, self._schema, self._origin)
        return self._batches[number]


PIECE_BYTES = 4 << 20
"""About so large is what travels at a time."""
RECORD = ".server"
"""What a server says of itself, beside the folders of epochs."""

WANTED, PIECE, SUM = struct.Struct("<4sII"), struct.Struct("<iIQ"), struct.Struct("<Q")
"""A request begins with ``WIRE`` and the bytes of what follows: an ``Admission``, a ``Wanted``. A
piece of the answer begins with the number of a file of the request, how many key groups its sizes
are of, and the bytes of its frame; then come the sizes as ``uint32``, the xxh3 of all that, and the
frame. The last piece has ``OVER`` in place of a file, or ``FAILED`` and a reason as its frame."""
WIRE, OVER, FAILED = b"HRX1", -1, -2


class Admission(msgspec.Struct, frozen=True, array_like=True):
    """What lets a request in: the epoch that it asks about, and the token of that."""

    epoch: str
    token: str


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """A request: files by name, the columns of each as Arrow writes a schema, and key groups."""

    files: list[tuple[str, bytes]]
    first: int
    last: int


class ServerRecord(msgspec.Struct, frozen=True):
    """What a server says of itself beside the files."""

    process: int
    port: int


def epoch_folder(epoch: str, token: str) -> str:
    """Return the name of the folder of an epoch's files; it does not give the token away."""
    return f"{epoch}-{hashlib.sha256(token.encode()).hexdigest()[:32]}"
