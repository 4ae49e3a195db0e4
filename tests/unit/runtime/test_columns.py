"""``select``, ``with_columns``, ``drop`` and ``rename``: as in Polars, on a stream's columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import GraphError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "s": pa.string(), "n": pa.int32()}
ROWS = [{"k": 1, "s": "a", "n": 3}, {"k": 2, "s": None, "n": 4}, {"k": 3, "s": "c", "n": None}]
Build = Callable[[Any], Any]


def rows_of(build: Build) -> list[dict[str, Any]]:
    @hr.job("columns")
    def columns(g: hr.Graph) -> None:
        build(g.input("in", schema=COLUMNS)).send_to("out")

    with TestDriver(columns) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", ROWS)
        driver.run()
        return driver.output("out")


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.select("n", hr.col("k") + 1, twice=hr.col("n") * 2),
        lambda s: s.select(pl.all().exclude("s")),
        lambda s: s.with_columns(hr.lit(7).alias("seven"), n=hr.col("n") + hr.col("k")),
        lambda s: s.with_columns(pl.col(pl.String).str.to_uppercase()),
        lambda s: s.drop("s", "k"),
        lambda s: s.rename({"s": "name", "n": "k", "k": "n"}),
        lambda s: s.rename({"s": "t"}).with_columns(u=hr.col("t").is_null()).drop("t"),
        lambda s: s.with_columns(hr.col("s").fill_null("-").alias("name")).select("name"),
    ],
    ids=["select", "pattern", "with", "with all", "drop", "swap", "chain", "called name"],
)
def test_columns_are_as_polars_makes_them(build: Build) -> None:
    frame = pl.DataFrame(ROWS, schema={"k": pl.Int64, "s": pl.String, "n": pl.Int32})
    assert rows_of(build) == build(frame).to_dicts()


def test_what_nobody_reads_changes_nothing() -> None:
    kept = rows_of(lambda s: s.with_columns(x=hr.col("n") * 2).drop("n").select("k"))
    assert kept == [{"k": 1}, {"k": 2}, {"k": 3}]


def test_a_renamed_key_has_to_be_partitioned_by_again() -> None:
    with pytest.raises(GraphError, match=r"in\.by_k\.rename"):
        rows_of(lambda s: s.partition_by("k").rename({"k": "x"}).aggregate(n=hr.agg.count()))
    kept = rows_of(
        lambda s: s.partition_by("k").rename({"s": "x"}).aggregate(n=hr.agg.count()).select("k")
    )
    assert sorted(row["k"] for row in kept) == [1, 2, 3]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda s: s.drop("m"), r"no column 'm'; columns are \['k', 's', 'n'\]"),
        (lambda s: s.rename({"m": "n"}), "no column 'm'"),
        (lambda s: s.rename({"k": "n"}), "'n'"),
        (lambda s: s.drop(), "drop takes names of columns, at least one"),
        (lambda s: s.drop("k", "s", "n"), "drop leaves no column; keep one"),
        (lambda s: s.rename("k"), "rename takes new names by old ones"),
        (lambda s: s.select(), "select takes expressions, .*; found nothing"),
        (lambda s: s.select(lambda row: row), "found <function .*; use map for a function"),
        (lambda s: s.with_columns(m=hr.col("x") + 1), "no column 'x'"),
        (lambda s: s.with_columns(m=hr.col("n").sum()), "looks beyond its row"),
        (lambda s: s.with_columns(name=hr.col("s")), r"name= names the operator.*alias\('name'\)"),
        (lambda s: s.select(name=hr.col("s")), r"write \.alias\('name'\) behind it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_reported_before_anything_runs(build: Build, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        rows_of(build)
