"""``sample``: which keys are kept is the same everywhere, and about as many as were asked for."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.plans import explained

import headrace as hr
from headrace.errors import GraphError
from headrace.testing import TestDriver

KEPT = [3, 14, 16, 23, 26, 29, 30, 33, 34]
"""Of the keys 0 to 39 at 0.25. What was sampled before has to be comparable: this never changes."""

COLUMNS = {"k": pa.int64(), "s": pa.string(), "n": pa.int32()}
Build = Callable[[hr.Stream], hr.Stream]


def job_of(build: Build) -> hr.Job:
    @hr.job("sampled")
    def sampled(g: hr.Graph) -> None:
        build(g.input("in", schema=COLUMNS)).send_to(g.output("out"))

    return sampled


def keys_of(build: Build, rows: list[dict[str, Any]], partitions: int = 1) -> list[int]:
    """The keys of what a job sends, sorted."""
    with TestDriver(job_of(build), tasks=partitions) as driver:
        driver.create("in", COLUMNS, partitions=partitions)
        driver.feed("in", rows)
        driver.run()
        return sorted(row["k"] for row in driver.output("out"))


def rows_of(keys: range, repeats: int = 1) -> list[dict[str, Any]]:
    return [{"k": key, "s": f"s{key}", "n": n} for key in keys for n in range(repeats)]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.sample(0.25, by="k"),
        lambda s: s.sample(0.25, by=["k"]).partition_by("s"),
        lambda s: s.partition_by("k").sample(0.25, by="k"),
        lambda s: s.map(lambda row: row.k, returns={"k": int}).sample(0.25, by="k"),
        lambda s: s.sample(0.25, by="k").map(lambda row: {"k": row.k}, returns={"k": int}),
        lambda s: s.map(hr.col("k").cast(pl.Int16)).sample(0.25),
        lambda s: s.sample(0.5, by="k").sample(0.25, by="k"),
    ],
    ids=["rows", "before a key", "behind a key", "messages", "of a function", "all", "twice"],
)
def test_the_same_keys_are_kept_wherever_it_stands(build: Build) -> None:
    assert keys_of(build, rows_of(range(40), repeats=2), partitions=3) == sorted(KEPT * 2)


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.9])
@pytest.mark.parametrize("by", ["k", None])
def test_about_so_many_keys_are_kept(fraction: float, by: str | None) -> None:
    keys = 20_000
    found = keys_of(lambda s: s.sample(fraction, by=by), rows_of(range(keys)))
    deviation = sqrt(keys * fraction * (1 - fraction))
    assert abs(len(found) - keys * fraction) < 5 * deviation


def test_a_fraction_of_one_keeps_all() -> None:
    assert keys_of(lambda s: s.sample(1, by="k"), rows_of(range(40))) == list(range(40))


def test_rows_are_chosen_one_by_one_without_a_key_also_where_columns_are_not_read() -> None:
    """Leaving a column out later does not change which rows there are."""
    rows = rows_of(range(40), repeats=3)
    whole = keys_of(lambda s: s.sample(0.5), rows)
    assert whole == keys_of(lambda s: s.sample(0.5).map("k"), rows)
    assert any(0 < whole.count(key) < 3 for key in range(40))


def test_unsigned_integers_are_chosen_like_others_also_above_the_signed_ones() -> None:
    """They cannot be keys of a partition_by there, but a sample of all columns has to take them."""

    @hr.job("unsigned")
    def unsigned(g: hr.Graph) -> None:
        g.input("in").sample(0.25).send_to(g.output("out"))

    large = [2**64 - 1 - n for n in range(1000)]
    with TestDriver(unsigned, tasks=1) as driver:
        driver.create("in", {"k": pa.uint64()})
        driver.feed("in", [{"k": key} for key in [None, *range(40), *large]])
        driver.run()
        found = [row["k"] for row in driver.output("out") if row["k"] is not None]
    assert [key for key in found if key < 40] == KEPT
    assert 180 < sum(key >= 40 for key in found) < 320


@pytest.mark.parametrize("fraction", [0, -0.5, 1.5, "all", True, float("nan")])
def test_a_fraction_is_above_0_and_at_most_1(fraction: Any) -> None:
    with pytest.raises(GraphError, match="expected a fraction above 0 and at most 1"):
        job_of(lambda s: s.sample(fraction, by="k")).build()


@pytest.mark.parametrize(
    ("by", "text"),
    [("x", "no column 'x'"), ([], "at least one"), ([1], "names of columns"), (5, "found 5")],
)
def test_by_names_columns(by: Any, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        explained(job_of(lambda s: s.sample(0.5, by=by)))


def test_what_cannot_be_hashed_is_named_and_what_to_do() -> None:
    lists = {"k": pa.int64(), "l": pa.list_(pa.int64())}

    @hr.job("lists")
    def job(g: hr.Graph) -> None:
        g.input("in", schema=lists).sample(0.5).send_to(g.output("out"))

    with pytest.raises(GraphError, match=r"column 'l' is list.*by="):
        explained(job)


def test_explain_says_how_much_and_by_what() -> None:
    assert "sample 0.25 by k\n" in explained(job_of(lambda s: s.sample(0.25, by="k")))
    assert "sample 0.5 by k, s, n\n" in explained(job_of(lambda s: s.sample(0.5)))
