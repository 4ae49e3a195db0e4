"""Queries of SQL apps over other queries: each table has the rows that DuckDB makes of the app."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.soak import more
from tests.support.sql import ORDERS, Row, assert_same, duckdb_session, in_duckdb, orders, played

RETURNS = {"at": pa.int64(), "user": pa.string(), "units": pa.int32(), "reason": pa.string()}
BEGIN = """
CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, country, amount, units, ok)
    FROM SCRIBE("orders") TIME at LATENESS '1 minute';
CREATE INPUT TABLE returns(at, user, units, reason)
    FROM SCRIBE("returns") TIME at LATENESS '1 minute';
CREATE INPUT TABLE users(id, name, level, PRIMARY KEY (id)) FROM SCRIBE("users");
CREATE INPUT TABLE levels(at, user, level, PRIMARY KEY (user))
    FROM SCRIBE("levels") TIME at LATENESS '1 minute';
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
    "elements": """CREATE STREAM found AS
        SELECT user, unnest(string_split(country, 'e')) AS part, [user, 'x'][1] AS first
        FROM orders WHERE country <> 'ch';""",
    "totals of elements": """CREATE TABLE found AS SELECT part, count(*) AS n, max(units) AS most
        FROM (SELECT at, units, unnest([user, country]) AS part FROM orders) [5 minutes]
        GROUP BY part;""",
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

LIMITED = {
    "first groups": """CREATE TABLE found AS SELECT user, country, count(*) AS n, max(at) AS last
        FROM orders [2 minutes] GROUP BY user, country ORDER BY n DESC, last LIMIT 3;""",
    "first rows": """CREATE TABLE found AS SELECT user, amount * 2 AS twice, units
        FROM orders [1 minute] WHERE ok IS NOT false
        ORDER BY units NULLS FIRST, at DESC LIMIT 2;""",
    "first groups of hopping windows": """CREATE TABLE found AS SELECT country, sum(units) AS s
        FROM orders [4 minutes every 2 minutes] GROUP BY country HAVING count(*) > 1
        ORDER BY count(DISTINCT user) DESC, s DESC NULLS FIRST, country LIMIT 2;""",
    "totals of first groups": """CREATE TABLE found AS SELECT user, count(*) AS n, min(s) AS s
        FROM (SELECT user, sum(units) AS s FROM orders [1 minute] GROUP BY user
              ORDER BY s DESC, user LIMIT 2) AS best [5 minutes] GROUP BY user;""",
}

MINUTE = 60_000
JOINED = {
    "within a minute": f"""CREATE STREAM found AS
        SELECT o.user, o.units, r.units AS back, r.reason
        FROM orders AS o JOIN returns r ON o.user = r.user
            AND r.at BETWEEN o.at - {MINUTE} AND o.at + {MINUTE};""",
    "after, strictly": f"""CREATE STREAM found AS SELECT orders.user, country, reason
        FROM orders JOIN returns ON upper(orders.user) = upper(returns.user)
            AND orders.units = returns.units
            AND returns.at > orders.at AND orders.at + {5 * MINUTE} > returns.at WHERE ok;""",
    "with a condition of both": f"""CREATE STREAM found AS SELECT o.at, r.at AS then
        FROM orders o JOIN returns r ON o.user = r.user AND o.units < r.units + 1
            AND r.at >= o.at - {2 * MINUTE} AND r.at <= o.at + 1000;""",
    "later by at least a minute": f"""CREATE STREAM found AS SELECT o.user, r.at - o.at AS after
        FROM orders o JOIN returns r ON o.user = r.user
            AND r.at BETWEEN o.at + {MINUTE} AND o.at + {2 * MINUTE};""",
    "left": f"""CREATE STREAM found AS SELECT o.user, r.user AS who, o.at, reason
        FROM orders o LEFT JOIN returns r ON o.user = r.user AND o.units = r.units
            AND r.at BETWEEN o.at AND o.at + {MINUTE};""",
    "right": f"""CREATE STREAM found AS SELECT o.user, r.user AS who, r.at, reason
        FROM orders o RIGHT JOIN returns r ON o.user = r.user AND o.units = r.units
            AND o.at BETWEEN r.at - {MINUTE} AND r.at;""",
    "full": """CREATE STREAM found AS SELECT o.user, o.units AS n, r.user AS who, r.units AS back
        FROM orders o FULL JOIN returns r ON o.user = r.user AND o.units = r.units
            AND r.at BETWEEN o.at - 20000 AND o.at + 20000;""",
    "using": """CREATE STREAM found AS SELECT user, country, reason, bought, brought
        FROM (SELECT user, country, at AS bought FROM orders WHERE units > 1) o [1 minute]
        JOIN (SELECT user, reason, at AS brought FROM returns) r [1 minute] USING (user);""",
    "itself": f"""CREATE STREAM found AS SELECT a.user, a.country, b.country AS other
        FROM orders a JOIN orders b ON a.user = b.user AND a.units = b.units
            AND b.at > a.at AND b.at <= a.at + {MINUTE};""",
    "three streams": f"""CREATE STREAM found AS SELECT a.user, b.reason, c.country
        FROM orders a
        JOIN returns b ON a.user = b.user AND b.at BETWEEN a.at - {MINUTE} AND a.at + {MINUTE}
        JOIN orders c ON c.user = a.user AND c.units = b.units
            AND c.at BETWEEN a.at AND a.at + {MINUTE} WHERE a.units > 2;""",
    "total of a join": f"""CREATE TABLE found AS
        SELECT user, count(*) AS n, sum(back) AS back FROM (
            SELECT o.user, r.units AS back, greatest(o.at, r.at) AS at
            FROM orders o JOIN returns r ON o.user = r.user
                AND r.at BETWEEN o.at AND o.at + {MINUTE}) [5 minutes] GROUP BY user;""",
    "in a window": """CREATE STREAM found AS SELECT o.user, o.units, r.units AS back
        FROM orders [1 minute] o JOIN returns [1 minute] r ON o.user = r.user;""",
    "in a window, left": """CREATE STREAM found AS SELECT o.user, r.user AS who, o.units, reason
        FROM orders o [1 minute] LEFT JOIN returns [1 minute] r
        ON o.user = r.user AND o.units = r.units;""",
    "total in a window": """CREATE TABLE found AS
        SELECT o.user, count(*) AS n, sum(r.units) AS back, max(o.units) AS most
        FROM orders o [2 minutes] JOIN returns r [2 minutes] ON o.user = r.user GROUP BY o.user;""",
    "totals": """
        CREATE TABLE sold AS SELECT user, count(*) AS n FROM orders [5 minutes] GROUP BY user;
        CREATE TABLE back AS SELECT user, count(*) AS m FROM returns [5 minutes] GROUP BY user;
        CREATE TABLE found AS SELECT sold.user, n, m, m / n AS part FROM sold JOIN back
        ON sold.user = back.user AND sold.window_start = back.window_start;""",
    "totals, left": """CREATE TABLE found AS
        SELECT s.user AS who, n, m FROM
            (SELECT user, count(*) AS n FROM orders [1 minute] GROUP BY user) s [1 minute]
        LEFT JOIN
            (SELECT user, count(*) AS m FROM returns [1 minute] GROUP BY user) b [1 minute]
        ON s.user = b.user;""",
}
USERS = {"id": pa.string(), "name": pa.string(), "level": pa.int64()}
LEVELS = {"at": pa.int64(), "user": pa.string(), "level": pa.int64()}
TABLES = {
    "table": """CREATE STREAM found AS SELECT o.user, u.id, name, level * units AS points
        FROM orders o JOIN users u ON o.user = u.id;""",
    "table, left": """CREATE STREAM found AS SELECT user, id, name, at
        FROM orders LEFT JOIN users ON id = user;""",
    "table, using": """CREATE STREAM found AS SELECT * FROM
        (SELECT user AS id, at, units FROM orders) JOIN users USING (id) WHERE id = 'ann';""",
    "table, with a condition": """CREATE STREAM found AS SELECT o.user, u.name
        FROM orders o JOIN users u ON o.user = u.id AND u.level > o.units AND ok;""",
    "total of a table": """CREATE TABLE found AS SELECT name, count(*) AS n
        FROM orders o [5 minutes] JOIN users u ON upper(o.user) = u.name AND o.user = u.id
        GROUP BY name;""",
    "table, twice": """CREATE VIEW named AS
            SELECT o.user, o.country, u.name, o.at FROM orders o JOIN users u ON o.user = u.id;
        CREATE STREAM found AS SELECT n.user, n.name, c.name AS country
            FROM named n LEFT JOIN users c ON n.country = c.id;""",
    "as of": """CREATE STREAM found AS SELECT o.user, o.at, l.level, l.at AS since
        FROM orders o ASOF JOIN levels l ON o.user = l.user AND o.at >= l.at;""",
    "as of, left": """CREATE STREAM found AS SELECT o.user, o.at, level, l.user AS who
        FROM orders o ASOF LEFT JOIN levels l ON o.user = l.user AND o.at >= l.at;""",
    "as of, total": """CREATE TABLE found AS SELECT level, count(*) AS n FROM
        (SELECT o.at, level FROM orders o ASOF JOIN levels l
         ON l.at <= o.at AND o.user = l.user) [5 minutes] GROUP BY level;""",
}

CHANGING = {
    "totals": """CREATE TABLE found AS
        SELECT user, count(*) AS n, sum(units) AS units, avg(amount) AS mean FROM orders
        GROUP BY user;""",
    "total of all": "CREATE TABLE found AS SELECT count(*) AS n, max(units) AS m FROM orders;",
    "totals of different values": """CREATE TABLE found AS
        SELECT user, count(DISTINCT units) AS n, count(DISTINCT country) FILTER (WHERE ok) AS c,
            sum(DISTINCT units) AS s, count(*) AS all FROM orders GROUP BY user;""",
    "totals of different values every minute": """CREATE TABLE found AS
        SELECT user, count(DISTINCT amount) AS n FROM orders GROUP BY user EMIT EVERY '1 minute';
    """,
    "different values, early": """CREATE TABLE found AS SELECT user, count(DISTINCT units) AS n
        FROM orders [5 minutes] GROUP BY user EMIT EARLY EVERY 3 ROWS;""",
    "totals by an expression": """CREATE TABLE found AS
        SELECT upper(country) AS user, count(*) FILTER (WHERE ok) + 1 AS n FROM orders
        WHERE units > 0 GROUP BY 1;""",
    "totals of a join": f"""CREATE TABLE found AS SELECT o.user, count(*) AS n, min(reason) AS low
        FROM orders o JOIN returns r ON o.user = r.user AND o.units = r.units
            AND r.at BETWEEN o.at - {MINUTE} AND o.at + {MINUTE} GROUP BY o.user;""",
    "totals of totals": """CREATE TABLE found AS SELECT user, max(n) AS most
        FROM (SELECT user, count(*) AS n FROM orders [1 minute] GROUP BY user) GROUP BY user;""",
    "totals every minute": """CREATE TABLE found AS SELECT user, count(*) AS n FROM orders
        GROUP BY user EMIT EVERY '1 minute';""",
    "totals of two streams": """
        CREATE VIEW bought AS SELECT user, count(*) AS n, sum(units) AS u FROM orders GROUP BY user;
        CREATE VIEW back AS SELECT user, count(*) AS m FROM returns GROUP BY user;
        CREATE TABLE found AS SELECT user, n - m AS rest, u FROM bought JOIN back USING (user);""",
    "early": """CREATE TABLE found AS SELECT user, count(*) AS n, max(units) AS most
        FROM orders [5 minutes] GROUP BY user EMIT EARLY EVERY '1 minute';""",
    "early, by rows": """CREATE TABLE found AS SELECT user, sum(units) AS n
        FROM orders [4 minutes every 2 minutes] GROUP BY user EMIT EARLY EVERY 5 ROWS;""",
    "early, idle": """CREATE TABLE found AS SELECT user, sum(units) AS n FROM orders [5 minutes]
        GROUP BY user EMIT EARLY IDLE '20 seconds';""",
    "late": """CREATE TABLE found WITH (allowed_lateness = '10 minutes', late = 'update') AS
        SELECT user, count(*) AS n, sum(units) AS units FROM orders [1 minute] GROUP BY user;""",
    "last row": """CREATE TABLE found AS SELECT user, at, units * 2 AS twice FROM orders
        QUALIFY row_number() OVER (PARTITION BY user ORDER BY at DESC) = 1;""",
    "least row": """CREATE TABLE found AS SELECT user, at, amount FROM (
            SELECT *, row_number() OVER (PARTITION BY user ORDER BY amount, at DESC) AS r
            FROM orders) WHERE r <= 1;""",
    "first rows": """CREATE TABLE found AS SELECT * FROM (
            SELECT user, at, units, country, row_number() OVER
                (PARTITION BY user ORDER BY units DESC NULLS FIRST, country, at) AS place
            FROM orders WHERE ok) WHERE place < 4 EMIT EVERY '1 minute';""",
    "late, dropped": """CREATE TABLE found WITH (allowed_lateness = '10 minutes') AS
        SELECT user, count(*) AS n, sum(units) AS units FROM orders [1 minute] GROUP BY user
        EMIT FINAL;""",
    "late in a join": f"""CREATE TABLE found WITH (allowed_lateness = '10 minutes') AS
        SELECT user, count(*) AS n FROM (
            SELECT o.user, greatest(o.at, r.at) AS at FROM orders o JOIN returns r
            ON o.user = r.user AND r.at BETWEEN o.at AND o.at + {MINUTE}) [5 minutes]
        GROUP BY user;""",
}
"""Tables of which the last row of each user, window and place counts."""

RANKED = {
    "first rows": """CREATE TABLE found AS SELECT user, at, amount,
            row_number() OVER (PARTITION BY user ORDER BY amount DESC, at) AS place
        FROM orders [5 minutes] QUALIFY place <= 3;""",
    "first row of all": """CREATE TABLE found AS SELECT at, user, upper(country) AS c
        FROM orders [10 minutes every 5 minutes] WHERE ok
        QUALIFY 2 > row_number() OVER (ORDER BY units % 3 NULLS FIRST, at DESC);""",
    "numbers of a subquery": """CREATE TABLE found AS
        SELECT country, sum(place * units) AS n FROM (
            SELECT country, units, row_number() OVER
                (PARTITION BY country, user ORDER BY user DESC, at) AS place
            FROM orders [1 minute]) AS r [5 minutes] WHERE place <= 2 AND units > 0
        GROUP BY country;""",
}
ONCE = {
    "distinct": "CREATE STREAM found AS SELECT DISTINCT user, country FROM orders;",
    "groups": "CREATE TABLE found AS SELECT units % 2 AS odd FROM orders GROUP BY units % 2;",
    "joined view of totals": """
        CREATE VIEW backs AS SELECT user, count(*) AS n FROM returns GROUP BY user;
        CREATE VIEW named AS SELECT n AS many, user AS who FROM backs;
        CREATE STREAM found AS SELECT o.user, o.at, b.many
            FROM orders o JOIN named b ON o.user = b.who;""",
    "joined totals": """
        CREATE VIEW backs AS SELECT user, count(*) AS n FROM returns GROUP BY user;
        CREATE STREAM found AS SELECT o.user, o.at, b.n
            FROM orders o LEFT JOIN backs b ON o.user = b.user;""",
}


MEMBERS = {
    "members": {"id": pa.string(), "name": pa.string(), "age": pa.int64()},
    "plans": {"member": pa.string(), "plan": pa.string()},
    "cities": {"id": pa.string(), "city": pa.string()},
}
OF_TABLES = {
    "inner": "SELECT m.id, name, age * 2 AS twice, plan FROM members m JOIN plans ON id = member",
    "left": """SELECT m.id AS who, coalesce(plan, 'none') AS plan, member, age > 3 AS old
        FROM members AS m LEFT JOIN plans p ON p.member = m.id""",
    "with a condition": """SELECT id, plan, name FROM members LEFT JOIN plans ON id = member
        WHERE age > 2 AND plan IS DISTINCT FROM 'free'""",
    "full": """SELECT id, name, city, m.id AS mine, c.id AS theirs, age
        FROM members m FULL JOIN cities c USING (id)""",
    "of three": """SELECT id, plan, city, name FROM members JOIN plans ON id = member
        LEFT JOIN (SELECT id AS place, city FROM cities) c ON c.place = members.id""",
    "full, of three": """SELECT *, coalesce(plan, city) AS some FROM members FULL JOIN cities
        USING (id) FULL JOIN (SELECT member AS id, plan FROM plans) USING (id)""",
    "of a join": """SELECT who, n, city FROM (SELECT m.id AS who, upper(name) AS n FROM members m
        JOIN plans ON m.id = member WHERE age <> 1) AS j LEFT JOIN cities ON id = who""",
}
"""Joins of tables, by their first column the last row of each counts."""


def users(dice: random.Random) -> list[dict[str, object]]:
    """Return rows of which the last of each key counts."""
    return [
        {"id": key, "name": str(key).upper() if n > 3 else "old", "level": dice.randrange(5)}
        for n in range(6)
        for key in ("ann", "bob", "de", f"user {n}")
    ]


def levels(dice: random.Random) -> list[Row]:
    """Return rows that are valid from their time on."""
    begin = 1_700_000_000_000
    rows: list[Row] = [
        {"at": begin + n * 7_001, "user": dice.choice(["ann", "bob"]), "level": dice.randrange(9)}
        for n in range(80)
    ]
    return sorted(rows, key=lambda row: int(row["at"]) + dice.randrange(50_000))


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


def check(statements: str, dice: random.Random, *, is_changing: bool = False) -> int:
    """Compare what an app makes with DuckDB; return how many rows.

    Args:
        statements: of the app, without the inputs.
        dice: makes rows and epochs.
        is_changing: whether the last row of each user, window and place counts.
    """
    streams = {
        "orders": (ORDERS, orders(dice, 150)),
        "returns": (RETURNS, returns(dice, 60)),
        "users": (USERS, users(dice)),
        "levels": (LEVELS, levels(dice)),
    }
    parts = BEGIN.split(";")
    for name in list(streams):
        if f"FROM {name}" not in statements and f"JOIN {name}" not in statements:
            del streams[name]
            parts = [part for part in parts if f"TABLE {name}(" not in part]
    text = f"{';'.join(parts)}\n{statements}"
    if "allowed_lateness" in statements:
        text = text.replace(" LATENESS '1 minute'", "")
    first = ["users"] if "users" in streams else ["returns"] if "backs" in statements else []
    found = played(text, streams, dice, crashes=True, first=first)
    tables = {
        name: pa.Table.from_pylist(rows, schema=pa.schema(columns))
        for name, (columns, rows) in streams.items()
    }
    if "users" in tables:
        last = {row["id"]: row for row in streams["users"][1]}
        tables["users"] = pa.Table.from_pylist(list(last.values()), schema=pa.schema(USERS))
    expected = in_duckdb(text, tables)
    for name, rows in found.items():
        last = {(row.get("user"), row.get("window_start"), row.get("place")): row for row in rows}
        compared = list(last.values()) if is_changing else rows
        assert_same(compared, expected[name], f"{name} of {statements}")
    return sum(map(len, found.values()))


CASES = WITHIN | MERGED | LIMITED | RANKED | JOINED | TABLES | ONCE


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", more([0], range(20), share=300))
def test_a_query_over_queries_makes_what_duckdb_makes(name: str, seed: int) -> None:
    assert check(CASES[name], random.Random(f"{seed}/{name}")) > 2


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("seed", more([0], range(20), share=300))
def test_the_last_rows_are_what_duckdb_makes(name: str, seed: int) -> None:
    assert check(CHANGING[name], random.Random(f"{seed}/{name}"), is_changing=True) > 2


def tables_of(dice: random.Random) -> dict[str, list[Row]]:
    """Return rows of tables, of which some delete their key."""
    found: dict[str, list[Row]] = {}
    for name, columns in MEMBERS.items():
        key, *others = columns
        found[name] = [
            {key: f"k{dice.randrange(9)}", **dict.fromkeys(others, None if n % 4 == 0 else f"v{n}")}
            for n in range(120)
        ]
    for row in found["members"]:
        row["age"] = None if row["name"] is None else dice.randrange(6)
    for row in found["plans"]:
        row["plan"] = row["plan"] and dice.choice(["free", "paid"])
    return found


@pytest.mark.parametrize("name", OF_TABLES)
@pytest.mark.parametrize("seed", more([0], range(20), share=300))
def test_a_join_of_tables_follows_both(name: str, seed: int) -> None:
    """With rows that delete their key, and rows that fit the condition no more."""
    dice = random.Random(f"{seed}/{name}")
    rows = tables_of(dice)
    inputs = "".join(
        f"CREATE INPUT TABLE {one}({', '.join(columns)}, PRIMARY KEY ({next(iter(columns))})) "
        f'FROM SCRIBE("{one}");'
        for one, columns in MEMBERS.items()
        if one in OF_TABLES[name]
    )
    text = f"CREATE APPLICATION shop; {inputs} CREATE TABLE found AS {OF_TABLES[name]};"
    streams = {one: (MEMBERS[one], rows[one]) for one in MEMBERS if one in OF_TABLES[name]}
    found = played(text, streams, dice, crashes=True, partitions=1)["found"]
    expected = []
    with duckdb_session() as connection:
        for one, (columns, given) in streams.items():
            key, *others = columns
            last = {row[key]: row for row in given}
            live = [row for row in last.values() if any(row[c] is not None for c in others)]
            connection.register(one, pa.Table.from_pylist(live, schema=pa.schema(columns)))
        asked = connection.execute(OF_TABLES[name])
        names = [column[0] for column in asked.description]
        expected = [dict(zip(names, row, strict=True)) for row in asked.fetchall()]
    if seed == 0:
        assert expected
        assert any(row["is_deleted"] for row in found) or "FULL" in OF_TABLES[name]
    last = {row[names[0]]: row for row in found}
    assert_same([row for row in last.values() if not row["is_deleted"]], expected, name)


def test_a_sink_of_a_join_of_tables_is_sent_what_is_deleted() -> None:
    text = """CREATE APPLICATION shop;
    CREATE INPUT TABLE members(id, name, age, PRIMARY KEY (id)) FROM SCRIBE("members");
    CREATE INPUT TABLE plans(member, plan, PRIMARY KEY (member)) FROM SCRIBE("plans");
    CREATE SINK paid(member VARCHAR, years INT) WITH (connector = 'stream');
    INSERT INTO paid SELECT id, age FROM members JOIN plans ON id = member WHERE plan = 'paid';
    """
    members = [{"id": key, "name": key, "age": 7} for key in "ab"]
    plans: list[Row] = [{"member": "a", "plan": "paid"}, {"member": "b", "plan": "free"}]
    streams = {"members": (MEMBERS["members"], members), "plans": (MEMBERS["plans"], plans)}
    found = played(text, streams, random.Random(1), crashes=False, partitions=1)["paid"]
    assert {row["member"]: row for row in found} == {
        "a": {"member": "a", "years": 7, "is_deleted": False},
        "b": {"member": "b", "years": None, "is_deleted": True},
    }


def test_a_join_of_tables_is_looked_up_by_a_stream() -> None:
    dice = random.Random(3)
    rows = {**tables_of(dice), "orders": orders(dice, 60)}
    for row in rows["orders"]:
        row["user"] = f"k{dice.randrange(12)}"
    text = """CREATE APPLICATION shop;
    CREATE INPUT TABLE orders(at, user, country, amount, units, ok)
        FROM SCRIBE("orders") TIME at LATENESS '1 minute';
    CREATE INPUT TABLE members(id, name, age, PRIMARY KEY (id)) FROM SCRIBE("members");
    CREATE INPUT TABLE plans(member, plan, PRIMARY KEY (member)) FROM SCRIBE("plans");
    CREATE VIEW paying AS SELECT id, name, plan FROM members JOIN plans ON id = member
        WHERE plan = 'paid';
    CREATE STREAM found AS SELECT o.user, o.at, p.name FROM orders o LEFT JOIN paying p
        ON o.user = p.id;
    """
    columns = {**MEMBERS, "orders": ORDERS}
    streams = {one: (columns[one], rows[one]) for one in ("members", "plans", "orders")}
    first = ["members", "plans"]
    found = played(text, streams, dice, crashes=True, first=first)["found"]
    names = {row["id"]: row["name"] for row in rows["members"]}
    plans = {row["member"]: row["plan"] for row in rows["plans"]}
    wanted = [
        {
            "user": row["user"],
            "at": row["at"],
            "name": names.get(row["user"]) if plans.get(row["user"]) == "paid" else None,
        }
        for row in rows["orders"]
    ]
    assert_same(found, wanted, "found")
    assert sum(row["name"] is not None for row in found) > 5


@pytest.mark.parametrize("updates", ["retract", "add"])
def test_results_that_are_taken_back_or_added_up_give_the_final_ones(updates: str) -> None:
    dice = random.Random(updates)
    rows = orders(dice, 150)
    text = f"""{BEGIN.split("CREATE INPUT TABLE returns", maxsplit=1)[0]}
    CREATE TABLE found WITH (updates = '{updates}') AS
        SELECT user, count(*) AS n FROM orders [5 minutes] GROUP BY user
        EMIT EARLY EVERY '1 minute';
    CREATE TABLE final AS SELECT user, count(*) AS n FROM orders [5 minutes] GROUP BY user;
    """
    made = played(text, {"orders": (ORDERS, rows)}, dice, crashes=True)
    assert len(made["found"]) > len(made["final"])
    totals: dict[object, int] = {}
    for row in made["found"]:
        key = (row["user"], row["window_start"])
        sign = -1 if row.get("is_retraction") else 1
        totals[key] = totals.get(key, 0) + sign * row["n"]
    assert totals == {(row["user"], row["window_start"]): row["n"] for row in made["final"]}


def test_late_rows_go_to_a_stream_of_their_own() -> None:
    dice = random.Random(11)
    rows = orders(dice, 220)
    text = f"""{BEGIN.split("CREATE INPUT TABLE returns", maxsplit=1)[0]}
    CREATE TABLE found WITH (late = 'side_output', allowed_lateness = '2 seconds') AS
        SELECT upper(user) AS user, sum(units * 2) AS twice, count(*) AS n FROM orders [1 minute]
        WHERE ok IS NOT false GROUP BY upper(user);
    CREATE STREAM later AS SELECT user, units FROM found_late WHERE units > 0;
    """.replace(" LATENESS '1 minute'", "")
    made = played(text, {"orders": (ORDERS, rows)}, dice, crashes=True)
    late = made["found_late"]
    assert 10 < len(late) < 100
    wanted = [row for row in rows if row["ok"] is not False]
    in_time = [row for row in wanted if row["at"] not in {one["at"] for one in late}]
    assert len(late) + len(in_time) == len(wanted)
    assert all(row in wanted for row in late)
    assert sum(row["n"] for row in made["found"]) == len(in_time)
    table = pa.Table.from_pylist(in_time, schema=pa.schema(ORDERS))
    of_found = text.partition("CREATE STREAM")[0]
    assert_same(made["found"], in_duckdb(of_found, {"orders": table})["found"], "found")
    assert len(made["later"]) == sum((row["units"] or 0) > 0 for row in late)


FUNCTIONS = """
from typing import Annotated
import polars as pl
import headrace as hr

def shout(text: str) -> str:
    return f"{loud(text)}!"

def loud(text):
    return text.upper()

def points(amount: float, units: int) -> float:
    return amount * units

def halves(values: pl.Series) -> Annotated[pl.Series, float]:
    return values / 2

def longest(column: str) -> hr.agg.Aggregate:
    return hr.agg.monoid(0, length, max, returns=int, columns=column)

def length(text):
    return len(text or "")
"""


@pytest.mark.parametrize("crashes", [False, True])
def test_functions_of_the_user_are_called_where_the_app_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"shop_functions_{crashes}"
    (tmp_path / f"{module}.py").write_text(FUNCTIONS)
    dice = random.Random(str(crashes))
    rows = orders(dice, 150)
    names = ("shout", "points", "halves", "longest")
    made = "".join(f"CREATE FUNCTION {name} USING '{module}:{name}';" for name in names)
    text = f"""{BEGIN.split("CREATE INPUT TABLE returns", maxsplit=1)[0]}
    CREATE STREAM loud AS SELECT shout(user) AS who, points(amount, units) AS p FROM orders
        WHERE points(amount, units) > 10;
    CREATE TABLE sums AS SELECT shout(user) AS who, sum(halves(units)) AS h FROM orders [5 minutes]
        GROUP BY shout(user) HAVING halves(sum(units)) > 0;
    CREATE TABLE lengths AS SELECT longest(country) + 1 AS n FROM orders [5 minutes];
    """
    found = played(
        text.replace("CREATE STREAM", f"{made} CREATE STREAM", 1),
        {"orders": (ORDERS, rows)},
        dice,
        crashes=crashes,
        file=str(tmp_path / "app.sql"),
    )
    plain = text.replace("shout(user)", "(upper(user) || '!')")
    plain = plain.replace("points(amount, units)", "(amount * units)")
    plain = plain.replace("halves(units)", "(units / 2)").replace(
        "halves(sum(units))", "sum(units)"
    )
    plain = plain.replace("longest(country)", "coalesce(max(length(country)), 0)")
    table = pa.Table.from_pylist(rows, schema=pa.schema(ORDERS))
    expected = in_duckdb(plain, {"orders": table})
    for name in ("loud", "sums", "lengths"):
        assert_same(found[name], expected[name], name)
    assert len(found["loud"]) > 5
