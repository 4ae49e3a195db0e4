"""Queries of SQL apps over other queries: each table has the rows that DuckDB makes of the app."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from tests.support.soak import more
from tests.support.sql import ORDERS, assert_same, in_duckdb, orders, played

RETURNS = {"at": pa.int64(), "user": pa.string(), "units": pa.int32(), "reason": pa.string()}
BEGIN = """
CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, country, amount, units, ok)
    FROM SCRIBE("orders") TIME at LATENESS '1 minute';
CREATE INPUT TABLE returns(at, user, units, reason)
    FROM SCRIBE("returns") TIME at LATENESS '1 minute';
"""
WITHIN = {
    "subquery": """CREATE TABLE found AS SELECT who, sum(twice) AS total
        FROM (SELECT upper(user) AS who, units * 2 AS twice, at FROM orders WHERE ok) [5 minutes]
        GROUP BY who;""",
    "subquery of totals": """CREATE TABLE found AS SELECT user, n * 10 AS tens
        FROM (SELECT user, count(*) AS n FROM orders [5 minutes] GROUP BY user) AS each
        WHERE each.n > 2;""",
    "totals of totals": """CREATE TABLE found AS SELECT max(n) AS most, count(*) AS users
        FROM (SELECT user, count(*) AS n FROM orders [1 minute] GROUP BY user) each [5 minutes];""",
    "three deep": """CREATE STREAM found AS SELECT user, c FROM (
            SELECT user, upper(country) AS c FROM (SELECT * FROM orders WHERE units > 0) AS some
            WHERE country <> 'de') AS others WHERE user IS NOT NULL;""",
    "with": """CREATE TABLE found AS
        WITH good AS (SELECT at, user, units FROM orders WHERE ok),
             large AS (SELECT at, user, units AS u FROM good WHERE units > 1)
        SELECT user, sum(u) AS total FROM large [5 minutes] GROUP BY user;""",
    "with, read twice": """CREATE STREAM found AS
        WITH good AS (SELECT user, units, at FROM orders WHERE ok)
        SELECT user, 'low' AS kind FROM good WHERE units < 1
        UNION ALL SELECT user, 'high' AS kind FROM good WHERE units > 2;""",
    "a name hides a table": """CREATE TABLE found AS
        WITH orders AS (SELECT user, at FROM orders WHERE user = 'ann')
        SELECT count(*) AS n FROM orders [5 minutes];""",
    "view": """CREATE VIEW good AS SELECT user, units AS u, at FROM orders WHERE ok;
        CREATE TABLE found AS SELECT user, sum(u) AS total FROM good [5 minutes] GROUP BY user;
        CREATE STREAM other AS SELECT g.user, g.u + 1 AS more FROM good AS g WHERE g.u > 2;""",
    "view of totals": """CREATE VIEW each AS
            SELECT user, country, count(*) AS n FROM orders [2 minutes] GROUP BY user, country;
        CREATE TABLE found AS SELECT country, max(n) AS most FROM each [4 minutes]
            GROUP BY country;
        CREATE TABLE other AS SELECT * FROM each WHERE n > 1;""",
}
MERGED = {
    "union of streams": """CREATE STREAM found AS
        SELECT user, units, 'order' AS kind FROM orders WHERE ok
        UNION ALL SELECT user, -units, reason FROM returns;""",
    "total of a union": """CREATE TABLE found AS SELECT user, sum(units) AS balance, count(*) AS n
        FROM (SELECT at, user, units FROM orders UNION ALL SELECT at, user, -units FROM returns)
        [5 minutes] GROUP BY user;""",
    "union of totals": """CREATE TABLE found AS
        SELECT user, count(*) AS n, 'o' AS kind FROM orders [5 minutes] GROUP BY user
        UNION ALL SELECT user, count(*) AS n, 'r' AS kind FROM returns [5 minutes] GROUP BY user;
    """,
    "union of different keys": """CREATE TABLE found AS
        SELECT user AS name, count(*) AS n FROM orders [5 minutes] GROUP BY user
        UNION ALL SELECT country, count(*) AS n FROM orders [5 minutes] GROUP BY country
        UNION ALL SELECT 'all' AS name, count(*) AS n FROM orders [5 minutes];""",
    "union of rows and totals": """CREATE STREAM found AS
        SELECT user, units FROM orders WHERE units > 3 UNION ALL
        SELECT user, n FROM (SELECT user, count(*) AS n FROM returns [5 minutes] GROUP BY user)
        AS each;""",
    "three, with brackets": """CREATE STREAM found AS
        (SELECT user FROM orders WHERE ok) UNION ALL (SELECT user FROM orders WHERE NOT ok)
        UNION ALL (SELECT reason FROM returns);""",
    "by name": """CREATE STREAM found AS SELECT user, ok FROM orders WHERE units > 2
        UNION ALL BY NAME SELECT reason, user FROM returns;""",
    "distinct": """CREATE TABLE found AS SELECT DISTINCT country, ok AND units > 1 AS good
        FROM orders [5 minutes];""",
    "distinct over a union": """CREATE TABLE found AS SELECT DISTINCT user FROM
        (SELECT user, at FROM orders UNION ALL SELECT user, at FROM returns) [5 minutes];""",
    "distinct, then counted": """CREATE TABLE found AS SELECT country, count(*) AS users
        FROM (SELECT DISTINCT country, user FROM orders [1 minute]) [5 minutes]
        GROUP BY country;""",
    "distinct groups": """CREATE TABLE found AS
        SELECT DISTINCT user, max(units) AS most FROM orders [5 minutes] GROUP BY user;""",
}


def returns(dice: random.Random, count: int) -> list[dict[str, object]]:
    """Return rows in an order that the lateness allows."""
    return [
        {
            "at": row["at"] + dice.randrange(3_000),
            "user": row["user"],
            "units": row["units"],
            "reason": dice.choice(["late", "broken", None]),
        }
        for row in orders(dice, count, every_ms=9_000)
    ]


def check(statements: str, dice: random.Random) -> int:
    """Compare what an app makes with DuckDB; return how many rows."""
    streams = {
        "orders": (ORDERS, orders(dice, 150)),
        "returns": (RETURNS, returns(dice, 60)),
    }
    begin = BEGIN
    for name in list(streams):
        if f"FROM {name}" not in statements and f"JOIN {name}" not in statements:
            del streams[name]
            begin = begin.replace(f"CREATE INPUT TABLE {name}", f"CREATE VIEW {name}")
    head = ";".join(part for part in begin.split(";") if "CREATE VIEW" not in part)
    text = f"{head};\n{statements}"
    found = played(text, streams, dice, crashes=True)
    tables = {
        name: pa.Table.from_pylist(rows, schema=pa.schema(columns))
        for name, (columns, rows) in streams.items()
    }
    expected = in_duckdb(text, tables)
    for name, rows in found.items():
        assert_same(rows, expected[name], f"{name} of {statements}")
    return sum(map(len, found.values()))


CASES = WITHIN | MERGED


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", more([0], range(20)))
def test_a_query_over_queries_makes_what_duckdb_makes(name: str, seed: int) -> None:
    assert check(CASES[name], random.Random(f"{seed}/{name}")) > 2
