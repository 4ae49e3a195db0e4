"""Rows of a stream whose columns were made wider, for a job that knows the narrower ones."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from headrace.errors import InvalidInputError
from headrace.records.evolution import cast_to_plan


@pytest.mark.parametrize("wide", [0.1, 1e300, -1e-300])
def test_a_float_that_would_be_rounded_is_not_made_narrow(wide: float) -> None:
    """Nor infinite; what fits goes through, as do nulls and what is no number."""
    planned = pa.schema([("x", pa.float32())])
    fits = pa.record_batch({"x": [0.5, None, math.nan, math.inf, -0.0]})
    made = cast_to_plan(fits, planned, "s")
    assert made.schema == planned
    assert str(made.column(0).to_pylist()) == "[0.5, None, nan, inf, -0.0]"
    with pytest.raises(
        InvalidInputError, match=r"'x' of stream 's' was made wider .* float cannot"
    ):
        cast_to_plan(pa.record_batch({"x": [0.5, None, wide]}), planned, "s")
