"""Queries over streams of jobs in Python make what DuckDB makes, wherever drivers die."""

from __future__ import annotations

import random
from typing import Annotated, Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.sql import ORDERS, POINTS, assert_same, duckdb_session, orders

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

USERS = {"id": pa.string(), "name": pa.string()}
SCHEMA = pa.schema(ORDERS)


@hr.job("queried")
def queried(g: hr.Graph) -> None:
    everything = g.input("orders", time="at", out_of_orderness="1m", schema=SCHEMA)
    users = g.input("users", schema=pa.schema(USERS)).partition_by("id").table()
    good = everything.filter(hr.col("ok")).map(
        lambda m: {"user": m.user, "twice": m.units * 2 if m.units else None},
        returns={"user": str | None, "twice": int | None},
    )
    good.sql("SELECT user, twice FROM input WHERE twice > 2").send_to("large")
    counts = everything.sql(
        """SELECT user, count(DISTINCT units) AS n FROM orders [5 minutes]
        GROUP BY user ORDER BY n DESC, user LIMIT 2""",
        name="best",
    )
    counts.send_to("best")
    everything.sql(
        "SELECT o.user, u.name, o.units FROM input o JOIN users u ON o.user = u.id", users=users
    ).send_to("named")
    everything.sql(
        """SELECT a.user, count(*) AS n FROM input [1 minute] a
        JOIN others [1 minute] b ON a.user = b.user AND a.units = b.units GROUP BY a.user""",
        others=everything.filter(hr.col("units") > 1),
    ).send_to("pairs")


def test_queries_over_streams_make_what_duckdb_makes() -> None:
    dice = random.Random(3)
    rows = orders(dice, 150)
    users = [{"id": name, "name": name.upper()} for name in ("ann", "bob")]
    with TestDriver(queried, tasks=2, slots=2) as driver:
        driver.create("orders", ORDERS, partitions=2, time="at")
        driver.create("users", USERS)
        driver.feed("users", users)
        for begin in range(0, 150, 30):
            driver.feed("orders", rows[begin : begin + 30])
            driver.advance_with_crash(POINTS[begin // 30 % len(POINTS)])
        driver.finish()
        found = {name: driver.output(name) for name in ("large", "best", "named", "pairs")}
    texts = {
        "large": "select user, units * 2 as twice from orders where ok and units * 2 > 2",
        "best": """select user, count(distinct units) as n from orders group by user, minute // 5
            qualify row_number() over (partition by minute // 5 order by n desc, user) <= 2""",
        "named": "select user, name, units from orders join users on user = id",
        "pairs": """select a.user, count(*) as n from orders a join orders b
            on a.user = b.user and a.units = b.units and a.minute = b.minute and b.units > 1
            group by a.user, a.minute""",
    }
    with duckdb_session() as connection:
        given = pa.Table.from_pylist(rows, schema=SCHEMA)
        connection.register("given", given)
        connection.execute(
            'create temp table orders as select *, "at" // 60000 as minute from given'
        )
        connection.register("users", pa.Table.from_pylist(users))
        for name, text in texts.items():
            cursor = connection.execute(text)
            columns = [column[0] for column in cursor.description]
            wanted = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            assert_same(found[name], wanted, name)
            assert len(wanted) > 5


def shouted(word: str) -> str:
    return f"{word.upper()}!"


def halves(values: pl.Series) -> Annotated[pl.Series, float]:
    return values / 2


def product(column: str) -> hr.agg.Aggregate:
    return hr.agg.monoid(1, _factor, _times, returns=int, columns=column)


def _factor(value: int | None) -> int:
    return 1 if value is None else value


def _times(one: int, other: int) -> int:
    return one * other


def test_functions_of_the_job_are_called_and_late_rows_have_a_side() -> None:
    @hr.job("late")
    def late(g: hr.Graph) -> None:
        source = g.input("orders", time="at", schema={"at": int, "user": str, "n": int})
        made = source.sql(
            "SELECT Shouted(user) AS who, product(n) AS n, halves(sum(n)) AS half "
            "FROM input [1 second] WHERE user <> 'z' GROUP BY user",
            options={"late": "side_output"},
            functions={"shouted": shouted, "halves": halves, "product": product},
        )
        made.send_to("products")
        made.side("late").send_to("late")

    rows = [
        {"at": at, "user": user, "n": n}
        for at, user, n in [(1, "a", 2), (2, "a", 3), (3000, "b", 5), (5, "a", 7), (6, "z", 1)]
    ]
    with TestDriver(late) as driver:
        driver.create("orders", {"at": pa.int64(), "user": pa.string(), "n": pa.int64()}, time="at")
        driver.feed("orders", rows[:3])
        driver.run()
        driver.feed("orders", rows[3:])
        driver.finish()
        found = [(row["who"], row["n"], row["half"]) for row in driver.output("products")]
        assert sorted(found) == [("A!", 6, 2.5), ("B!", 5, 2.5)]
        assert driver.output("late") == [rows[3]]


@pytest.mark.parametrize(
    ("query", "more", "message"),
    [
        ("SELECT usr FROM input", {}, "sql:1:8: no column 'usr'; did you mean 'user'?"),
        ("SELECT user FROM inputs", {}, "no table 'inputs'; did you mean 'input'?"),
        ("SELECT user, count(*) FROM input", {}, "a computed column needs a name"),
        ("DELETE FROM input", {}, "expected one query: SELECT"),
        ("", {}, "expected a query"),
        ("SELECT user FROM input EMIT FINAL", {}, "EMIT is for aggregates"),
        ("SELECT user FROM input", {"options": {"lat": "1m"}}, "no option 'lat'; did you mean 'l"),
        ("SELECT user FROM input", {"options": {"topk": 0}}, "topk is 0; expected at least 1"),
        ("SELECT user FROM input", {"options": {"late": 1}}, "late is 1; expected 'drop' or"),
        (
            "SELECT user FROM input",
            {"options": {"late": "side_output"}},
            "for aggregates of windows",
        ),
        ("SELECT f(user) AS f FROM input", {}, "no function 'f'"),
        ("SELECT user FROM input", {"functions": {"lower": shouted}}, "is a function of SQL"),
        ("SELECT user FROM input", {"functions": {"f": lambda x: x}}, "does not say what it"),
        ("SELECT user FROM input", {"functions": {"f": 3}}, "function 'f' is no function"),
        ("SELECT user FROM input", {"other": 3}, "sql reads streams and tables; other is 3"),
        ("SELECT user FROM other", {"other": "new"}, "sql needs the columns of stream 'new': give"),
    ],
)
def test_a_mistake_is_shown_with_the_line_of_the_job(
    query: str, more: dict[str, Any], message: str
) -> None:
    @hr.job("wrong")
    def wrong(g: hr.Graph) -> None:
        more.update({"other": g.input("new")} if more.get("other") == "new" else {})
        g.input("orders", schema=SCHEMA, time="at").sql(query, **more).send_to("out")

    with pytest.raises(InvalidInputError) as caught:
        wrong.build()
    assert message in str(caught.value)
    if "sql:" in message:
        assert "test_sql_streams.py:" in str(caught.value).partition("sql:1")[0][-24:]
