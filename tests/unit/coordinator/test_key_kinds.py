"""Kinds of keys are told the quick way as they are one by one."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.inspection.store_view import have_same_key_kinds
from headrace.records.keys import decode_key, encode_key

VALUES = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(st.sampled_from("a\0b\uffff0"), max_size=4),
    st.binary(max_size=4),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.dates(datetime.date(1980, 1, 1), datetime.date(2030, 1, 1)),
)
KEYS = st.lists(VALUES, min_size=1, max_size=2).map(tuple)
ALIKE = st.one_of(
    st.lists(st.tuples(st.integers(-5, 5))),
    st.lists(st.tuples(st.text(st.sampled_from("a\0b"), max_size=5))),
    st.lists(st.tuples(st.integers(-5, 5), st.floats(0, 1))),
)


def full(key: tuple[Any, ...], group: int) -> bytes:
    return group.to_bytes(2, "big") + encode_key(key)


def kinds(key: bytes) -> list[type]:
    return [type(value) for value in decode_key(key[2:])]


@given(st.one_of(st.lists(KEYS), ALIKE), st.integers(0, 300), st.integers(0, 2))
def test_as_one_by_one(keys: list[tuple[Any, ...]], group: int, offset: int) -> None:
    made = [full(key, group) for key in keys]
    if len(made) <= offset:
        return
    column = pa.array(made, pa.binary()).slice(offset)
    for first in (made[offset], made[-1]):
        expected = all(kinds(key) == kinds(first) for key in made[offset:])
        assert expected == have_same_key_kinds(column, first)


@pytest.mark.parametrize(
    ("keys", "alike"),
    [
        ([("a",), ("",), ("\0",)], True),
        ([("a",), ("a", "b")], False),
        ([("a",), ("a", 1)], False),
        ([("a",), (b"a",)], False),
        ([(1,), (1.0,)], False),
        ([(1, 2), (3, 4)], True),
        ([(1,), (None,)], False),
    ],
)
def test_kinds_that_are_near(keys: list[tuple[Any, ...]], alike: bool) -> None:
    made = [full(key, 0) for key in keys]
    assert alike == have_same_key_kinds(pa.array(made, pa.binary()), made[0])
