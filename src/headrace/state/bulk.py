"""Columns of keys and values on their way into a store: many at once, few steps of Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def content_bytes(column: pa.BinaryArray) -> int:
    """Return how many bytes the values of a column have together."""
    if not len(column):
        return 0
    offsets = _offsets(column)
    return int(offsets[-1] - offsets[0])


def with_prefix(prefix: bytes, keys: pa.BinaryArray) -> list[bytes]:
    """Return every key behind a prefix of one byte; there are no nulls."""
    count = len(keys)
    if not count:
        return []
    offsets = _offsets(keys)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)[begin:end]
    starts = offsets - begin + np.arange(count + 1, dtype=np.int32)
    longer = np.empty(end - begin + count, np.uint8)
    width = (end - begin) // count
    if np.array_equal(starts, np.arange(count + 1, dtype=np.int32) * (width + 1)):
        rows = longer.reshape(count, width + 1)
        rows[:, 0] = prefix[0]
        rows[:, 1:] = data.reshape(count, width)
    else:
        is_key = np.ones(len(longer), bool)
        is_key[starts[:-1]] = False
        longer[starts[:-1]] = prefix[0]
        longer[is_key] = data
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(longer)]
    found: list[bytes] = pa.Array.from_buffers(pa.binary(), count, buffers).to_pylist()
    return found


def _offsets(column: pa.BinaryArray) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    every = np.frombuffer(column.buffers()[1], np.int32)
    return every[column.offset : column.offset + len(column) + 1]
