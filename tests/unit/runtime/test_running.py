"""Totals that follow each message: every kind of aggregate, in order per key, over any chunks."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from tests.support.limits import limit

import headrace as hr
from headrace.errors import InvalidInputError, UserFunctionError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.string(), "v": pa.int64(), "x": pa.float64(), "day": pa.date32()}
DAY = datetime.date(2024, 2, 28)


def joined(first: list[Any], second: list[Any]) -> list[Any]:
    return [*first, *second]


AGGREGATES: dict[str, Any] = {
    "n": hr.agg.count(),
    "some": hr.agg.count("x"),
    "total": hr.agg.sum("v"),
    "low": hr.agg.min("x"),
    "mid": hr.agg.mean("x"),
    "first_day": hr.agg.min("day"),
    "last_day": hr.agg.max("day"),
    "top": hr.agg.top_k("v", 2, keep=["day"]),
    "all": hr.agg.monoid([], lambda v: [v], joined, returns=pa.list_(pa.int64()), columns="v"),
    "text": hr.agg.monoid(
        "", lambda k, v: f"{k}{v}", str.__add__, str.upper, returns=str, columns=["k", "v"]
    ),
}


def rows_of(count: int) -> list[dict[str, Any]]:
    values = [None, 0.5, math.nan, -2.0]
    return [
        {
            "k": [None, "a", "b"][n % 3],
            "v": (n * 7) % 11,
            "x": values[n % 4],
            "day": None if n % 5 == 0 else DAY + datetime.timedelta(days=n % 3),
        }
        for n in range(count)
    ]


def expected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must follow each message, by key."""
    seen: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    made = []
    for row in rows:
        seen[row["k"]].append(row)
        mine = seen[row["k"]]
        xs = [r["x"] for r in mine if r["x"] is not None]
        numbers = [x for x in xs if not math.isnan(x)]
        days = [r["day"] for r in mine if r["day"] is not None]
        far = datetime.date.max
        top = sorted(mine, key=lambda r: (-r["v"], r["day"] or far))[:2]
        made.append(
            {
                "k": row["k"],
                "n": len(mine),
                "some": len(xs),
                "total": sum(r["v"] for r in mine),
                "low": min(numbers, default=None),
                "mid": repr(sum(xs) / len(xs)) if xs else "None",
                "first_day": min(days, default=None),
                "last_day": max(days, default=None),
                "top": [{"v": r["v"], "day": r["day"]} for r in top],
                "all": [r["v"] for r in mine],
                "text": "".join(f"{r['k']}{r['v']}" for r in mine).upper(),
            }
        )
    return made


@hr.job("running")
def running(g: hr.Graph) -> None:
    g.input("in").partition_by("k").aggregate(**AGGREGATES).send_to(g.output("out"))


@pytest.mark.parametrize("max_rows", [1000, 9, 1])
def test_totals_follow_each_message(max_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one epoch or many, in chunks of a few rows, after a restart and a lost disk."""
    limit(monkeypatch, chunk_rows=4)
    limit(monkeypatch, exchange_frame_rows=4)
    rows = rows_of(36)
    with TestDriver(running, tasks=2, max_rows=max_rows) as driver:
        driver.create("in", COLUMNS)
        for begin in range(0, 36, 12):
            for at in range(begin, begin + 12, 3):
                driver.feed("in", rows[at : at + 3])
            driver.run()
            driver.crash(lose_hosts=[0] if begin else [])
        found = driver.output("out")
        for row in found:
            row["mid"] = repr(row["mid"])
        for key in (None, "a", "b"):
            mine = [row for row in expected(rows) if row["k"] == key]
            assert mine == [row for row in found if row["k"] == key]


def test_totals_without_a_follower_are_kept_and_send_nothing() -> None:
    @hr.job("kept")
    def kept(g: hr.Graph) -> None:
        g.input("in").partition_by("k").aggregate(name="totals", **AGGREGATES)

    with TestDriver(kept, tasks=2, max_rows=10) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", rows_of(36))
        driver.run()
        assert len(driver.table("totals")) == 3


def test_two_followers_and_a_chain_see_the_same_totals() -> None:
    @hr.job("chain")
    def chain(g: hr.Graph) -> None:
        totals = g.input("in").partition_by("k").aggregate(name="first", n=hr.agg.count())
        totals.send_to(g.output("one"))
        totals.aggregate(name="second", s=hr.agg.sum("n")).send_to(g.output("two"))

    with TestDriver(chain) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": "a"}] * 5)
        driver.run()
        assert [row["n"] for row in driver.output("one")] == [1, 2, 3, 4, 5]
        assert [row["s"] for row in driver.output("two")] == [1, 3, 6, 10, 15]


def broken(*values: Any) -> Any:
    raise ZeroDivisionError("by hand")


@pytest.mark.parametrize("every", [None, "10ms"])
@pytest.mark.parametrize("part", ["lift", "combine", "result"])
def test_errors_in_a_users_monoid_name_the_operator(part: str, every: str | None) -> None:
    parts: dict[str, Any] = {"lift": int, "combine": int.__add__, "result": int}
    monoid = hr.agg.monoid(0, **{**parts, part: broken}, returns=int, columns="v")

    @hr.job("broken")
    def job(g: hr.Graph) -> None:
        source = g.input("in", time="at" if every else None).partition_by("k")
        source.aggregate(name="bad", every=every, m=monoid).send_to(g.output("out"))

    with TestDriver(job) as driver:
        driver.create("in", {**COLUMNS, "at": pa.int64()})
        driver.feed("in", [{"k": "a", "v": 1, "at": 1}, {"k": "a", "v": 2, "at": 2}])
        with pytest.raises(UserFunctionError, match=r"(?s)'bad' raised .*ZeroDivision.*by hand"):
            driver.finish()


def test_a_sum_beyond_64_bits_is_an_error_not_a_wrong_number() -> None:
    @hr.job("wide")
    def wide(g: hr.Graph) -> None:
        source = g.input("in").partition_by("k")
        source.aggregate(name="followed", s=hr.agg.sum("v")).send_to(g.output("out"))

    with TestDriver(wide) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": "a", "v": 2**63 - 1}, {"k": "a", "v": 1}])
        with pytest.raises(InvalidInputError, match="64 bits"):
            driver.run()


def test_names_that_begin_alike_are_apart() -> None:
    aggregates: Any = {"a": hr.agg.top_k("v", 1), "a.top": hr.agg.count()}

    @hr.job("alike")
    def alike(g: hr.Graph) -> None:
        g.input("in").partition_by("k").aggregate(**aggregates).send_to(g.output("out"))

    with TestDriver(alike) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": "x", "v": v} for v in (3, 1)])
        driver.run()
        found = [(row["a"], row["a.top"]) for row in driver.output("out")]
        assert found == [([{"v": 3}], 1), ([{"v": 3}], 2)]
