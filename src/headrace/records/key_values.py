"""The canonical encoding of one key, value by value.

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
"""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import CorruptDataError, InvalidInputError

NULL, BOOL, INTEGER, DATE, TIMESTAMP = 0, 8, 0x10, 0x18, 0x19
FLOAT, STRING, BYTES = 0x20, 0x30, 0x31
_U64 = struct.Struct(">Q")
_SIGN = 1 << 63
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
