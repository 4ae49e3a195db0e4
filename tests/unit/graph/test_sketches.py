"""Approximate aggregates beyond what they keep exactly; variance beside plain Python."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInputError
from headrace.graph import agg
from headrace.graph.aggregates import Aggregate

ROWS = 100_000
SCHEMA = pa.schema(
    [("key", pa.int64()), ("v", pa.int64()), ("x", pa.float64()), ("t", pa.string())]
)


def over_parts(aggregate: Aggregate, frame: pl.DataFrame, parts: int) -> Any:
    """The result of one group whose rows were folded in so many parts."""
    bound = aggregate.bind(SCHEMA)
    size = -(-frame.height // parts)
    folded = [
        frame.slice(begin, size).group_by("key").agg(bound.partial("p."))
        for begin in range(0, frame.height, size)
    ]
    whole = pl.concat(folded).group_by("key").agg(bound.combine("p."))
    return whole.select(bound.result("p.").alias("r"))["r"].to_list()[0]


def frame_of(values: Any) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "key": 1,
            "v": values,
            "x": np.asarray(values, float),
            "t": np.asarray(values).astype(str),
        },
        schema={"key": pl.Int64, "v": pl.Int64, "x": pl.Float64, "t": pl.String},
    )


@pytest.mark.parametrize("column", ["v", "x", "t"])
def test_distinct_values_are_counted_alike_in_any_parts_and_order(column: str) -> None:
    draw = np.random.default_rng(1)
    values = draw.integers(0, 40_000, ROWS)
    frame, true = frame_of(values), len(np.unique(values))
    found = over_parts(agg.approx_distinct(column), frame, 1)
    assert abs(found - true) < 4 * true / math.sqrt(4096)
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=2)
    assert {found} == {over_parts(agg.approx_distinct(column), shuffled, n) for n in (1, 7, 100)}


def test_quantiles_have_about_the_rank_asked_for() -> None:
    values = np.random.default_rng(3).permutation(ROWS)
    ranks = [0.01, 0.25, 0.5, 0.9, 0.999]
    for parts in (1, 10):
        found = over_parts(agg.quantiles("x", ranks), frame_of(values), parts)
        assert all(
            abs(value / ROWS - rank) < 0.03 for value, rank in zip(found, ranks, strict=True)
        )


def test_frequent_values_are_found_among_many() -> None:
    draw = np.random.default_rng(4)
    values = np.concatenate([draw.integers(100, 50_000, ROWS), np.repeat([1, 2, 3], 9_000)])
    true = Counter(values.tolist())
    for column, kind in (("v", int), ("t", str)):
        found = over_parts(agg.frequent(column, 3), frame_of(draw.permutation(values)), 10)
        assert {kind(n) for n in (1, 2, 3)} == {row[column] for row in found}
        assert all(row["least"] <= true[int(row[column])] <= row["count"] for row in found)
        assert all(row["count"] - row["least"] <= len(values) * 3.5 / 1024 for row in found)


numbers = st.lists(st.none() | st.integers(-1000, 1000), min_size=1, max_size=20)


@given(values=numbers, parts=st.integers(1, 4), ddof=st.integers(0, 1), is_root=st.booleans())
@settings(max_examples=60)
def test_variance_is_that_of_plain_python(
    values: list[int | None], parts: int, ddof: int, is_root: bool
) -> None:
    make = agg.stddev if is_root else agg.variance
    aggregate: Any = make("v", ddof)
    some = [value for value in values if value is not None]
    expected = None
    if len(some) > ddof:
        expected = (statistics.variance if ddof else statistics.pvariance)(some)
        expected = math.sqrt(expected) if is_root else expected
    frame = pl.DataFrame({"key": 1, "v": values}, schema={"key": pl.Int64, "v": pl.Int64})
    by_value = aggregate.result_value(aggregate.fold(aggregate.lift_values((v,)) for v in values))
    lifted = frame.select("key", *aggregate.lift("p."))
    pairs = lifted.rename({name: f"<{name}" for name in lifted.columns}).hstack(lifted)
    doubled = pairs.select(aggregate.combine_pair("<p.", "p."))
    assert (2 * lifted["p.count"]).to_list() == doubled["p.count"].to_list()
    again = lifted.group_by("key").agg(aggregate.combine("p."))
    from_lifted = again.select(aggregate.result("p.").alias("r"))["r"].to_list()[0]
    for found in (over_parts(aggregate, frame, parts), by_value, from_lifted):
        assert expected == (None if expected is None else pytest.approx(found, abs=1e-6))


def test_variance_of_large_numbers_keeps_its_digits() -> None:
    frame = frame_of(np.array([10**9, 10**9 + 1, 10**9 + 2] * 1000))
    assert over_parts(agg.variance("v", 0), frame, 10) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (agg.quantiles("t"), r"quantiles\('t'\) needs numbers; the column is string"),
        (agg.frequent("x"), r"frequent\('x'\) needs text or integers; the column is double"),
        (agg.variance("t"), r"variance\('t'\) needs numbers; the column is string"),
        (agg.stddev("gone"), "no column 'gone'"),
        (agg.first("v", by="gone"), "no column 'gone'"),
        (agg.collect("v", "gone"), "no column 'gone'"),
    ],
)
def test_columns_that_do_not_fit_are_named(aggregate: Aggregate, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        aggregate.result_type(SCHEMA)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (agg.approx_distinct("v", 1000), "approx_distinct takes a power of two from 32 to 1048576"),
        (agg.quantiles("v", [0.5, 2]), r"quantiles takes ranks from 0 to 1.*found \[0.5, 2\]"),
        (agg.quantiles("v", []), "quantiles takes ranks from 0 to 1, at least one"),
        (agg.frequent("v", 0), "frequent takes k of at least 1; found 0"),
        (agg.variance("v", 3), "variance takes ddof of 0 or 1; found 3"),
        (agg.collect("v", "v"), r"collect names a column twice in \['v', 'v'\]"),
    ],
)
def test_wrong_arguments_are_told_by_check(aggregate: Aggregate, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert not "; ".join(aggregate.check())
