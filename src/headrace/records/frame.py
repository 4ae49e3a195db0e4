"""A frame: one Arrow batch on disk, with a checksum for each column.

Segments of the bus, changelog segments, snapshots and exchange files are rows of frames.
A reader maps the file, takes the columns it wants and verifies just their bytes, so a
narrow read of a wide stream stays narrow. Layout, little endian, from a multiple of 64:

====================  ======================================================
``4s`` magic          ``HRF1``
``u32`` header size   whole header, a multiple of 64
``u64`` body size     the Arrow IPC record batch message, padded to 64
``u64`` rows
``u32 u32``           columns, number of their schema
``u64 u64`` ...       for the message's metadata, then each column: bytes, xxh3
zeros                 up to 8 bytes before the end of the header
``u64`` checksum      xxh3 of the header up to here
body                  metadata, then the columns' bytes, without gaps; padding is of the last
====================  ======================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace.errors import CorruptDataError

MAGIC = b"HRF1"
ALIGNMENT = 64
_FIXED = struct.Struct("<4sIQQII")
_SUM = struct.Struct("<Q")


class Frame(NamedTuple):
    """Where a frame lies and what its header promises."""

    position: int
    body: int
    end: int
    rows: int
    parts: tuple[int, ...]
    version: int = 0


def encode_frame(batch: pa.RecordBatch, version: int = 0) -> list[bytes | pa.Buffer]:
    """Return the chunks of a frame, to be written one after the other.

    Args:
        batch: the rows.
        version: the number of their schema, where what they belong to has had several.
    """
    message = batch.serialize()
    padding = bytes(-message.size % ALIGNMENT)
    cuts = _column_starts(message, batch.schema)
    view = memoryview(message)
    fields: list[int] = []
    begin = 0
    for cut in cuts:
        fields += [cut - begin, xxh3_64_intdigest(view[begin:cut])]
        begin = cut
    last = xxh3_64(view[begin:])
    last.update(padding)
    fields += [message.size + len(padding) - begin, last.intdigest()]
    used = _FIXED.size + 8 * len(fields) + _SUM.size
    size = -(-used // ALIGNMENT) * ALIGNMENT
    body = message.size + len(padding)
    head = _FIXED.pack(MAGIC, size, body, batch.num_rows, batch.num_columns, version)
    head += struct.pack(f"<{len(fields)}Q", *fields) + bytes(size - used)
    return [head + _SUM.pack(xxh3_64_intdigest(head)), message, padding]


def _column_starts(message: pa.Buffer, schema: pa.Schema) -> list[int]:
    """Where each column's bytes begin inside a serialised batch.

    Arrow writes the buffers of the columns one after the other; reading the message back
    without a copy shows their addresses. An empty column begins where the next one does.
    """
    batch = pa.ipc.read_record_batch(message, schema)
    starts: list[int] = []
    following = message.size
    for array in reversed(batch.columns):
        for buffer in array.buffers():
            if buffer and buffer.size and 0 <= buffer.address - message.address < following:
                following = buffer.address - message.address
        starts.append(following)
    return starts[::-1]


def read_header(data: pa.Buffer, position: int, origin: str) -> Frame:
    """Read and verify the header at ``position``.

    Raises:
        CorruptDataError: the header is cut, damaged, or not one; names ``origin`` and position.
    """
    view = memoryview(data)
    if position + _FIXED.size > len(view):
        raise _damaged(origin, position, "the file ends inside a frame header")
    magic, size, body, rows, columns, version = _FIXED.unpack_from(view, position)
    fields = 2 * (columns + 1)
    least = _FIXED.size + 8 * fields + _SUM.size
    if magic != MAGIC or position + size + body > len(view) or size < least:
        raise _damaged(origin, position, "no frame begins here, or the file ends inside it")
    summed = position + size - _SUM.size
    if xxh3_64_intdigest(view[position:summed]) != _SUM.unpack_from(view, summed)[0]:
        raise _damaged(origin, position, "the frame header does not match its checksum")
    parts = struct.unpack_from(f"<{fields}Q", view, position + _FIXED.size)
    return Frame(position, position + size, position + size + body, rows, parts, version)


def read_frame(
    data: pa.Buffer,
    frame: Frame,
    schema: pa.Schema,
    origin: str,
    columns: Sequence[int] | None = None,
) -> pa.RecordBatch:
    """Return the batch of a frame without copying it, after verifying what is returned.

    Args:
        data: the mapped file.
        frame: its header, from ``read_header``.
        schema: schema of the whole batch.
        origin: name of the file, for errors.
        columns: indices of the wanted columns, in the order wanted; all when ``None``.

    Raises:
        CorruptDataError: bytes of the metadata or of a wanted column are damaged.
    """
    view = memoryview(data)
    if 2 * (len(schema) + 1) != len(frame.parts):
        found = len(frame.parts) // 2 - 1
        raise _damaged(origin, frame.position, f"found {found} columns, expected {len(schema)}")
    parts: Iterable[int] = range(len(schema) + 1)
    if columns is not None:
        parts = [0, *[index + 1 for index in columns]]
    starts = [frame.body]
    for size in frame.parts[::2]:
        starts.append(starts[-1] + size)
    for part in parts:
        piece = view[starts[part] : starts[part + 1]]
        if xxh3_64_intdigest(piece) != frame.parts[2 * part + 1]:
            name = "metadata" if part == 0 else f"column {schema.field(part - 1).name!r}"
            raise _damaged(origin, starts[part], f"{name} does not match its checksum")
    batch = pa.ipc.read_record_batch(data.slice(frame.body, frame.end - frame.body), schema)
    return batch if columns is None else batch.select(list(columns))


def iterate_frames(data: pa.Buffer, begin: int, end: int, origin: str) -> Iterator[Frame]:
    """Yield the headers of the frames between two positions of a file."""
    while begin < end:
        frame = read_header(data, begin, origin)
        yield frame
        begin = frame.end


def _damaged(origin: str, position: int, reason: str) -> CorruptDataError:
    return CorruptDataError(f"{origin} is damaged at byte {position}: {reason}", file=origin)
