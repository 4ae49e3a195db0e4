"""Batches as messages and back."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import InvalidInputError
from headrace.records.messages import (
    columns_to_lists,
    from_messages,
    message_type,
    nested_messages,
    to_messages,
)

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
MOMENT = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def test_messages_have_a_column_for_each_attribute() -> None:
    batch = pa.record_batch({"n": [1, None], "s": ["a", None]}, schema=SCHEMA)
    found = to_messages(batch, message_type("M", SCHEMA))
    assert [(m.n, m.s) for m in found] == [(1, "a"), (None, None)]
    assert from_messages(found, SCHEMA, "o").equals(batch)
    with pytest.raises(AttributeError):
        found[0].n = 5


def test_rows_without_columns_are_still_rows() -> None:
    batch = pa.record_batch({"n": [1, 2]}).select([])
    assert len(to_messages(batch, message_type("M", pa.schema([])))) == 2


def test_no_messages_are_an_empty_batch() -> None:
    assert from_messages([], SCHEMA, "o").num_rows == 0


def test_columns_that_are_no_names_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"columns \['a b'\] cannot be attributes"):
        message_type("M", pa.schema([("a b", pa.int64())]))


def test_times_are_those_of_arrow() -> None:
    moments = [
        datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
        MOMENT,
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
    ]
    column = pa.array(moments, pa.timestamp("us", tz="UTC"))
    (found,) = columns_to_lists(pa.record_batch({"at": column}).slice(1))
    assert found == column.to_pylist()[1:] == moments[1:]
    assert all(one.tzinfo is datetime.UTC for one in found)


def test_sliced_columns_are_read_from_their_slice() -> None:
    batch = pa.record_batch({"n": [1, 2, 3], "f": [0.5, None, 1.5]}).slice(1, 2)
    assert columns_to_lists(batch) == [[2, 3], [None, 1.5]]


RECORD = pa.struct([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("s", pa.string())])
RECORDS: list[Any] = [
    [{"n": 1, "at": MOMENT, "s": "a"}, {"n": None, "at": None, "s": None}],
    [],
    [{"n": 3, "at": MOMENT, "s": "c"}],
    [{"n": 4, "at": MOMENT, "s": ""}] * 3,
]


@pytest.mark.parametrize("odd", [[], [None], [[None]]], ids=["plain", "null", "null within"])
def test_lists_of_records_are_lists_of_dicts(odd: list[Any]) -> None:
    rows = [*RECORDS, *odd]
    whole = pa.record_batch({"r": pa.array(rows, pa.list_(RECORD))})
    for begin in range(len(rows) + 1):
        for end in range(begin, len(rows) + 1):
            batch = whole.slice(begin, end - begin)
            assert columns_to_lists(batch) == [rows[begin:end]]


def test_records_with_any_names_are_dicts() -> None:
    for names in (("a b", "a b"), ("__typename", "__typename"), ("__weakref__", "__weakref__")):
        rows = [[{name: at}] for at, name in enumerate(names)]
        assert columns_to_lists(pa.record_batch({"r": rows})) == [rows]
    assert columns_to_lists(pa.record_batch({"r": [[{}]]})) == [[[{}]]]


class Struct(msgspec.Struct):
    n: int
    s: str
    more: int = 0


@dataclass
class Data:
    s: str
    n: int


@pytest.mark.parametrize(
    "message",
    [
        Struct(1, "a"),
        Data("a", 1),
        (1, "a"),
        {"s": "a", "n": 1},
        MappingProxyType({"n": np.int64(1), "s": "a"}),
    ],
    ids=["struct", "dataclass", "tuple", "dict", "mapping"],
)
def test_records_of_any_kind_fit(message: Any) -> None:
    row = {"n": 1, "s": "a"}
    assert from_messages([message], SCHEMA, "o").to_pylist() == [row]
    assert from_messages([message] * 3, SCHEMA, "o").to_pylist() == [row] * 3
    assert from_messages([message, (1, "a")], SCHEMA, "o").to_pylist() == [row] * 2
    one = pa.schema([("n", pa.int64())])
    if not isinstance(message, tuple | Mapping):
        assert from_messages([message] * 2, one, "o").to_pylist() == [{"n": 1}] * 2


@pytest.mark.parametrize(
    "value", ["a", b"b", 1, 1.5, True, Decimal("1.5"), MOMENT.date(), datetime.timedelta(1)]
)
def test_a_bare_value_is_a_message_of_one_column(value: Any) -> None:
    one = pa.schema([("x", pa.scalar(value).type)])
    assert from_messages([value] * 2, one, "o").to_pylist() == [{"x": value}] * 2
    assert from_messages([value, (value,)], one, "o").to_pylist() == [{"x": value}] * 2
    with pytest.raises(InvalidInputError, match="operator 'o' returned None; expected a message"):
        from_messages([value, None], one, "o")


def test_a_bare_value_that_does_not_fit_is_shown() -> None:
    with pytest.raises(InvalidInputError, match="returned 'b' for column 'n'; expected int64"):
        from_messages([1, "b"], pa.schema([("n", pa.int64())]), "o")


@dataclass
class Other:
    n: int


@pytest.mark.parametrize("message", [None, 1, "ab", [1, "a"], (1,), {"n": 1}, Other(1), object()])
def test_anything_else_names_the_operator(message: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"operator 'o' returned .*expected a message") as e:
        from_messages([(1, "a"), message], SCHEMA, "o")
    assert e.value.fields == {"operator": "o"}
    with pytest.raises(InvalidInputError, match=r"operator 'o' returned .*expected a message"):
        from_messages([message, message], SCHEMA, "o")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.0),
        (pa.int64(), float("nan")),
        (pa.int64(), Decimal("1.5")),
        (pa.int64(), True),
        (pa.int8(), 128),
        (pa.uint8(), -1),
        (pa.timestamp("us", tz="UTC"), 1_700_000_000_000),
        (pa.timestamp("us", tz="UTC"), 1.5),
        (pa.date32(), 19_000),
        (pa.date32(), MOMENT),
        (pa.duration("us"), 5),
        (pa.string(), 1),
        (pa.bool_(), 1),
        (pa.list_(pa.int64()), [1, "a"]),
        (pa.decimal128(4, 1), Decimal("1.25")),
    ],
)
def test_a_value_that_would_lose_a_part_is_refused(kind: pa.DataType, value: Any) -> None:
    """Arrow takes some of these, and drops a fraction, a time of day, or guesses a unit."""
    schema = pa.schema([("x", kind)])
    with pytest.raises(InvalidInputError, match=r"operator 'o' returned .* for column 'x'; expect"):
        from_messages([{"x": None}, {"x": value}], schema, "o")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), 1),
        (pa.timestamp("us", tz="UTC"), MOMENT),
        (pa.date32(), MOMENT.date()),
        (pa.duration("us"), datetime.timedelta(seconds=1)),
        (pa.int64(), np.int32(4)),
        (pa.float64(), np.float32(0.5)),
    ],
)
def test_a_value_that_loses_nothing_fits(kind: pa.DataType, value: Any) -> None:
    found = from_messages([{"x": value}, {"x": None}], pa.schema([("x", kind)]), "o")
    assert found.to_pylist() == [{"x": value}, {"x": None}]


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Item(msgspec.Struct):
    sku: str
    qty: int


@dataclass
class Line:
    sku: str
    qty: int


ITEM = pa.struct([("sku", pa.string()), ("qty", pa.int64())])


@pytest.mark.parametrize("item", [Item("a", 2), Line("a", 2), {"sku": "a", "qty": 2}, ("a", 2)])
def test_records_within_messages_fit(item: Any) -> None:
    schema = pa.schema([("one", ITEM), ("many", pa.list_(ITEM))])
    found = from_messages([{"one": item, "many": [item, item]}], schema, "o")
    assert found.to_pylist() == [{"one": ITEM_ROW, "many": [ITEM_ROW, ITEM_ROW]}]


ITEM_ROW = {"sku": "a", "qty": 2}


def test_enums_and_sets_are_stored_as_what_they_hold() -> None:
    schema = pa.schema(
        [("color", pa.string()), ("level", pa.int64()), ("tags", pa.list_(pa.int64()))]
    )
    found = from_messages([(Color.RED, Level.LOW, {7}), (None, None, None)], schema, "o")
    assert found.to_pylist()[0] == {"color": "red", "level": 1, "tags": [7]}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), [1.5]),
        (ITEM, {"sku": "a", "qty": 1.5}),
        (ITEM, {"sku": "a", "qty": 1, "size": 3}),
        (pa.list_(ITEM), [{"sku": "a", "qty": 1, "size": 3}]),
        (pa.list_(pa.timestamp("us", tz="UTC")), [1_700_000_000_000]),
        (ITEM, "a"),
        (pa.int64(), Color.RED),
    ],
)
def test_nothing_within_a_value_is_lost(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"operator 'o' returned .* for column 'x'"):
        from_messages([{"x": value}], pa.schema([("x", kind)]), "o")


def test_lists_of_structs_become_lists_of_messages() -> None:
    kind = pa.list_(pa.struct({"a": pa.int64(), "b": pa.string()}))
    rows: list[list[dict[str, Any]]] = [
        [{"a": 1, "b": None}],
        [],
        [{"a": 2, "b": "x"}, {"a": 3, "b": "y"}],
    ]
    for begin in range(3):
        found = nested_messages(pa.array(rows, kind).slice(begin))
        assert [[(one.a, one.b) for one in messages] for messages in found] == [
            [(row["a"], row["b"]) for row in messages] for messages in rows[begin:]
        ]
    of_nothing = nested_messages(pa.array([[{}], [{}, {}]], pa.list_(pa.struct([]))))
    assert [len(messages) for messages in of_nothing] == [1, 2]


def test_a_column_of_lists_of_structs_is_taken_as_messages_where_that_is_asked() -> None:
    batch = pa.record_batch({"k": [7], "messages": [[{"a": 1}]]})
    kind = message_type("M", batch.schema)
    (row,) = to_messages(batch, kind, "messages")
    assert (row.k, row.messages[0].a) == (7, 1)
    (row,) = to_messages(batch, kind)
    assert row.messages == [{"a": 1}]
