"""Types of values as data: what comes out of stored bytes by a description alone."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import typing
import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.errors import CorruptDataError
from headrace.state.value_types import ValueSchema, arrow_type, describe, json_text

NOON = datetime.datetime(2020, 1, 2, 12, tzinfo=datetime.UTC)


class Inner(msgspec.Struct):
    a: int
    b: str | None = None


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Order:
    price: float
    amount: decimal.Decimal
    name: uuid.UUID


class Pair(typing.NamedTuple):
    left: int
    right: str


class Everything(msgspec.Struct, rename="camel"):
    first_seen: datetime.datetime
    day: datetime.date
    took: datetime.timedelta
    raw: bytes
    inner: Inner
    many: list[Inner]
    counts: dict[str, int]
    colour: Colour
    pair: Pair
    fixed: tuple[int, str]
    free: Any
    maybe: int | None = None


class Tagged(msgspec.Struct, tag=True, array_like=True):
    a: int
    b: int = 5


class Tree(msgspec.Struct):
    left: Tree | None = None


def shown(kind: Any, *values: Any) -> list[dict[str, Any]]:
    """What rows of a declared type become, with the description on its way through JSON."""
    shape = ValueSchema(json.loads(json.dumps(describe(kind))))
    columns = shape.columns([msgspec.msgpack.encode(value) for value in values])
    batch = pa.RecordBatch.from_arrays(columns, schema=shape.schema)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


@pytest.mark.parametrize(
    ("kind", "value", "arrow"),
    [
        (int, 7, pa.int64()),
        (float, 2, pa.float64()),
        (str, "x", pa.string()),
        (bool, True, pa.bool_()),
        (bytes, b"\0", pa.binary()),
        (datetime.date, datetime.date(2020, 1, 2), pa.date32()),
        (datetime.datetime, NOON, pa.timestamp("us", tz="UTC")),
        (datetime.timedelta, datetime.timedelta(seconds=5), pa.duration("us")),
        (list[int], [1, 2], pa.list_(pa.int64())),
        (set[str], ["a"], pa.list_(pa.string())),
        (dict[str, float], [("a", 1.0)], pa.map_(pa.string(), pa.float64())),
        (int | None, None, pa.int64()),
        (typing.Literal["a", "b"], "a", pa.string()),
    ],
)
def test_plain_types_are_one_column(kind: Any, value: Any, arrow: pa.DataType) -> None:
    stored = dict(value) if isinstance(arrow, pa.MapType) else value
    assert shown(kind, stored) == [{"value": value}]
    assert arrow_type(describe(kind)) == arrow


def test_a_record_is_a_column_for_each_field() -> None:
    value = Everything(
        NOON, NOON.date(), datetime.timedelta(1), b"r", Inner(1), [Inner(2, "z")], {"k": 3},
        Colour.RED, Pair(1, "p"), (4, "f"), {"x": [b"y"]},
    )  # fmt: skip
    assert shown(Everything, value) == [
        {
            "first_seen": NOON,
            "day": NOON.date(),
            "took": datetime.timedelta(1),
            "raw": b"r",
            "inner": {"a": 1, "b": None},
            "many": [{"a": 2, "b": "z"}],
            "counts": [("k", 3)],
            "colour": "red",
            "pair": {"left": 1, "right": "p"},
            "fixed": {"_0": 4, "_1": "f"},
            "free": '{"x":["eQ=="]}',
            "maybe": None,
        }
    ]


def test_dataclasses_and_records_that_are_arrays() -> None:
    order = Order(1.5, decimal.Decimal("2.50"), uuid.UUID(int=3))
    assert shown(Order, order) == [
        {"price": 1.5, "amount": "2.50", "name": "00000000-0000-0000-0000-000000000003"}
    ]
    assert shown(Tagged, Tagged(1, 2)) == [{"a": 1, "b": 2}]
    assert shown(Pair, Pair(1, "x")) == [{"left": 1, "right": "x"}]


def test_what_was_written_before_a_field_existed_shows_its_default() -> None:
    assert shown(Inner, {"a": 4}) == [{"a": 4, "b": None}]
    assert shown(Tagged, ["Tagged", 4]) == [{"a": 4, "b": 5}]


@pytest.mark.parametrize("kind", [Any, int | str, object, Tree, dict[Any, int]])
def test_what_has_no_column_type_is_json(kind: Any) -> None:
    assert arrow_type(describe(kind) if kind is not Tree else describe(Any)) == pa.string()
    assert shown(Any, {"b": 1, "a": [NOON]}) == [
        {"value": '{"a":["2020-01-02T12:00:00+00:00"],"b":1}'}
    ]


def test_a_type_within_itself() -> None:
    assert shown(Tree, Tree(Tree())) == [{"left": '{"left":null}'}]


def test_json_is_the_same_for_the_same_value() -> None:
    assert json_text({"b": 1, "a": 2}) == json_text({"a": 2, "b": 1})


def test_a_field_that_is_called_like_the_key() -> None:
    shape = ValueSchema(describe(Inner), taken=["a"])
    assert shape.schema.names == ["value.a", "b"]


@pytest.mark.parametrize(
    "stored", [b"\xc1", msgspec.msgpack.encode("x"), msgspec.msgpack.encode(1 << 63)]
)
def test_what_does_not_fit_is_told(stored: bytes) -> None:
    with pytest.raises(CorruptDataError, match="stored value"):
        ValueSchema(describe(int)).columns([stored])
