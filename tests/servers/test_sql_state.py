"""Tables of SQL apps whose state is on a real server: equal to DuckDB, whatever dies."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.conftest import ask
from tests.support.servers import RedisServer
from tests.support.soak import more
from tests.support.sql import ORDERS, POINTS, TableQueries, assert_same, in_duckdb, orders
from tests.support.watching import live_job

from headrace.errors import GraphError, InvalidInputError, UnavailableError
from headrace.sql import SqlText, load_app
from headrace.sql.query_tables import Windows
from headrace.testing import TestDriver

APP = """
CREATE APPLICATION shop{options};
CREATE INPUT TABLE orders(
    at BIGINT, user VARCHAR, country VARCHAR, amount DOUBLE, units BIGINT, ok BOOLEAN
) FROM SCRIBE("orders") TIME at LATENESS '1 minute';
CREATE TABLE hourly AS
SELECT country, count(*) AS n, sum(units) AS units, avg(amount) AS mean, min(amount) AS least,
       count(DISTINCT user) AS users
FROM orders [5 minutes] WHERE ok IS NOT FALSE GROUP BY country;
CREATE TABLE hops AS
SELECT user, country, max(epoch_ms(at)) AS newest, stddev(amount) AS spread
FROM orders [10 minutes every 5 minutes] GROUP BY user, country HAVING count(*) > 1;
CREATE TABLE totals AS
SELECT user, sum(units) AS units, count(amount) AS amounts FROM orders GROUP BY user;
CREATE TABLE everything AS SELECT count(*) AS n FROM orders
"""
TABLES = ("hourly", "hops", "totals", "everything")
KINDS = [*POINTS, "sink.committed"]


@pytest.fixture(params=["redis", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    """A server of each kind, empty."""
    if request.param == "redis":
        return str(request.getfixturevalue("server").url)
    return str(request.getfixturevalue("url"))


def app_at(address: str) -> Any:
    return load_app(SqlText(APP.format(options=f" WITH (state = '{address}')"), "shop.sql"))


@pytest.mark.parametrize("seed", more([0, 1], range(3)))
def test_tables_on_a_server_are_those_of_duckdb_whatever_dies(address: str, seed: int) -> None:
    dice = random.Random(seed)
    rows = orders(dice, 200)
    wanted = in_duckdb(
        APP.format(options=""), {"orders": pa.Table.from_pylist(rows, pa.schema(ORDERS))}
    )
    with TestDriver(app_at(address).job, tasks=2, slots=2) as driver:
        driver.create("orders", ORDERS, partitions=2, time="at")
        while rows:
            cut = dice.randrange(10, 60)
            driver.feed("orders", rows[:cut])
            rows = rows[cut:]
            if dice.random() < 0.6:
                driver.advance_with_crash(dice.choice(KINDS))
            driver.run()
        query = TableQueries(live_job(driver))
        open_rows = query("SELECT * FROM hourly", "current")
        assert open_rows
        assert_same(query("SELECT * FROM hourly", "past") + open_rows, wanted["hourly"], "hourly")
        driver.finish()
        query = TableQueries(live_job(driver))
        assert query("SELECT * FROM hourly", "current") == []
        for name in TABLES:
            windows: Windows = "past" if name in ("hourly", "hops") else "current"
            found = query(f"SELECT * FROM {name}", windows)
            assert_same(found, wanted[name], name)
        some = query("SELECT * FROM hourly WHERE country = 'de'")
        assert_same(some, [row for row in wanted["hourly"] if row["country"] == "de"], "de")


EVENTS = {"event_time": pa.int64(), "event": pa.string(), "category": pa.string()}
EVENTS |= {"score": pa.int64()}
FIGURE_2 = """
CREATE APPLICATION top_events WITH (topk = 2);
CREATE INPUT TABLE events_score(event_time BIGINT, event VARCHAR, category VARCHAR, score BIGINT)
FROM SCRIBE("events_stream") TIME event_time;
CREATE TABLE top_events_5min WITH (state = '{address}') AS
SELECT category, event, topk(score) AS score
FROM events_score [5 minutes]
"""


def test_the_papers_app_is_answered_from_a_server(address: str) -> None:
    dice = random.Random(4)
    rows = [
        {"event_time": n * 3_000, "event": f"e{dice.randrange(6)}", "score": n % 7}
        | {"category": dice.choice("ab")}
        for n in range(150)
    ]
    local = load_app(SqlText(FIGURE_2.replace(" WITH (state = '{address}')", "")))
    found = []
    for app in (load_app(SqlText(FIGURE_2.format(address=address))), local):
        with TestDriver(app.job, tasks=2) as driver:
            driver.create("events_stream", EVENTS, time="event_time")
            driver.feed("events_stream", rows)
            driver.finish()
            query = TableQueries(live_job(driver))
            text = "SELECT * FROM top_events_5min WHERE event <> 'e0' ORDER BY ALL"
            found.append(query(text))
            assert TableQueries(live_job(driver))("SELECT * FROM top_events_5min", "current") == []
    assert found[0]
    assert found[0] == found[1]


def test_a_server_that_is_gone_is_named(own_server: RedisServer) -> None:
    app = load_app(SqlText(FIGURE_2.format(address=own_server.url)))
    with TestDriver(app.job) as driver:
        driver.create("events_stream", EVENTS, time="event_time")
        driver.run()
        query = TableQueries(live_job(driver))
        own_server.kill()
        with pytest.raises(UnavailableError, match=r"top_events_5min.*redis://.*check that it"):
            query("SELECT * FROM top_events_5min")


def test_rows_in_postgres_can_be_found_by_their_key(url: str) -> None:
    app = load_app(SqlText(FIGURE_2.format(address=url)))
    with TestDriver(app.job) as driver:
        driver.create("events_stream", EVENTS, time="event_time")
        row = {"event_time": 1, "event": "e", "category": "a", "score": 3}
        driver.feed("events_stream", [row])
        driver.run()
    kept = ask(url, "SELECT category, event, window_start FROM top_events_top_events_5min")
    assert [(one, other) for one, other, _ in kept] == [("a", "e")]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("t WITH (state = 'mysql://x') AS SELECT user, count(*) AS n FROM o", "one of postgresql:"),
        ("t {at} AS SELECT user, count(*) AS n FROM o [session 5 minutes]", "leave out the option"),
        ("t {at} AS SELECT user, count(*) AS n FROM o [5 minutes] EMIT EARLY EVERY 9 ROWS", "EMIT"),
        ("t {at} AS SELECT user, first(tags) AS n FROM o GROUP BY user", "texts and times"),
        (
            "t {at} AS SELECT user, count(*) AS n FROM o; CREATE VIEW v AS SELECT * FROM t",
            "'t' has",
        ),
        ("t {at} AS SELECT user, count(*) AS n FROM untyped [1 hour]", "types must be known"),
    ],
)
def test_what_cannot_be_on_a_server_is_refused_at_its_place(table: str, message: str) -> None:
    text = """CREATE APPLICATION shop;
    CREATE INPUT TABLE o(at BIGINT, user VARCHAR, tags VARCHAR[]) FROM SCRIBE("o") TIME at;
    CREATE INPUT TABLE untyped(at, user) FROM SCRIBE("u") TIME at;
    CREATE STREAM rest AS SELECT at FROM {other};
    CREATE TABLE """
    other = "o" if "untyped" in table else "untyped"
    text = text.replace("{other}", other) + table.replace("{at}", "WITH (state = 'redis://x')")
    with pytest.raises((InvalidInputError, GraphError), match=message) as caught:
        load_app(SqlText(text, "app.sql")).job.build()
    assert "app.sql:5:" in str(caught.value)
    assert "^" in str(caught.value)
