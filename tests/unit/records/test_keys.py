"""Keys: one encoding each, sorted like the values, the same by row and by column, known hashes."""

from __future__ import annotations

import datetime
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.keys import (
    decode_key,
    encode_columns,
    encode_key,
    encode_value,
    group_range,
    hash_key,
    key_group,
    key_groups,
)
from headrace.records.xxh64 import xxh64_rows

UTC = datetime.UTC
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FIRST = datetime.datetime(1900, 1, 1, tzinfo=UTC)
MOMENTS = st.integers(0, 300 * 365 * 86_400_000_000).map(
    lambda micros: FIRST + datetime.timedelta(microseconds=micros)
)
DAYS = st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))
VALUES = st.one_of(
    st.none(), st.booleans(), INTEGERS, st.floats(), st.text(), st.binary(), MOMENTS, DAYS
)


HASH_OF_ONE = 0x80EA7F395E4CA0E1
GROUPS_OF_SIX = [414, 257, 128, 194, 73, 319]


def test_the_encoding_never_changes() -> None:
    """What is on disk and on the bus was placed by these very bytes."""
    known: list[tuple[tuple[Any, ...], str]] = [
        ((None,), "00"),
        ((True,), "0801"),
        ((1,), "108000000000000001"),
        ((-1,), "107fffffffffffffff"),
        ((1.0,), "20bff0000000000000"),
        ((-0.0,), "208000000000000000"),
        (("a\0b",), "306100ff620000"),
        ((b"\xff",), "31ff0000"),
        ((datetime.date(1970, 1, 2),), "188000000000000001"),
        ((datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),), "1980000000000f4240"),
        (("a", None, 2), "30610000" + "00" + "108000000000000002"),
    ]
    for key, encoded in known:
        assert encode_key(key).hex() == encoded
    assert encode_key((math.nan,)).hex() == "20" + "ff" * 8
    assert hash_key(encode_key((1,))) == HASH_OF_ONE
    assert [key_group(encode_key((n,)), 512) for n in range(6)] == GROUPS_OF_SIX


@given(values=st.lists(VALUES, min_size=1, max_size=4))
def test_keys_come_back(values: list[Any]) -> None:
    found = decode_key(encode_key(values))
    assert list(map(_identity, values)) == list(map(_identity, found))
    assert encode_key(found) == encode_key(values)


@given(data=st.data())
@pytest.mark.parametrize(
    "values",
    [INTEGERS, st.floats(allow_nan=False), st.text(), st.binary(), MOMENTS, DAYS],
    ids=["integers", "floats", "text", "bytes", "moments", "days"],
)
def test_bytes_sort_as_values_do(values: st.SearchStrategy[Any], data: Any) -> None:
    first, second = data.draw(values), data.draw(values)
    is_text = isinstance(first, str)
    expected = first.encode() < second.encode() if is_text else first < second
    assert expected == (encode_value(first) < encode_value(second))


@given(first=st.lists(VALUES, max_size=3), second=st.lists(VALUES, max_size=3))
def test_no_two_keys_have_one_encoding(first: list[Any], second: list[Any]) -> None:
    """Also where a value of one runs into the next: no encoding is the beginning of another's."""
    same = list(map(_identity, first)) == list(map(_identity, second))
    assert same == (encode_key(first) == encode_key(second))


def _identity(value: Any) -> Any:
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value + 0.0
    return type(value), value


def test_what_cannot_be_a_key_is_told() -> None:
    with pytest.raises(InvalidInputError, match="a list cannot be a key; use integers, strings"):
        encode_key(([1],))
    with pytest.raises(InvalidInputError, match="key 9223372036854775808 is beyond 64 bits"):
        encode_key((2**63,))


@pytest.mark.parametrize("data", [b"\x10\0", b"\x30abc", b"\x99", b"\x30\xff\0\0", b"\x20"])
def test_bytes_that_are_no_key_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="are no canonical key"):
        decode_key(data)


TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), INTEGERS),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**63 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.inf])),
    "string": (pa.string(), st.sampled_from(["", "a", "\0", "ä" * 40])),
    "binary": (pa.binary(), st.sampled_from([b"", b"\0\xff"])),
    "moment": (pa.timestamp("us", tz="UTC"), MOMENTS),
    "millis": (pa.timestamp("ms", tz="UTC"), MOMENTS.map(lambda m: m.replace(microsecond=0))),
    "day": (pa.date32(), DAYS),
}


@given(data=st.data(), nulls=st.booleans())
def test_columns_are_encoded_like_rows(data: Any, nulls: bool) -> None:
    """Any types, one to three columns, with and without nulls, sliced or whole."""
    count = data.draw(st.integers(1, 12))
    chosen = data.draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3))
    columns = []
    for name in chosen:
        kind, values = TYPES[name]
        drawn = data.draw(
            st.lists(st.none() | values if nulls else values, min_size=count, max_size=count)
        )
        columns.append(pa.array([drawn[0], *drawn], kind).slice(1))
    expected = [encode_key(row) for row in zip(*(c.to_pylist() for c in columns), strict=True)]
    encoded = encode_columns(columns)
    assert encoded.to_list() == expected
    assert encoded.hashes().tolist() == [hash_key(key) for key in expected]
    groups = key_groups(encoded.hashes(), 512)
    assert groups.tolist() == [key_group(key, 512) for key in expected]
    numbered = np.arange(count, dtype=np.uint16)
    full = [int(n).to_bytes(2, "big") + key for n, key in zip(numbered, expected, strict=True)]
    assert encoded.with_groups(numbered) == full


@given(width=st.integers(0, 140), count=st.integers(1, 5), seed=st.integers(0, 99))
def test_the_hash_by_columns_is_the_hash(width: int, count: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (count, width), np.uint8)
    assert xxh64_rows(rows).tolist() == [xxh64_intdigest(row.tobytes()) for row in rows]
    assert xxh64_rows(rows, 7).tolist() == [xxh64_intdigest(row.tobytes(), 7) for row in rows]


@given(tasks=st.integers(1, 64), groups=st.integers(64, 600))
def test_tasks_share_all_groups(tasks: int, groups: int) -> None:
    ranges = [group_range(task, tasks, groups) for task in range(tasks)]
    assert [ranges[0][0], ranges[-1][1]] == [0, groups]
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    sizes = [last - first for first, last in ranges]
    assert max(sizes) - min(sizes) <= 1
