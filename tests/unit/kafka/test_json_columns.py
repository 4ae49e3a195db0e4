"""JSON of columns says of each row what JSON of its object says."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka.formats import json_encoder, json_of_columns

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
            "part": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "text": st.none() | st.text(st.characters(codec="utf-8")),
            "is": st.none() | st.booleans(),
        }
    ),
    max_size=20,
)
SCHEMA = pa.schema(
    [("whole", pa.int64()), ("part", pa.float64()), ("text", pa.string()), ("is", pa.bool_())]
)


@given(rows=ROWS)
def test_each_row_is_read_back_as_it_was(rows: list[dict[str, Any]]) -> None:
    made = json_of_columns(pa.RecordBatch.from_pylist(rows, SCHEMA))
    assert made is not None
    assert [msgspec.json.decode(one) for one in made.to_pylist()] == rows


@given(rows=ROWS)
def test_rows_with_nothing_but_a_key_are_tombstones(rows: list[dict[str, Any]]) -> None:
    made = json_encoder(SCHEMA, ["text"])(pa.RecordBatch.from_pylist(rows, SCHEMA))
    gone = [all(row[name] is None for name in ("whole", "part", "is")) for row in rows]
    assert made.is_null().to_pylist() == gone


@pytest.mark.parametrize(
    "column",
    [
        pa.array([math.nan]),
        pa.array([-math.inf]),
        pa.array([0.1], pa.float32()),
        pa.array([0], pa.timestamp("us")),
        pa.array([[1]]),
        pa.array([b"x"]),
    ],
)
def test_columns_that_need_care_are_left_to_others(column: pa.Array) -> None:
    assert json_of_columns(pa.record_batch({"a": column})) is None
