"""Queries over an app's tables: past and current windows, as of each epoch, equal brute force."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.support.cli import done
from tests.support.soak import more
from tests.support.sql import Row, TableQueries, duckdb_session, plain, read_by_key
from tests.support.watching import api, live_job, show_parts

from headrace.errors import InvalidInputError
from headrace.sql import SqlApp, SqlText, load_app
from headrace.testing import TestDriver, each_at

COLUMNS = {"at": pa.int64(), "user": pa.string(), "country": pa.string(), "units": pa.int64()}
BEGIN = 1_700_000_100_000
MINUTE = 60_000
APP = """
CREATE APPLICATION shop WITH (topk = 2);
CREATE INPUT TABLE orders(at, user, country, units) FROM SCRIBE("orders") TIME at
    LATENESS '1 minute';
CREATE TABLE spent AS SELECT user AS who, country, count(*) AS n, sum(units) AS total
    FROM orders [5 minutes] GROUP BY user, country;
CREATE TABLE often AS SELECT user, count(*) AS n FROM orders [5 minutes] GROUP BY user
    HAVING count(*) > 2;
CREATE TABLE everybody AS SELECT count(*) AS n, max(units) AS most FROM orders [2 minutes];
CREATE TABLE hops AS SELECT country, sum(units) AS total FROM orders [10 minutes every 5 minutes];
CREATE TABLE visits AS SELECT user, count(*) AS n FROM orders [session 90 seconds];
CREATE TABLE best AS SELECT country, user, topk(units) AS units FROM orders [5 minutes];
CREATE STREAM large AS SELECT user, units FROM orders WHERE units > 5;
"""
TUMBLING = """
    SELECT {columns}, make_timestamptz(b * {size} * 1000) AS window_start,
        make_timestamptz((b + 1) * {size} * 1000) AS window_end
    FROM (SELECT *, "at" // {size} AS b FROM orders) GROUP BY {keys}b {having}
"""
MODEL = {
    "spent": TUMBLING.format(
        columns="user AS who, country, count(*) AS n, sum(units)::BIGINT AS total",
        keys="user, country, ",
        size=5 * MINUTE,
        having="",
    ),
    "often": TUMBLING.format(
        columns="user, count(*) AS n", keys="user, ", size=5 * MINUTE, having="HAVING count(*) > 2"
    ),
    "everybody": TUMBLING.format(
        columns="count(*) AS n, max(units) AS most", keys="", size=2 * MINUTE, having=""
    ),
    "hops": f"""
        SELECT country, sum(units)::BIGINT AS total, make_timestamptz(b * 1000) AS window_start,
            make_timestamptz((b + {10 * MINUTE}) * 1000) AS window_end
        FROM (SELECT *, unnest(["at" // {5 * MINUTE}, "at" // {5 * MINUTE} - 1]) * {5 * MINUTE} AS b
            FROM orders)
        GROUP BY country, b
    """,
    "visits": """
        SELECT user, count(*) AS n, make_timestamptz(min("at") * 1000) AS window_start,
            make_timestamptz((max("at") + 90000) * 1000) AS window_end
        FROM (
            SELECT *, sum(begins) OVER
                (PARTITION BY user ORDER BY "at" ROWS UNBOUNDED PRECEDING) AS s
            FROM (SELECT *, ("at" - lag("at", 1, -99999999) OVER (PARTITION BY user ORDER BY "at")
                >= 90000)::INT AS begins FROM orders)
        ) GROUP BY user, s
    """,
    "best": f"""
        SELECT country, user, best AS units, make_timestamptz(b * {5 * MINUTE} * 1000)
            AS window_start, make_timestamptz((b + 1) * {5 * MINUTE} * 1000) AS window_end
        FROM (SELECT country, user, "at" // {5 * MINUTE} AS b, max(units) AS best FROM orders
            GROUP BY ALL)
        QUALIFY row_number() OVER (PARTITION BY country, b ORDER BY best DESC, user) <= 2
    """,
}


def orders(dice: random.Random, count: int, begin: int) -> list[dict[str, Any]]:
    """Return rows of some minutes, less than a minute out of order."""
    rows: list[dict[str, Any]] = []
    for number in range(count):
        at = begin + number * 15_000 - dice.randrange(50_000) // 1000 * 1000
        user, country = f"u{dice.randrange(5)}", dice.choice(["de", "fr", "it's"])
        rows.append({"at": at, "user": user, "country": country, "units": dice.randrange(-2, 9)})
    return rows


def in_order(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return rows of a table that can be compared."""
    return sorted(map(plain, rows), key=repr)


def modelled(fed: list[Row], table: str) -> list[Row]:
    """Return the rows of all windows of what was fed, as DuckDB makes them."""
    with duckdb_session() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("orders", pa.Table.from_pylist(fed, pa.schema(list(COLUMNS.items()))))
        rows: list[Row] = connection.sql(MODEL[table]).to_arrow_table().to_pylist()
        return rows


def assert_windows(table: str, found: list[Row], fed: list[Row], note: object = "") -> None:
    """Compare all windows of a table with those of what was fed."""
    rows, expected = [dict(row) for row in found], modelled(fed, table)
    for row in rows:
        row.pop("window_is_open")
    if table == "best":  # which of several with the same score are shown may differ
        for row in rows + expected:
            row.pop("user")
    assert in_order(rows) == in_order(expected), (table, note)


MOMENTS = ["epoch.planned", "epoch.before_commit", "commit.published", "epoch.output_published"]


@pytest.mark.parametrize("seed", more([0], range(60), share=60))
def test_at_every_moment_an_answer_is_of_what_one_epoch_committed(seed: int) -> None:
    dice = random.Random(seed)
    fed = orders(dice, 40, BEGIN)
    with TestDriver(load_app(SqlText(APP)).job, tasks=dice.choice([1, 3])) as driver:
        driver.create("orders", COLUMNS, time="at")
        driver.feed("orders", fed)
        driver.run()
        live = live_job(driver)
        ask = TableQueries(live)
        committed = {live.state.epoch: list(fed)}

        def look() -> None:
            table = dice.choice(list(MODEL))
            answer = ask.answer(f"SELECT * FROM {table}", "all")
            assert_windows(table, answer.rows.to_pylist(), committed[answer.epoch], answer.epoch)
            seen.add(answer.epoch)

        for turn in range(2):
            seen = set[int]()
            rows = orders(dice, dice.randrange(1, 30), fed[-1]["at"] + MINUTE)
            fed += rows
            committed[live.state.epoch + 1] = list(fed)
            driver.feed("orders", rows)
            with each_at(MOMENTS, look):
                assert driver.advance() is not None
            assert seen == {live.state.epoch - 1, live.state.epoch}
            if dice.random() < 0.5:
                driver.crash()
                show_parts(live, driver)
            mark = driver.watermarks["orders.by_who_country"]
            assert mark is not None
            for table in MODEL if turn else ("spent", "visits"):
                found = ask(f"SELECT *, epoch_ms(window_end) AS e FROM {table}", "all")
                assert all(row["window_is_open"] == (row.pop("e") > mark) for row in found)
                assert_windows(table, found, fed)
            n_open = sum(row["window_is_open"] for row in found)
            assert len(ask(f"SELECT * FROM {table}", "past")) == len(found) - n_open
            assert len(ask(f"SELECT * FROM {table}", "current")) == n_open
        assert len(ask("SELECT * FROM large", "all")) == sum(r["units"] > 5 for r in fed)


WHERE = [
    "who = 'u1'",
    "who = 'u1' AND country = 'de'",
    "who IN ('u1', 'u2') AND country IN ('de', 'it''s') AND n > 1",
    "window_start >= '2023-11-14 22:25:00'",
    "window_end <= TIMESTAMP '2023-11-14 22:25:00' AND who > 'u1'",
    "window_start BETWEEN '2023-11-14T22:20:00' AND '2023-11-14T22:30:00Z' AND country = 'fr'",
    "who = 'u1' OR country = 'de'",
    "NOT (who = 'u1')",
    "n = 2 AND WHO = 'u2'",
    "window_start = '2023-11-14 22:20:00'",
    "who = 'nobody'",
    "'u3' = who AND '2023-11-14 22:20:00' < window_end",
    "who = 'u1' AND who = 'u2'",
    "1 < n AND n <= 3 AND total >= -2",
    "n BETWEEN 2 AND 3 AND window_is_open = true",
    "(n IN (1, -3, 2)) AND (country >= 'fr')",
    "window_end > '2023-11-14' AND window_start <= '2023-11-14 22:20:00.000001'",
    "n = 99999999999999999999",
    "n = 2.0",
    "n <> 1",
    "country IS NULL",
]


def test_conditions_leave_out_what_duckdb_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tables are read whole, and where the keys that are named are."""
    fed = orders(random.Random(1), 120, BEGIN)
    with TestDriver(load_app(SqlText(APP)).job, tasks=2) as driver, duckdb_session() as model:
        driver.create("orders", COLUMNS, time="at")
        for at in range(0, len(fed), 40):
            driver.feed("orders", fed[at : at + 40])
            driver.run()
        every = TableQueries(live_job(driver))("SELECT * FROM spent", "all")
        assert {row["window_is_open"] for row in every} == {True, False}
        model.execute("SET TimeZone = 'UTC'")
        model.register("spent", pa.Table.from_pylist(every))
        assert_conditions(TableQueries(live_job(driver)), model)
        read_by_key(monkeypatch)
        assert_conditions(TableQueries(live_job(driver)), model)


def assert_conditions(ask: TableQueries, model: duckdb.DuckDBPyConnection) -> None:
    """Compare the answers to conditions with those of DuckDB over all rows."""
    counts = set()
    for where in WHERE:
        sql = f"SELECT who, country, n, total FROM spent WHERE {where}"
        wanted = model.sql(sql).to_arrow_table().to_pylist()
        assert in_order(ask(sql, "all")) == in_order(wanted), where
        counts.add(len(wanted))
        everything = f"SELECT * FROM spent WHERE {where}"
        plain, planned = (ask.answer(everything + by, "all").rows for by in ("", " ORDER BY n"))
        assert plain.schema == planned.schema, "Arrow's columns are those of DuckDB"
        assert in_order(plain.to_pylist()) == in_order(planned.to_pylist()), where
    for few in (0, 3, 10_000):
        plain, planned = (
            ask(f"SELECT who, n FROM spent WHERE n > 0 {by} LIMIT {few}", "all")
            for by in ("", "AND n + 0 > 0")
        )
        assert plain == planned, "the first ones, in their order"
    assert len(counts) > 6, "the conditions are of different kinds"
    sql = (
        "WITH a AS (SELECT who, n FROM spent WHERE country = 'de') SELECT a.who, b.n "
        "FROM a LEFT JOIN spent AS b ON a.who = b.who AND a.n = b.n "
        "WHERE b.country = 'fr' UNION ALL SELECT who, n FROM spent WHERE who = 'u1'"
    )
    assert in_order(ask(sql, "all")) == in_order(model.sql(sql).to_arrow_table().to_pylist())


def offline(driver: TestDriver, app: SqlApp, query: str, windows: str) -> list[Row]:
    """Return what ``headrace sql query`` finds in the files of a home."""
    file = driver.home / "shop.sql"
    file.write_text(app.statements.source.text)
    words = ("sql", "query", str(file), query, "--windows", windows)
    lines = done(*words, "--json", "--home", driver.home).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize(
    ("point", "is_committed"),
    [("epoch.before_commit", False), ("commit.published", True), ("epoch.output_published", True)],
)
def test_after_a_crash_there_is_what_was_committed_and_all_of_it(
    point: str, is_committed: bool, tmp_path: Path
) -> None:
    app = load_app(SqlText(APP.partition("CREATE TABLE often")[0]))
    fed = orders(random.Random(2), 80, BEGIN)
    query = "SELECT * FROM spent ORDER BY ALL"
    with TestDriver(app.job, tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.create("orders", COLUMNS, time="at")
        driver.feed("orders", fed[:50])
        driver.run()
        driver.feed("orders", fed[50:])
        driver.advance_with_crash(point)
        found = offline(driver, app, "SELECT * EXCLUDE window_is_open FROM spent", "all")
        expected = modelled(fed if is_committed else fed[:50], "spent")
        assert len(found) == len(expected)
        assert sum(row["total"] for row in found) == sum(row["total"] for row in expected)
        driver.run()
        live = live_job(driver)
        with api(driver, live):
            served = offline(driver, app, query, "all")
        assert len(served) == len(modelled(fed, "spent"))
        assert offline(driver, app, query, "all") == served, "by the API as by files"


OTHERS = """
CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, country, units) FROM SCRIBE("orders") TIME at
    LATENESS '1 minute';
CREATE VIEW each AS SELECT user, country, count(*) AS n FROM orders [2 minutes]
    GROUP BY user, country;
CREATE TABLE of_windows AS SELECT country, max(n) AS most, sum(n) AS n FROM each [4 minutes]
    GROUP BY country;
CREATE TABLE by_view AS SELECT * FROM each WHERE n > 1;
CREATE TABLE of_union AS SELECT user, sum(units) AS total FROM
    (SELECT at, user, units FROM orders UNION ALL SELECT at, country, -units FROM orders)
    [5 minutes] GROUP BY user;
CREATE TABLE union_of AS SELECT user AS name, count(*) AS n FROM orders [5 minutes] GROUP BY user
    UNION ALL SELECT country, count(*) AS n FROM orders [session 1 minute] GROUP BY country
    UNION ALL SELECT 'all' AS name, count(*) AS n FROM orders [5 minutes];
CREATE TABLE once AS SELECT DISTINCT country, units > 1 AS good FROM orders [5 minutes];
CREATE TABLE pairs AS SELECT a.user, count(*) AS n, max(b.units) AS most
    FROM orders a [2 minutes] JOIN orders b [2 minutes] ON a.user = b.user GROUP BY a.user;
CREATE TABLE late WITH (allowed_lateness = '10 minutes', late = 'update') AS
    SELECT user, count(*) AS n FROM orders [3 minutes] GROUP BY user;
CREATE TABLE slid AS SELECT user, sum(units) AS total FROM orders [sliding 3 minutes] GROUP BY user;
CREATE TABLE totals AS SELECT user, count(*) AS n, sum(units) AS total FROM orders GROUP BY user;
CREATE TABLE all_of AS SELECT count(*) AS n, max(units) AS most FROM orders;
CREATE TABLE early AS SELECT user, count(*) AS n FROM orders [5 minutes] GROUP BY user
    EMIT EARLY EVERY '1 minute';
CREATE TABLE stepped AS SELECT user, count(*) AS n FROM orders GROUP BY user EMIT EVERY '1 minute';
CREATE VIEW counted AS SELECT user, count(*) AS n FROM orders [5 minutes] GROUP BY user;
CREATE TABLE paired AS SELECT a.user, n, total FROM counted AS a JOIN of_union AS b
    ON a.user = b.user AND a.window_start = b.window_start;
CREATE TABLE beside AS SELECT a.user, a.n, b.most FROM counted AS a
    LEFT JOIN (SELECT user, max(units) AS most FROM orders [2 minutes] WHERE units > 3
        GROUP BY user) AS b
    ON a.user = b.user AND a.window_end = b.window_end;
CREATE INPUT TABLE people(id, age, PRIMARY KEY (id)) FROM SCRIBE("people");
CREATE TABLE of_age AS SELECT c.user, c.n, age FROM counted AS c LEFT JOIN people ON c.user = id;
CREATE STREAM ever AS SELECT DISTINCT user FROM counted;
CREATE STREAM users AS SELECT DISTINCT user FROM orders;
CREATE STREAM large AS SELECT user, units FROM orders WHERE units > 5;
"""
WINDOWED = [
    "of_windows",
    "by_view",
    "of_union",
    "union_of",
    "once",
    "pairs",
    "late",
    "slid",
    "paired",
    "beside",
    "of_age",
]
REFUSED = {
    "ever": "cannot be shown: between the windows and the table is",
    "early": "current windows of table 'early' cannot be shown: .* sends windows early",
    "stepped": "the last row of each key is the newest; ask for windows=past",
    "users": "table 'users' has no windows: its rows are sent as they come; ask for windows=past",
    "large": "table 'large' has no windows",
}


def test_current_windows_are_what_the_end_of_the_inputs_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where tables are read whole, and where the keys that are named are."""
    fed = orders(random.Random(5), 60, BEGIN)
    app = load_app(SqlText(OTHERS))
    with TestDriver(app.job, tasks=2) as driver:
        driver.create("orders", COLUMNS, time="at")
        driver.create("people", {"id": pa.string(), "age": pa.int64()})
        driver.feed("people", [{"id": f"u{n}", "age": 20 + n} for n in range(4)])
        for at in range(0, len(fed), 20):
            driver.feed("orders", fed[at : at + 20])
            driver.run()
        ask = TableQueries(live_job(driver))
        found, totals, of_one = current_rows(ask)
        read_by_key(monkeypatch)
        assert current_rows(TableQueries(live_job(driver))) == (found, totals, of_one)
        old, pair, ann = of_one
        for name, message in REFUSED.items():
            with pytest.raises(InvalidInputError, match=message):
                ask(f"SELECT * FROM {name}", "current")
            assert len(ask(f"SELECT * FROM {name}")) == len(driver.output(app.tables[name]))
        assert len(ask("SELECT * FROM large", "all")) == len(ask("SELECT * FROM large"))
        driver.finish()
        for name, rows in found.items():
            past = [row for row in rows if not row["window_is_open"]]
            assert 0 < len(past) < len(rows), name
            shown = [_without(row, "window_is_open") for row in rows]
            assert in_order(shown) == in_order(driver.output(app.tables[name])), name
        for name, rows in totals.items():
            newest = {row.get("user"): row for row in driver.output(app.tables[name])}
            shown = [_without(row, "window_is_open") for row in rows]
            assert in_order(shown) == in_order(list(newest.values())), name
        assert old["age"] == 21
        assert old["n"] == pair["n"] > 0
        assert ann["n"] == sum(row["user"] == "u1" for row in fed)
        assert ask("SELECT * FROM slid", "current") == [], "the inputs have ended"


def current_rows(ask: TableQueries) -> tuple[dict[str, list[Row]], dict[str, list[Row]], list[Row]]:
    """Return windows and totals of tables, and some of one user, in an order of their own."""
    found = {name: ask(f"SELECT * FROM {name}", "all") for name in WINDOWED}
    totals = {name: ask(f"SELECT * FROM {name}", "current") for name in ("totals", "all_of")}
    of_one = []
    for columns, table in (("n, age", "of_age"), ("n, total", "paired"), ("user, n", "totals")):
        [row] = ask(f"SELECT {columns} FROM {table} WHERE user = 'u1'", "current")
        of_one.append(row)
    for rows in (*found.values(), *totals.values()):
        rows.sort(key=repr)
    return found, totals, of_one


def _without(row: Mapping[str, Any], name: str) -> Row:
    return {key: value for key, value in row.items() if key != name}


MEMBERS = {
    "members": {"id": pa.string(), "name": pa.string(), "age": pa.int64()},
    "plans": {"member": pa.string(), "plan": pa.string()},
    "cities": {"id": pa.string(), "city": pa.string()},
}
JOINS = {
    "paying": """SELECT m.id AS who, age * 2 AS twice, plan FROM members m JOIN plans ON id = member
        WHERE plan <> 'free'""",
    "whole": "SELECT id, name, city FROM members FULL JOIN cities USING (id)",
    "three": """SELECT id, plan, city FROM members LEFT JOIN plans ON id = member
        LEFT JOIN (SELECT id AS place, city FROM cities) c ON c.place = members.id""",
    "nested": """SELECT who, n, city FROM (SELECT m.id AS who, upper(name) AS n FROM members m
        JOIN plans ON m.id = member WHERE age <> 1) AS j LEFT JOIN cities ON id = who""",
}


def changes_of(dice: random.Random, count: int) -> dict[str, list[Row]]:
    """Return rows of tables, of which some delete their key."""
    found: dict[str, list[Row]] = {}
    for name, columns in MEMBERS.items():
        key, *others = columns
        found[name] = [
            {key: f"k{dice.randrange(9)}", **dict.fromkeys(others, None if n % 4 == 0 else f"v{n}")}
            for n in range(count)
        ]
    for row in found["members"]:
        row["age"] = None if row["name"] is None else dice.randrange(4)
    for row in found["plans"]:
        row["plan"] = row["plan"] and dice.choice(["free", "paid"])
    return found


def joined(fed: Mapping[str, list[Row]], sql: str) -> list[Row]:
    """Return the rows of a join of the rows of tables that are left, as DuckDB makes them."""
    with duckdb_session() as connection:
        for name, columns in MEMBERS.items():
            key, *others = columns
            last = {row[key]: row for row in fed[name]}
            live = [row for row in last.values() if any(row[c] is not None for c in others)]
            connection.register(name, pa.Table.from_pylist(live, pa.schema(columns)))
        rows: list[Row] = connection.sql(sql).to_arrow_table().to_pylist()
        return rows


@pytest.mark.parametrize("seed", more([0], range(20), share=20))
def test_current_rows_of_a_join_of_tables_are_those_that_are_there(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2 == 0:
        read_by_key(monkeypatch)
    dice = random.Random(seed)
    inputs = "".join(
        f"CREATE INPUT TABLE {one}({', '.join(columns)}, PRIMARY KEY ({next(iter(columns))})) "
        f'FROM SCRIBE("{one}");'
        for one, columns in MEMBERS.items()
    )
    tables = "".join(f"CREATE TABLE {name} AS {sql};" for name, sql in JOINS.items())
    fed: dict[str, list[Row]] = {name: [] for name in MEMBERS}
    app = load_app(SqlText(f"CREATE APPLICATION shop; {inputs} {tables}"))
    with TestDriver(app.job, tasks=dice.choice([1, 3])) as driver:
        for name, columns in MEMBERS.items():
            driver.create(name, columns)
        live, removed = None, 0
        for _ in range(3):
            for name, rows in changes_of(dice, 30).items():
                fed[name] += rows
                driver.feed(name, rows)
            driver.run()
            live = live or live_job(driver)
            if dice.random() < 0.5:
                driver.crash()
            show_parts(live, driver)
            ask = TableQueries(live)
            for name, sql in JOINS.items():
                found, expected = ask(f"SELECT * FROM {name}", "current"), joined(fed, sql)
                assert all(row.pop("window_is_open") for row in found)
                assert not any(row.pop("is_deleted") for row in found)
                assert in_order(found) == in_order(expected), name
                key = "who" if name in ("paying", "nested") else "id"
                one = (
                    f"SELECT * EXCLUDE (is_deleted, window_is_open) FROM {name} WHERE {key} = 'k1'"
                )
                wanted = [row for row in expected if row[key] == "k1"]
                assert in_order(ask(one, "current")) == in_order(wanted), name
                past = ask(f"SELECT * FROM {name}")
                removed += sum(row["is_deleted"] for row in past)
                assert len(ask(f"SELECT * FROM {name}", "all")) == len(past) + len(found)
        assert removed
