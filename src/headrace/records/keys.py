"""One canonical encoding for keys, and the stable hash that places them.

A key is one or more values. Each value is a tag byte and a payload whose bytes sort as
the values do, so stores can scan ranges and null, 1, 1.0, True and "1" stay apart:

====  =========  ==========================================================
tag   value      payload
====  =========  ==========================================================
00    null       none
08    bool       one byte
10    integer    8 bytes, big endian, sign bit flipped
18    date       days since the epoch, as an integer
19    timestamp  microseconds since the epoch, UTC, as an integer
20    float      8 bytes, order preserving; one NaN, one zero
30    string     UTF-8, 00 written as 00 FF, closed by 00 00
31    bytes      the same
====  =========  ==========================================================

The hash is XXH64 (seed 0) of the encoding. A key group is its upper 32 bits scaled to the
number of groups: a range of hashes, so that any task count cuts groups into ranges.
"""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from headrace.errors import CorruptDataError, InvalidInputError

NULL, BOOL, INTEGER, DATE, TIMESTAMP = 0, 8, 0x10, 0x18, 0x19
FLOAT, STRING, BYTES = 0x20, 0x30, 0x31
_U64 = struct.Struct(">Q")
_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TAGGED = {tag: bytes([tag]) for tag in (BOOL, INTEGER, DATE, TIMESTAMP, FLOAT, STRING, BYTES)}

UInt64s = npt.NDArray[np.uint64]
Int32s = npt.NDArray[np.int32]


def encode_value(value: object) -> bytes:
    """Return the canonical encoding of one value.

    Raises:
        InvalidInputError: an integer beyond 64 bits, or a type that cannot be a key.
    """
    kind = type(value)
    if kind is int:
        return _encode_integer(INTEGER, value)  # type: ignore[arg-type]
    if kind is str:
        text: bytes = value.encode()  # type: ignore[attr-defined]
        return b"\x30" + text.replace(b"\0", b"\0\xff") + b"\0\0"
    if value is None:
        return b"\0"
    if isinstance(value, bool | np.bool_):
        return b"\x08\x01" if value else b"\x08\x00"
    if isinstance(value, int | np.integer):
        return _encode_integer(INTEGER, int(value))
    if isinstance(value, float | np.floating):
        return _encode_float(float(value))
    if isinstance(value, str):
        return encode_value(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return b"\x31" + bytes(value).replace(b"\0", b"\0\xff") + b"\0\0"
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return _encode_integer(TIMESTAMP, (moment - _EPOCH) // datetime.timedelta(microseconds=1))
    if isinstance(value, datetime.date):
        return _encode_integer(DATE, (value - _EPOCH.date()).days)
    raise InvalidInputError(
        f"a {kind.__name__} cannot be a key; use integers, strings, bytes, floats, booleans, "
        "dates or timestamps"
    )


def _encode_integer(tag: int, value: int) -> bytes:
    shifted = value + _SIGN
    if not 0 <= shifted <= _MASK:
        raise InvalidInputError(f"key {value} is beyond 64 bits; use a string or bytes")
    return _TAGGED[tag] + _U64.pack(shifted)


def _encode_float(value: float) -> bytes:
    if math.isnan(value):
        return b"\x20" + b"\xff" * 8
    bits = struct.unpack(">Q", struct.pack(">d", value + 0.0 if value else 0.0))[0]
    return b"\x20" + _U64.pack(bits ^ _MASK if bits & _SIGN else bits | _SIGN)


def encode_key(values: Sequence[object]) -> bytes:
    """Return the canonical encoding of a key of one or more values."""
    return b"".join([encode_value(value) for value in values])


def decode_key(data: bytes) -> tuple[Any, ...]:
    """Return the values of an encoded key.

    Raises:
        CorruptDataError: the bytes are not a canonical encoding.
    """
    values: list[Any] = []
    at = 0
    try:
        while at < len(data):
            value, at = _decode_value(data, at)
            values.append(value)
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptDataError(f"bytes {data[:40]!r} are no canonical key") from error
    return tuple(values)


def _decode_value(data: bytes, at: int) -> tuple[Any, int]:
    tag, at = data[at], at + 1
    if tag == NULL:
        return None, at
    if tag == BOOL:
        return bool(data[at]), at + 1
    if tag in (STRING, BYTES):
        end = at
        while True:
            end = data.index(b"\0", end)
            if data[end + 1] == 0:
                break
            end += 2
        raw = data[at:end].replace(b"\0\xff", b"\0")
        return (raw.decode() if tag == STRING else raw), end + 2
    bits = _U64.unpack_from(data, at)[0]
    at += 8
    if tag == FLOAT:
        if bits == _MASK:
            return math.nan, at
        bits = bits & ~_SIGN if bits & _SIGN else bits ^ _MASK
        return struct.unpack(">d", _U64.pack(bits))[0], at
    number = bits - _SIGN
    if tag == INTEGER:
        return number, at
    if tag == TIMESTAMP:
        return _EPOCH + datetime.timedelta(microseconds=number), at
    if tag == DATE:
        return _EPOCH.date() + datetime.timedelta(days=number), at
    raise ValueError(f"tag {tag}")


@dataclass(frozen=True)
class EncodedKeys:
    """The keys of a batch: canonical bytes and hashes, in row order.

    ``matrix`` holds fixed-width keys, shape (n, width), uint8; otherwise ``values`` holds the
    distinct keys and ``rows`` the index of each row's key in it, shape (n,).
    """

    matrix: npt.NDArray[np.uint8] | None = None
    values: tuple[bytes, ...] = ()
    rows: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        rows = self.matrix if self.matrix is not None else self.rows
        return 0 if rows is None else len(rows)

    def hashes(self) -> UInt64s:
        """Return XXH64 of each row's key; shape (n,)."""
        if self.matrix is not None:
            return xxh64_rows(self.matrix)
        distinct = np.fromiter(map(xxh64_intdigest, self.values), np.uint64, len(self.values))
        return distinct[self.rows]

    def with_groups(self, groups: npt.NDArray[Any]) -> list[bytes]:
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
        assert self.rows is not None
        return [self.values[row] for row in self.rows.tolist()]


def encode_columns(columns: Sequence[pa.Array]) -> EncodedKeys:
    """Encode the key of every row of a batch; the same bytes as ``encode_key`` row by row.

    Columns of fixed width without nulls are encoded by NumPy; others per distinct key.
    """
    if all(_is_fixed(column) for column in columns):
        return EncodedKeys(matrix=np.hstack([_fixed(column) for column in columns]))
    codes: npt.NDArray[np.int64] = np.zeros(len(columns[0]), np.int64)
    parts: list[list[bytes]] = []
    for column in columns:
        coded = column.dictionary_encode()
        own = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        plain = [*coded.dictionary.to_pylist(), None]
        own[own < 0] = len(plain) - 1
        parts.append([encode_value(value) for value in plain])
        codes = codes * len(plain) + own
        if len(parts) < len(columns):
            distinct, codes = np.unique(codes, return_inverse=True)
            parts = [_combine(parts, distinct)]
    distinct, rows = np.unique(codes, return_inverse=True)
    return EncodedKeys(values=tuple(_combine(parts, distinct)), rows=rows.astype(np.int64))


def _combine(parts: list[list[bytes]], codes: npt.NDArray[np.int64]) -> list[bytes]:
    if len(parts) == 1:
        return [parts[0][code] for code in codes.tolist()]
    first, second = parts
    return [first[code // len(second)] + second[code % len(second)] for code in codes.tolist()]


def _is_fixed(column: pa.Array) -> bool:
    kind = column.type
    signed_or_small = pa.types.is_integer(kind) and kind != pa.uint64()
    timed = pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    return bool(column.null_count == 0 and (signed_or_small or timed or pa.types.is_boolean(kind)))


def _fixed(column: pa.Array) -> npt.NDArray[np.uint8]:
    kind = column.type
    if pa.types.is_boolean(kind):
        flags = column.to_numpy(zero_copy_only=False).astype(np.uint8)
        return np.column_stack([np.full(len(flags), BOOL, np.uint8), flags])
    tag = INTEGER
    if pa.types.is_timestamp(kind):
        tag, column = TIMESTAMP, column.cast(pa.timestamp("us", tz=kind.tz))
    elif pa.types.is_date32(kind):
        tag, column = DATE, column.cast(pa.int32())
    numbers = column.cast(pa.int64()).to_numpy().view(np.uint64) ^ np.uint64(_SIGN)
    encoded = np.empty((len(numbers), 9), np.uint8)
    encoded[:, 0] = tag
    encoded[:, 1:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return encoded


def hash_key(key: bytes) -> int:
    """Return XXH64 of one encoded key."""
    return xxh64_intdigest(key)


def key_group(key: bytes, groups: int) -> int:
    """Return the key group of one encoded key, from 0 to ``groups`` - 1."""
    return (xxh64_intdigest(key) >> 32) * groups >> 32


def key_groups(hashes: UInt64s, groups: int) -> Int32s:
    """Return the key group of each hash; shape (n,)."""
    return ((hashes >> np.uint64(32)) * np.uint64(groups) >> np.uint64(32)).astype(np.int32)


def group_range(task: int, tasks: int, groups: int) -> tuple[int, int]:
    """Return the first key group of a task and the one after its last."""
    return task * groups // tasks, (task + 1) * groups // tasks


_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxh64_rows(rows: npt.NDArray[np.uint8]) -> UInt64s:
    """XXH64 (seed 0) of each row of a matrix of bytes; shape (n, width) to (n,).

    Rows of 32 bytes and more are rare for keys and go one by one.
    """
    count, width = rows.shape
    if width >= 32:
        return np.fromiter((xxh64_intdigest(row.tobytes()) for row in rows), np.uint64, count)
    u = np.uint64
    rows = np.ascontiguousarray(rows)
    state = np.full(count, (_P5 + width) & _MASK, np.uint64)
    at = 0
    with np.errstate(over="ignore"):
        while at + 8 <= width:
            lane = np.ascontiguousarray(rows[:, at : at + 8]).view("<u8").ravel()
            state ^= _rotate(lane * u(_P2), 31) * u(_P1)
            state = _rotate(state, 27) * u(_P1) + u(_P4)
            at += 8
        if at + 4 <= width:
            lane = np.ascontiguousarray(rows[:, at : at + 4]).view("<u4").ravel().astype(np.uint64)
            state ^= lane * u(_P1)
            state = _rotate(state, 23) * u(_P2) + u(_P3)
            at += 4
        while at < width:
            state ^= rows[:, at].astype(np.uint64) * u(_P5)
            state = _rotate(state, 11) * u(_P1)
            at += 1
        state = (state ^ (state >> u(33))) * u(_P2)
        state = (state ^ (state >> u(29))) * u(_P3)
        return state ^ (state >> u(32))


def _rotate(values: UInt64s, bits: int) -> UInt64s:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
