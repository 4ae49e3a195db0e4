"""Rows of a table of PostgreSQL as those of a job, and values that are none of their type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.sinks.postgres import decoded

POINT = pa.struct([("x", pa.float64()), ("n", pa.int64())])


def read(value: Any, kind: pa.DataType) -> Any:
    [found] = decoded([(value,)], pa.schema([("v", kind)]))["v"].to_pylist()
    return found


@pytest.mark.parametrize("number", [1, 2**53 + 1, 10**30, 0.5])
def test_numbers_without_a_fraction_are_floats_where_the_job_has_those(number: float) -> None:
    assert read({"x": number, "n": 1}, POINT) == {"x": float(number), "n": 1}
    assert read([number, None], pa.list_(pa.float64())) == [float(number), None]
    assert read([["a", number]], pa.map_(pa.string(), pa.float64())) == [("a", float(number))]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, 2], POINT),
        (7, POINT),
        ("7", POINT),
        ({"x": [1], "n": 1}, POINT),
        ({"x": "far", "n": 1}, POINT),
        ({"a": 1}, pa.list_(pa.int64())),
        ('"ab"', pa.list_(pa.string())),
        ({"a": 1}, pa.map_(pa.string(), pa.int64())),
        ({"x": 10**400, "n": 1}, POINT),
    ],
)
def test_json_of_another_shape_is_told_as_every_wrong_value_is(
    value: Any, kind: pa.DataType
) -> None:
    """Whoever calls makes these errors a message of the table."""
    with pytest.raises((ArithmeticError, TypeError, ValueError)):
        read(value, kind)
