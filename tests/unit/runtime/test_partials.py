"""Partial results come back from bytes as they went, whatever their types; merging adds up."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.windows.aggregation import PartialCodec

MOMENT = datetime.datetime(2024, 2, 29, 1, 2, 3, 456_789, tzinfo=datetime.UTC)
TOP = pa.list_(pa.struct([("v", pa.float64()), ("day", pa.date32()), ("s", pa.string())]))
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [0, -(2**63), 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "int8": (pa.int8(), [-128, 127]),
    "float64": (pa.float64(), [0.1, math.inf, -0.0]),
    "float32": (pa.float32(), [0.5]),
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["", "ä\0"]),
    "binary": (pa.binary(), [b"", b"\0\xff"]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [MOMENT, MOMENT.replace(year=1904)]),
    "date": (pa.date32(), [MOMENT.date()]),
    "duration": (pa.duration("us"), [datetime.timedelta(days=-1, microseconds=3)]),
    "decimal": (pa.decimal128(20, 3), [Decimal("-12345678901234567.125")]),
    "top": (
        TOP,
        [[], [{"v": 1.5, "day": MOMENT.date(), "s": None}], [{"v": 1.0, "day": None, "s": ""}]],
    ),
}


def frame(columns: dict[str, tuple[pa.DataType, list[Any]]]) -> pl.DataFrame:
    arrays = {name: pa.array(values, kind) for name, (kind, values) in columns.items()}
    made = pl.from_arrow(pa.table(arrays))
    assert isinstance(made, pl.DataFrame)
    return made


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("beside", ["int64", "string"])
def test_every_type_comes_back(name: str, beside: str) -> None:
    """With nulls, beside a column of fixed and one of free width, and without any row."""
    kind, values = TYPES[name]
    values = [*values, None, None]
    other, some = TYPES[beside]
    codec = PartialCodec({"a.x": kind, "a.y": other})
    rows = frame({"a.x": (kind, values), "a.y": (other, [None, *[some[0]] * (len(values) - 1)])})
    encoded = codec.encode(rows)
    assert len(encoded) == rows.height
    found = codec.decode(encoded)
    assert found.schema == rows.schema
    assert found.equals(rows)
    assert codec.decode(encoded[::-1]).equals(rows.reverse())
    assert codec.decode([]).schema == rows.schema
    assert codec.decode([]).height == 0


def test_nan_is_not_null() -> None:
    codec = PartialCodec({"x": pa.float64()})
    found = codec.decode(codec.encode(frame({"x": (pa.float64(), [math.nan, None, 1.0])})))
    assert [str(value) for value in found["x"].to_list()] == ["nan", "None", "1.0"]


@given(data=st.data(), width=st.sampled_from([1, 2, 63, 64, 65, 130]))
def test_any_number_of_columns_keeps_its_nulls(data: Any, width: int) -> None:
    rows = data.draw(st.integers(1, 4))
    column = st.lists(st.none() | st.integers(-3, 3), min_size=rows, max_size=rows)
    some = data.draw(st.lists(column, min_size=3, max_size=3))
    columns = {f"c{n}": (pa.int64(), some[n % 3]) for n in range(width)}
    codec = PartialCodec({name: kind for name, (kind, _) in columns.items()})
    made = frame(columns)
    assert codec.decode(codec.encode(made)).equals(made)
