"""What users write for a type becomes an Arrow type in stored form."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict

import msgspec
import polars as pl
import pyarrow as pa
import pytest

from headrace.errors import InvalidInputError
from headrace.graph.types import arrow_type, polars_schema, returned_schema, to_schema

UTC = pa.timestamp("us", tz="UTC")
PAIR = pa.schema([("name", pa.string()), ("size", pa.int64())])
Cents = NewType("Cents", int)


class Struct(msgspec.Struct):
    name: str
    size: int


@dataclasses.dataclass
class Data:
    name: str
    size: int


class Dict(TypedDict):
    name: str
    size: int


class Named(NamedTuple):
    name: str
    size: int


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (int, pa.int64()),
        (float, pa.float64()),
        (str, pa.string()),
        (bool, pa.bool_()),
        (bytes, pa.binary()),
        (datetime.datetime, UTC),
        (datetime.date, pa.date32()),
        (datetime.timedelta, pa.duration("us")),
        (int | None, pa.int64()),
        (Optional[str], pa.string()),  # noqa: UP045
        (list[float], pa.list_(pa.float64())),
        (Sequence[int], pa.list_(pa.int64())),
        (tuple[str, ...], pa.list_(pa.string())),
        (Literal["a", "b"], pa.string()),
        (Cents, pa.int64()),
        (Annotated[decimal.Decimal, pa.decimal128(9, 2)], pa.decimal128(9, 2)),
        (Annotated[int, "a note"], pa.int64()),
        (pa.large_string(), pa.string()),
        (pa.int16(), pa.int16()),
        (pl.Float32, pa.float32()),
        (pl.Datetime("ms", "Europe/Paris"), UTC),
        (list[Struct], pa.list_(pa.struct(list(PAIR)))),
        (Data | None, pa.struct(list(PAIR))),
    ],
    ids=str,
)
def test_a_type_has_one_column_type(written: Any, expected: pa.DataType) -> None:
    assert arrow_type(written) == expected


@pytest.mark.parametrize("written", [object, int | str, dict[str, int], Any, list], ids=str)
def test_types_without_a_column_type_are_named(written: Any) -> None:
    with pytest.raises(InvalidInputError, match="has no column type; use int, float, str"):
        arrow_type(written)


def test_decimals_need_a_precision() -> None:
    with pytest.raises(InvalidInputError, match=r"Arrow type such as pa.decimal128\(18, 2\)"):
        arrow_type(decimal.Decimal)


@pytest.mark.parametrize(
    "written",
    [
        Struct,
        Data,
        Dict,
        Named,
        {"name": str, "size": int},
        PAIR,
        {"name": pl.String, "size": pa.int64()},
    ],
    ids=["struct", "dataclass", "TypedDict", "NamedTuple", "dict", "arrow", "mixed"],
)
def test_a_schema_is_written_in_many_ways(written: Any) -> None:
    assert to_schema(written) == PAIR


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (7, "7 describes no record; give a dict of column names and types"),
        (int, "int describes no record"),
        ({1: int}, r"column names must be strings; found \[1\]"),
        ({"a": object}, "column 'a': object has no column type"),
    ],
)
def test_what_describes_no_record_is_refused(written: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        to_schema(written)


def one(message: Any) -> Struct: ...  # type: ignore[empty-body]
def iterable(message: Any) -> Iterable[Struct]: ...  # type: ignore[empty-body]
def iterator(message: Any) -> Iterator[Data]: ...  # type: ignore[empty-body]
def generator(message: Any) -> Generator[Dict, None, None]: ...  # type: ignore[empty-body]
def listed(message: Any) -> list[Named]: ...  # type: ignore[empty-body]
def silent(message: Any): ...
def loose(message: Any) -> dict[str, Any]: ...  # type: ignore[empty-body]
def anything(message: Any) -> Any: ...
def number(message: Any) -> int: ...  # type: ignore[empty-body]


class Callee:
    def __call__(self, message: Any) -> Struct: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("function", [one, Callee(), Struct], ids=["function", "callable", "class"])
def test_a_return_annotation_gives_the_columns(function: Callable[..., Any]) -> None:
    assert returned_schema(function, {}) == PAIR


@pytest.mark.parametrize("function", [iterable, iterator, generator, listed])
def test_the_annotation_of_an_iterable_gives_its_items(function: Callable[..., Any]) -> None:
    assert returned_schema(function, {}, many=True) == PAIR


@pytest.mark.parametrize("function", [silent, loose, anything, len])
def test_functions_that_do_not_tell_give_nothing(function: Callable[..., Any]) -> None:
    assert returned_schema(function, {}) is None


def test_an_annotation_that_is_no_record_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="int describes no record"):
        returned_schema(number, {})
    with pytest.raises(InvalidInputError, match="Struct is no iterable of records"):
        returned_schema(one, {}, many=True)


def test_polars_and_arrow_agree_on_stored_types() -> None:
    schema = pa.schema([("t", UTC), ("l", pa.list_(pa.struct(list(PAIR))))])
    assert dict(polars_schema(schema)) == {
        "t": pl.Datetime("us", "UTC"),
        "l": pl.List(pl.Struct({"name": pl.String, "size": pl.Int64})),
    }
