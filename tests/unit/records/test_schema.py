"""Types have one stored form; event times are milliseconds in the years 1 to 9999."""

from __future__ import annotations

import datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS
from headrace.errors import InvalidInputError
from headrace.records.schema import (
    event_times,
    normalise,
    normalise_schema,
    normalise_type,
    schema_from_text,
    schema_to_text,
)

MOMENT = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("found", "stored"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.timestamp("ns"), MOMENT),
        (pa.timestamp("s", tz="Europe/Paris"), MOMENT),
        (pa.date64(), pa.date32()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
        (pa.uint16(), pa.uint16()),
        (pa.float16(), pa.float16()),
        (pa.decimal128(5, 2), pa.decimal128(5, 2)),
        (pa.duration("us"), pa.duration("us")),
    ],
)
def test_each_type_has_one_stored_form(found: pa.DataType, stored: pa.DataType) -> None:
    assert normalise_type(found) == stored
    assert normalise_type(stored) == stored


@pytest.mark.parametrize("kind", [pa.null(), pa.time64("us"), pa.month_day_nano_interval()])
def test_other_types_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="cannot be stored; cast to a plain type"):
        normalise_type(kind)


def test_a_schema_survives_as_text() -> None:
    schema = pa.schema([("a", MOMENT), ("ä", pa.list_(pa.string()))])
    assert schema_from_text(schema_to_text(schema)).equals(schema)


def test_columns_twice_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"columns \['a'\] appear more than once"):
        normalise_schema(pa.schema([("a", pa.int64()), ("b", pa.int64()), ("a", pa.string())]))


def test_batches_are_fitted_to_a_schema() -> None:
    schema = pa.schema([("s", pa.string()), ("n", pa.int64())])
    frame = pl.DataFrame({"n": [1, 2], "s": ["a", None]}, schema={"n": pl.Int8, "s": pl.String})
    found = normalise(frame.to_arrow(), schema)
    assert found.schema.equals(schema)
    assert found.to_pylist() == [{"s": "a", "n": 1}, {"s": None, "n": 2}]
    assert normalise(found, schema) is found
    chunks = pa.concat_tables([frame.to_arrow(), frame.to_arrow()])
    assert normalise(chunks, schema).num_rows == 4
    assert normalise(schema.empty_table(), schema).num_rows == 0


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"n": [1]}, r"missing \['s'\], not expected \[\]; expected \['s', 'n'\]"),
        ({"n": [1], "s": ["a"], "x": [1]}, r"missing \[\], not expected \['x'\]"),
        ({"n": [1.5], "s": ["a"]}, "column 'n': found double, expected int64: .*truncated"),
        ({"n": ["x"], "s": ["a"]}, "column 'n': found string, expected int64"),
        (
            {"n": pa.array([2**63], pa.uint64()), "s": ["a"]},
            "column 'n': found uint64, expected int64",
        ),
        ({"n": [[1]], "s": ["a"]}, "column 'n': found list<item: int64>, expected int64"),
    ],
    ids=["missing", "extra", "fraction", "text", "wide", "list"],
)
def test_what_does_not_fit_is_told(columns: dict[str, Any], text: str) -> None:
    schema = pa.schema([("s", pa.string()), ("n", pa.int64())])
    with pytest.raises(InvalidInputError, match=text):
        normalise(pa.table(columns), schema)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 1_999], pa.int64()),
        pa.array([0, 1_999], pa.uint32()),
        pa.array([0, 1_999], pa.timestamp("ms")),
        pa.array([999, 1_999_999], MOMENT),
        pa.array([1, 1_999_999_999], pa.timestamp("ns", tz="America/Lima")),
    ],
    ids=["int64", "uint32", "ms", "us", "ns"],
)
def test_event_times_are_whole_milliseconds(column: pa.Array) -> None:
    assert event_times(column, "stream 's'").tolist() == [0, 1_999]


@pytest.mark.parametrize("time", [MIN_EVENT_TIME_MS - 1, -(2**62), MAX_EVENT_TIME_MS, 2**62])
def test_event_times_outside_the_years_are_refused(time: int) -> None:
    """One of them would close every window, or overflow on its way."""
    said = f"is {time} ms in row 1, outside the years 1 to 9999"
    with pytest.raises(InvalidInputError, match=said):
        event_times(pa.array([5, time]), "stream 's'")


def test_the_first_and_the_last_moment_fit() -> None:
    first = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
    last = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
    column = pa.array([first, last], MOMENT)
    assert event_times(column, "s").tolist() == [MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS - 1]


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_moments_before_1970_are_rounded_down(unit: str) -> None:
    """As those after it, so a window begins where it should."""
    per_ms = 1_000 if unit == "us" else 1_000_000
    column = pa.array([-1, -per_ms, -per_ms - 1], pa.timestamp(unit, tz="UTC"))
    assert event_times(column, "s").tolist() == [-1, -1, -2]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([1, None]), "event time of s is null in row 1"),
        (pa.array(["1"]), "found string, expected a timestamp or integer milliseconds"),
        (pa.array([1.5]), "found double, expected a timestamp"),
        (pa.array([datetime.date(2024, 1, 1)]), "found date32"),
    ],
    ids=["null", "string", "float", "date"],
)
def test_other_event_times_are_refused(column: pa.Array, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        event_times(column, "s")


def test_no_rows_have_no_event_times() -> None:
    assert event_times(pa.array([], pa.int64()), "s").tolist() == []
