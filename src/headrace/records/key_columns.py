"""The keys of a batch, encoded column by column: the same bytes as ``encode_key`` row by row.

Columns of fixed width without nulls make a matrix; everything else makes one run of bytes
with the place and length of each row's key in it. No step is taken per row in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.hashing import Int64s, UInt8s, UInt64s, xxh64_ragged, xxh64_rows
from headrace.records.key_values import (
    BOOL,
    BYTES,
    DATE,
    FLOAT,
    INTEGER,
    STRING,
    TIMESTAMP,
    encode_value,
)

_SIGN = np.uint64(1 << 63)
_WIDTH = 9  # a tag and 8 bytes
_FRAME = 3  # a tag before a string, and two zeros after it


@dataclass(frozen=True)
class _Part:
    """One column's encodings: row i has ``lengths[i]`` bytes at ``starts[i]`` of ``data``."""

    data: UInt8s
    starts: Int64s
    lengths: Int64s


@dataclass(frozen=True)
class EncodedKeys:
    """The keys of a batch: canonical bytes and hashes, in row order.

    ``matrix`` holds keys of fixed width, shape (n, width), uint8; otherwise row i has
    ``lengths[i]`` bytes at ``starts[i]`` of ``data``.
    """

    matrix: UInt8s | None = None
    data: UInt8s | None = None
    starts: Int64s | None = None
    lengths: Int64s | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        rows = self.matrix if self.matrix is not None else self.starts
        return 0 if rows is None else len(rows)

    def hashes(self, seed: int = 0) -> UInt64s:
        """Return XXH64 of each row's key; shape (n,). Keys are placed by that of seed 0."""
        if self.matrix is not None:
            return xxh64_rows(self.matrix, seed)
        part = self._ragged()
        return xxh64_ragged(part.data, part.starts, part.lengths, seed)

    def with_groups(self, groups: npt.NDArray[np.integer]) -> list[bytes]:
        """Return each row's full key: its key group in 2 bytes, big endian, then the key."""
        prefix = groups.astype(">u2")
        if self.matrix is not None:
            head = prefix.view(np.uint8).reshape(-1, 2)
            return EncodedKeys(matrix=np.hstack([head, self.matrix])).to_list()
        heads = prefix.tobytes()
        tails = self.to_list()
        return [heads[2 * row : 2 * row + 2] + tail for row, tail in enumerate(tails)]

    def to_list(self) -> list[bytes]:
        """Return each row's key as bytes."""
        if self.matrix is not None:
            data, width = self.matrix.tobytes(), self.matrix.shape[1]
            return [data[at : at + width] for at in range(0, len(data), width)]
        part = self._ragged()
        data = part.data.tobytes()
        ends = (part.starts + part.lengths).tolist()
        return [data[at:end] for at, end in zip(part.starts.tolist(), ends, strict=True)]

    def _ragged(self) -> _Part:
        assert self.data is not None
        assert self.starts is not None
        assert self.lengths is not None
        return _Part(self.data, self.starts, self.lengths)


def encode_columns(columns: Sequence[pa.Array]) -> EncodedKeys:
    """Encode the key of every row of a batch.

    Args:
        columns: of the key, in order; each of shape (n,).

    Raises:
        InvalidInputError: a value that cannot be a key.
    """
    matrices = [_fixed(column) if not column.null_count else None for column in columns]
    if all(matrix is not None for matrix in matrices):
        found = [matrix for matrix in matrices if matrix is not None]
        return EncodedKeys(matrix=found[0] if len(found) == 1 else np.hstack(found))
    parts = [
        _part(column) if matrix is None else _of_matrix(matrix)
        for column, matrix in zip(columns, matrices, strict=True)
    ]
    part = parts[0] if len(parts) == 1 else _joined(parts)
    return EncodedKeys(data=part.data, starts=part.starts, lengths=part.lengths)


def _fixed(column: pa.Array) -> UInt8s | None:
    """Encode a column without nulls whose values all take the same number of bytes."""
    kind, types = column.type, pa.types
    if types.is_boolean(kind):
        flags = column.to_numpy(zero_copy_only=False).astype(np.uint8)
        return np.column_stack([np.full(len(flags), BOOL, np.uint8), flags])
    if types.is_float32(kind) or types.is_float64(kind):
        return _tagged(FLOAT, _float_bits(column.cast(pa.float64()).to_numpy()))
    if types.is_timestamp(kind):
        moments = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
        return _tagged(TIMESTAMP, moments.to_numpy().view(np.uint64) ^ _SIGN)
    if types.is_date32(kind):
        days = column.cast(pa.int32()).cast(pa.int64())
        return _tagged(DATE, days.to_numpy().view(np.uint64) ^ _SIGN)
    if types.is_integer(kind) and kind != pa.uint64():
        return _tagged(INTEGER, column.cast(pa.int64()).to_numpy().view(np.uint64) ^ _SIGN)
    return None


def _tagged(tag: int, bits: UInt64s) -> UInt8s:
    encoded = np.empty((len(bits), _WIDTH), np.uint8)
    encoded[:, 0] = tag
    encoded[:, 1:] = bits.astype(">u8").view(np.uint8).reshape(-1, 8)
    return encoded


def _float_bits(values: npt.NDArray[np.float64]) -> UInt64s:
    """Bits that sort as the values do; one zero and one NaN, which is the highest."""
    bits = (values + 0.0).view(np.uint64)
    bits = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return np.where(np.isnan(values), np.uint64(2**64 - 1), bits)


def _of_matrix(matrix: UInt8s) -> _Part:
    count, width = matrix.shape
    starts = np.arange(count, dtype=np.int64) * width
    return _Part(np.ascontiguousarray(matrix).ravel(), starts, np.full(count, width, np.int64))


def _part(column: pa.Array) -> _Part:
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        return _part(column.dictionary_decode())
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _strings(column.cast(pa.large_string()).view(pa.large_binary()), STRING)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return _strings(column.cast(pa.large_binary()), BYTES)
    if column.null_count < len(column) and column.null_count:
        return _with_nulls(column)
    return _by_value(column)


def _strings(column: pa.Array, tag: int) -> _Part:
    """Frame each string; those that hold a zero byte are rare and are encoded one by one."""
    count = len(column)
    _, offsets, content = column.buffers()
    cuts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + count + 1]
    first = int(cuts[0]) if count else 0
    source = (
        np.zeros(0, np.uint8)
        if content is None
        else np.frombuffer(content, np.uint8)[first : int(cuts[-1])]
    )
    if not source.all():
        return _by_value(column if tag == BYTES else column.cast(pa.large_string()))
    sizes = np.diff(cuts)
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    lengths = np.where(nulls, 1, sizes + _FRAME)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    data = np.zeros(int(ends[-1]) if count else 0, np.uint8)
    data[starts[~nulls]] = tag
    if len(source):
        inside = np.where(nulls, 0, sizes)
        shift = np.repeat(starts + 1 - (np.cumsum(inside) - inside), inside)
        kept = source if int(inside.sum()) == len(source) else _without(source, sizes, nulls)
        data[shift + np.arange(len(kept))] = kept
    return _Part(data, starts, lengths)


def _without(source: UInt8s, sizes: Int64s, nulls: npt.NDArray[np.bool_]) -> UInt8s:
    """Leave out the bytes that Arrow may keep below a null."""
    return source[np.repeat(~nulls, sizes)]


def _with_nulls(column: pa.Array) -> _Part:
    """Encode the values alone, and a null as a part of one byte after them."""
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    values = column.drop_null()
    matrix = _fixed(values)
    part = _part(values) if matrix is None else _of_matrix(matrix)
    starts = np.full(len(column), len(part.data), np.int64)
    lengths = np.ones(len(column), np.int64)
    starts[~nulls], lengths[~nulls] = part.starts, part.lengths
    return _Part(np.append(part.data, np.uint8(0)), starts, lengths)


def _by_value(column: pa.Array) -> _Part:
    """Encode each distinct value in Python."""
    coded = column.dictionary_encode()
    values = [*coded.dictionary.to_pylist(), None]
    rows = pc.fill_null(coded.indices, len(values) - 1).to_numpy(zero_copy_only=False)
    encoded = [encode_value(value) for value in values]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    starts = np.cumsum(lengths) - lengths
    return _Part(np.frombuffer(b"".join(encoded), np.uint8), starts[rows], lengths[rows])


def _joined(parts: Sequence[_Part]) -> _Part:
    """Put the encodings of several columns one after the other, row by row."""
    lengths = sum((part.lengths for part in parts[1:]), parts[0].lengths)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    at = starts
    for part in parts:
        data[_places(at, part.lengths)] = part.data[_places(part.starts, part.lengths)]
        at = at + part.lengths
    return _Part(data, starts, lengths)


def _places(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the index of every byte of every row."""
    before = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    return np.repeat(starts - before, lengths) + np.arange(total)
