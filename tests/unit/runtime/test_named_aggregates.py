"""Aggregates are given by keyword, by ``alias`` or in a dict; any name is good for a column."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import GraphError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "name": pa.string(), "n": pa.int64(), "at": pa.int64()}
ROWS = [
    {"k": 1, "name": "a", "n": 3, "at": 1_000},
    {"k": 1, "name": "b", "n": 4, "at": 2_000},
    {"k": 1, "name": "c", "n": 5, "at": 100_000},
]
Build = Callable[[Any], Any]


def rows_of(build: Build) -> list[dict[str, Any]]:
    @hr.job("aggregated")
    def aggregated(g: hr.Graph) -> None:
        build(g.input("in", schema=COLUMNS, time="at").partition_by("k")).send_to("out")

    with TestDriver(aggregated) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", ROWS)
        driver.run()
        return driver.output("out")


TOTALS = [{"n": 1, "sum": 3}, {"n": 2, "sum": 7}, {"n": 3, "sum": 12}]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.aggregate(n=hr.agg.count(), sum=hr.agg.sum("n")),
        lambda s: s.aggregate(hr.agg.count().alias("n"), hr.agg.sum("n").alias("sum")),
        lambda s: s.aggregate({"n": hr.agg.count(), "sum": hr.agg.sum("n")}),
        lambda s: s.aggregate({"n": hr.agg.count()}, sum=hr.agg.sum("n")),
    ],
    ids=["keywords", "alias", "dict", "both"],
)
def test_they_are_given_in_any_way(build: Build) -> None:
    made = rows_of(build)
    assert [{"n": row["n"], "sum": row["sum"]} for row in made] == TOTALS


def test_columns_have_any_name() -> None:
    """Those of the options of a method, and those that are no Python names."""
    last = hr.agg.last("name")
    minute = hr.tumbling("1m")
    made = rows_of(
        lambda s: s.window(minute, last.alias("name"), {"store": last, "last name": last})
    )
    found = [(row["name"], row["store"], row["last name"]) for row in made]
    assert found == [("b", "b", "b")]
    totals = rows_of(lambda s: s.aggregate({"every": hr.agg.count(), "ttl": hr.agg.max("n")}))
    assert [(row["every"], row["ttl"]) for row in totals] == [(1, 3), (2, 4), (3, 5)]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda s: s.window(hr.tumbling("1m"), name=hr.agg.last("name")),
            r"name= is an option of window; .* write \.alias\('name'\) behind the aggregate",
        ),
        (lambda s: s.aggregate(ttl=hr.agg.count()), "ttl= is an option of aggregate"),
        (lambda s: s.aggregate(store=hr.agg.count()), "store= is an option of aggregate"),
        (lambda s: s.aggregate(hr.agg.count()), r"aggregates with names: .*found Count\("),
        (
            lambda s: s.aggregate({"n": hr.agg.count()}, n=hr.agg.count()),
            "makes the column 'n' twice",
        ),
        (lambda s: s.aggregate({7: hr.agg.count()}), "the name of a column is text; found 7"),
        (lambda s: s.aggregate(), "aggregate has no aggregates"),
    ],
    ids=["name", "ttl", "store", "no name", "twice", "number", "none"],
)
def test_what_is_wrong_is_one_mistake(build: Build, said: str) -> None:
    with pytest.raises(GraphError, match=said) as raised:
        rows_of(build)
    assert "has 1 mistake:" in str(raised.value)


def test_options_by_position_are_for_a_release_only() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = rows_of(lambda s: s.aggregate("1m", "rocksdb", n=hr.agg.count()))
    assert made == rows_of(lambda s: s.aggregate(every="1m", store="rocksdb", n=hr.agg.count()))
    with pytest.warns(DeprecationWarning, match=r"aggregate\('1m'\) by position .* every='1m'"):
        rows_of(lambda s: s.aggregate("1m", n=hr.agg.count()))
