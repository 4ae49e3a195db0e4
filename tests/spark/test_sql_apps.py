"""An SQL app on Spark, with functions of the user, makes what Spark SQL makes of its statements."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.runs import World, on_spark
from tests.support.sql import ORDERS, assert_same, orders

from headrace.sql import SqlText, load_app

pytestmark = pytest.mark.spark

FUNCTIONS = """
from typing import Annotated
import polars as pl
import headrace as hr

def shout(text: str) -> str:
    return f"{text.upper()}!"

def halves(values: pl.Series) -> Annotated[pl.Series, float]:
    return values / 2

def longest(column: str) -> hr.agg.Aggregate:
    return hr.agg.monoid(0, length, max, returns=int, columns=column)

def length(text):
    return len(text or "")
"""
HEAD = """CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, country, amount, units, ok)
    FROM SCRIBE("orders") TIME at LATENESS '1 minute';
CREATE FUNCTION shout USING 'spark_sql_functions:shout';
CREATE FUNCTION halves USING 'spark_sql_functions:halves';
CREATE FUNCTION longest USING 'spark_sql_functions:longest';
"""
ROWS = [
    "user, amount * units AS cost FROM orders WHERE ok AND units > 2",
    "upper(country) AS c, coalesce(amount, 0) AS a FROM orders WHERE country <> ''",
    "CASE WHEN units > 2 THEN 'many' WHEN units > 0 THEN 'few' END AS kind FROM orders",
    "substr(user, 1, 2) AS u, length(country) AS n FROM orders WHERE user IN ('ann', 'bob')",
    "shout(user) AS loud FROM orders WHERE halves(units) > 1",
]
"""Of single rows."""

TOTALS = [
    ("user", "count(*) AS n, sum(units) AS s, avg(amount) AS mean", ""),
    ("country", "count(DISTINCT user) AS users, sum(DISTINCT units) AS s", "WHERE ok"),
    ("user, country", "min(amount) AS low, max(units) AS high", "WHERE amount > 0"),
    ("ok", "var_pop(units) AS v, count(amount) AS n", "WHERE units IS NOT NULL"),
    ("country", "count(*) FILTER (WHERE ok) AS good, sum(units) / count(*) AS each", ""),
    ("user", "sum(halves(units)) AS h, longest(country) AS l", ""),
]
"""Of windows of a minute: the key, aggregates and a condition."""

IN_SPARK = {
    "shout(user)": "upper(user) || '!'",
    "halves(units)": "(units / 2)",
    "longest(country)": "coalesce(max(length(country)), 0)",
}


def test_an_app_on_spark_makes_what_spark_sql_makes(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark_sql_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "spark_sql_functions", raising=False)
    given = orders(random.Random(2), 200)
    in_spark = {f"row{n}": f"SELECT {text}" for n, text in enumerate(ROWS)}
    app = [f"CREATE STREAM {name} AS {text}" for name, text in in_spark.items()]
    for n, (key, totals, where) in enumerate(TOTALS):
        begin = f"SELECT {key}, {totals} FROM orders"
        app.append(f"CREATE TABLE total{n} AS {begin} [1 minute] {where} GROUP BY {key}")
        in_spark[f"total{n}"] = f"{begin} {where} GROUP BY {key}, at div 60000"
    loaded = load_app(SqlText(HEAD + ";\n".join(app), str(tmp_path / "shop.sql")))
    world.create("orders", pa.schema(ORDERS), time="at")
    world.send("orders", given, 0)
    result, _ = on_spark(loaded.job, world.settings("job.bounded=true", "epoch.max_rows=150"))
    assert result.state.ended
    table = pa.Table.from_pylist(given, schema=pa.schema(ORDERS))
    spark.createDataFrame(table).coalesce(1).createOrReplaceTempView("orders")
    partitions = spark.conf.get("spark.sql.shuffle.partitions") or "200"
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        for name, text in in_spark.items():
            asked = text
            for ours, theirs in IN_SPARK.items():
                asked = asked.replace(ours, theirs)
            wanted = [row.asDict() for row in spark.sql(asked).collect()]
            assert len(wanted) > 5
            assert_same(world.rows(loaded.tables[name]), wanted, name)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        spark.catalog.dropTempView("orders")
