"""Keys: one canonical encoding, and the stable hash that places them.

``encode_key`` encodes one key, ``encode_columns`` the keys of a batch to the same bytes;
``key_hashes`` hashes each different key once. Null, NaN, integers and strings stay apart.
"""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh64_intdigest

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.xxh64 import Int64s, UInt8s, UInt64s, xxh64_ragged, xxh64_rows

NULL, BOOL, INTEGER, DATE, TIMESTAMP = 0, 8, 0x10, 0x18, 0x19
FLOAT, STRING, BYTES = 0x20, 0x30, 0x31
_U64 = struct.Struct(">Q")
_SIGN_BIT = 1 << 63
_MASK = (1 << 64) - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TAGGED = {tag: bytes([tag]) for tag in (BOOL, INTEGER, DATE, TIMESTAMP, FLOAT, STRING, BYTES)}


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
    shifted = value + _SIGN_BIT
    if not 0 <= shifted <= _MASK:
        raise InvalidInputError(f"key {value} is beyond 64 bits; use a string or bytes")
    return _TAGGED[tag] + _U64.pack(shifted)


def _encode_float(value: float) -> bytes:
    if math.isnan(value):
        return b"\x20" + b"\xff" * 8
    bits = struct.unpack(">Q", struct.pack(">d", value + 0.0 if value else 0.0))[0]
    return b"\x20" + _U64.pack(bits ^ _MASK if bits & _SIGN_BIT else bits | _SIGN_BIT)


def encode_key(values: Sequence[object]) -> bytes:
    """Return the canonical encoding of a key of one or more values."""
    return b"".join([encode_value(value) for value in values])


def encode_any(key: object) -> bytes:
    """Return the encoding of a key as users give it: one value, or a tuple of several."""
    return encode_key(key if isinstance(key, tuple) else (key,))


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
        bits = bits & ~_SIGN_BIT if bits & _SIGN_BIT else bits ^ _MASK
        return struct.unpack(">d", _U64.pack(bits))[0], at
    number = bits - _SIGN_BIT
    if tag == INTEGER:
        return number, at
    if tag == TIMESTAMP:
        return _EPOCH + datetime.timedelta(microseconds=number), at
    if tag == DATE:
        return _EPOCH.date() + datetime.timedelta(days=number), at
    raise ValueError(f"tag {tag}")


_SIGN = np.uint64(1 << 63)
_WIDTH = 9  # a tag and 8 bytes
_FRAME = 3  # a tag before a string, and two zeros after it


@dataclass(frozen=True)
class _Part:
    """One column's encodings: row i has ``lengths[i]`` bytes at ``starts[i]`` of ``data``."""

    data: UInt8s
    starts: Int64s
    lengths: Int64s


FEW_KEYS = 64
"""Up to so many are hashed one by one: to begin with arrays takes longer."""


@dataclass(frozen=True)
class EncodedKeys:
    """The keys of a batch: canonical bytes and hashes, in row order.

    ``encoded`` is a matrix where all keys have one width, shape (n, width), uint8.
    """

    encoded: UInt8s | _Part

    def __len__(self) -> int:
        """Return the number of rows."""
        keys = self.encoded
        return len(keys.starts if isinstance(keys, _Part) else keys)

    def hashes(self, seed: int = 0) -> UInt64s:
        """Return XXH64 of each row's key; shape (n,). Keys are placed by that of seed 0."""
        rows, keys = len(self), self.encoded
        if rows <= FEW_KEYS:
            return np.fromiter(map(xxh64_intdigest, self.to_list(), repeat(seed)), np.uint64, rows)
        if isinstance(keys, _Part):
            return xxh64_ragged(keys.data, keys.starts, keys.lengths, seed)
        return xxh64_rows(keys, seed)

    def with_groups(self, groups: npt.NDArray[np.integer]) -> list[bytes]:
        """Return each row's full key: its key group in 2 bytes, big endian, then the key."""
        prefix = groups.astype(">u2")
        if not isinstance(self.encoded, _Part):
            head = prefix.view(np.uint8).reshape(-1, 2)
            return EncodedKeys(np.hstack([head, self.encoded])).to_list()
        heads = prefix.tobytes()
        tails = self.to_list()
        return [heads[2 * row : 2 * row + 2] + tail for row, tail in enumerate(tails)]

    def to_list(self) -> list[bytes]:
        """Return each row's key as bytes."""
        keys = self.encoded
        if isinstance(keys, _Part):
            data, ends = keys.data.tobytes(), (keys.starts + keys.lengths).tolist()
            return [data[at:end] for at, end in zip(keys.starts.tolist(), ends, strict=True)]
        data, width = keys.tobytes(), keys.shape[1]
        return [data[at : at + width] for at in range(0, len(data), width)]


def encode_columns(columns: Sequence[pa.Array]) -> EncodedKeys:
    """Encode the key of every row of a batch.

    Args:
        columns: of the key, in order; each of shape (n,).

    Raises:
        InvalidInputError: a value that cannot be a key.
    """
    found = list(map(_encoded, columns))
    return EncodedKeys(found[0] if len(found) == 1 else _side_by_side(found))


def _encoded(column: pa.Array) -> UInt8s | _Part:
    matrix = None if column.null_count else _fixed(column)
    return _part(column) if matrix is None else matrix


def _side_by_side(columns: Sequence[UInt8s | _Part]) -> UInt8s | _Part:
    matrices = [one for one in columns if not isinstance(one, _Part)]
    if len(matrices) == len(columns):
        return np.hstack(matrices)
    return _joined([one if isinstance(one, _Part) else _of_matrix(one) for one in columns])


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
    import pyarrow.compute as pc  # noqa: PLC0415 - takes 40 ms, and most commands need none of it

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


Int32s = npt.NDArray[np.int32]
Hashes = TypeVar("Hashes", int, UInt64s)

__all__ = [
    "EncodedKeys",
    "UInt64s",
    "decode_key",
    "encode_any",
    "encode_columns",
    "encode_key",
    "encode_value",
    "group_range",
    "hash_key",
    "hash_within",
    "key_group",
    "key_groups",
    "xxh64_rows",
]


def hash_key(key: bytes) -> int:
    """Return XXH64 of one encoded key."""
    return xxh64_intdigest(key)


def key_group(key: bytes, groups: int) -> int:
    """Return the key group of one encoded key, from 0 to ``groups`` - 1."""
    return (xxh64_intdigest(key) >> 32) * groups >> 32


def key_groups(hashes: UInt64s, groups: int) -> Int32s:
    """Return the key group of each hash; shape (n,)."""
    return ((hashes >> np.uint64(32)) * np.uint64(groups) >> np.uint64(32)).astype(np.int32)


def hash_within(key: Hashes, whole: Hashes) -> Hashes:
    """Return the hash of what is kept under a key: in the key's group, yet of its own.

    Args:
        key: hash of the key, or of each key.
        whole: hash of the key and of what distinguishes the entries under it.
    """
    low = 0xFFFFFFFF
    placed: Hashes = (key - (key & low)) | (whole & low)
    return placed


def group_range(task: int, tasks: int, groups: int) -> tuple[int, int]:
    """Return the first key group of a task and the one after its last."""
    return task * groups // tasks, (task + 1) * groups // tasks


def group_bounds(tasks: int, groups: int) -> Int64s:
    """Return the first key group of each task, and the one after the last; see ``group_range``."""
    return np.arange(tasks + 1) * groups // tasks


SAMPLE_ROWS = 1024
LEAST_ROWS = 4 * SAMPLE_ROWS

_types = pa.types
_RAGGED: tuple[Callable[[pa.DataType], bool], ...] = (
    _types.is_string,
    _types.is_large_string,
    _types.is_binary,
    _types.is_large_binary,
)
_FIXED: tuple[Callable[[pa.DataType], bool], ...] = (
    _types.is_boolean,
    _types.is_integer,
    _types.is_floating,
    _types.is_timestamp,
    _types.is_date32,
)


def key_hashes(columns: Sequence[pa.Array]) -> UInt64s:
    """Return the hash of each row's key, the same as ``encode_columns(columns).hashes()``.

    Text is what takes long to encode, so this looks for keys that repeat where there is some.

    Args:
        columns: of the key, in order; each of shape (n,).

    Raises:
        InvalidInputError: a value that cannot be a key.
    """
    found = _of_few(columns) if len(columns[0]) >= LEAST_ROWS else None
    return encode_columns(columns).hashes() if found is None else found


def _of_few(columns: Sequence[pa.Array]) -> UInt64s | None:
    """Hash each different key; ``None`` where there are many, or encoding is as quick."""
    if not any(_is_one_of(_RAGGED, column) for column in columns):
        return None
    if not all(_is_one_of(_RAGGED + _FIXED, column) for column in columns):
        return None
    rows = len(columns[0])
    sample = pa.array(np.arange(0, rows, rows // SAMPLE_ROWS))
    if any(len(column.take(sample).unique()) > SAMPLE_ROWS * 3 // 4 for column in columns):
        return None
    codes, dictionaries, size = np.zeros(rows, np.int64), [], 1
    for column in columns:
        coded = column.dictionary_encode(null_encoding="encode")
        size *= len(coded.dictionary)
        if size > rows // 2:
            return None
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy()
        dictionaries.append(coded.dictionary)
    is_there = np.zeros(size, np.bool_)
    is_there[codes] = True
    left = present = np.flatnonzero(is_there)
    keys: list[pa.Array] = []
    for dictionary in reversed(dictionaries):
        left, own = np.divmod(left, len(dictionary))
        keys.append(dictionary.take(pa.array(own)))
    hashes = np.zeros(size, np.uint64)
    hashes[present] = encode_columns(keys[::-1]).hashes()
    found: UInt64s = hashes[codes]
    return found


def _is_one_of(kinds: Sequence[Callable[[pa.DataType], bool]], column: pa.Array) -> bool:
    return any(is_kind(column.type) for is_kind in kinds)
