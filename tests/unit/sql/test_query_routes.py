"""``/v1/sql``: what it refuses, its limits, and changes that are followed by server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pytest
from tests.support.sql import TableQueries
from tests.support.watching import Client, LiveJob, api, live_job, show_parts

from headrace.errors import InvalidInputError
from headrace.sql import SqlText, load_app
from headrace.testing import TestDriver

COLUMNS = {"at": pa.int64(), "user": pa.string(), "n": pa.int64()}
APP = """
CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, n) FROM SCRIBE("orders") TIME at;
CREATE TABLE spent AS SELECT user, sum(n) AS total FROM orders [1 minute] GROUP BY user;
CREATE TABLE most AS SELECT user, max(n) AS total FROM orders [1 minute] GROUP BY user;
CREATE STREAM large AS SELECT user, n FROM orders WHERE n > 5;
"""


class Served:
    """A driver that is advanced by a test, and its API."""

    def __init__(self, driver: TestDriver, live: LiveJob, client: Client) -> None:
        self.driver, self.live, self.client = driver, live, client

    def feed(self, minute: int, *orders: tuple[str, int]) -> None:
        """Commit an epoch with orders of a minute."""
        rows = [{"at": minute * 60_000 + 1, "user": user, "n": n} for user, n in orders]
        self.driver.feed("orders", rows)
        while (summary := self.driver.advance()) is not None:
            show_parts(self.live, self.driver)
            self.live.observe(summary)

    def ask(self, query: str, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get(_path(query, **more))["rows"]
        return found

    @contextmanager
    def following(self, query: str, after: str = "", **more: Any) -> Iterator[Follower]:
        """Follow a query, from an event on."""
        url = urlsplit(self.client.place.url)
        headers = {"Authorization": f"Bearer {self.client.place.token}"}
        if after:
            headers["Last-Event-ID"] = after
        with closing(HTTPConnection(url.hostname or "", url.port, timeout=60)) as connection:
            connection.request("GET", _path(query, "/changes", **more), None, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            yield Follower(answer)


def _path(query: str, under: str = "", **more: Any) -> str:
    return f"/v1/sql{under}?{urlencode({'query': query, **more})}"


class Follower:
    """Reads server-sent events."""

    def __init__(self, answer: HTTPResponse) -> None:
        self._answer = answer
        self.last = ""

    def next(self, count: int) -> list[dict[str, Any]]:
        """Return the data of the next events."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            line = self._answer.readline().decode().rstrip("\n")
            field, _, value = line.partition(": ")
            if field == "id":
                self.last = value
            elif field == "data":
                found.append(json.loads(value))
        return found


@contextmanager
def shop() -> Iterator[Served]:
    """Run the app for two minutes of events; the window of the second is open."""
    with TestDriver(load_app(SqlText(APP)).job, tasks=2) as driver:
        driver.create("orders", COLUMNS, time="at")
        live = live_job(driver)
        with api(driver, live) as client:
            found = Served(driver, live, client)
            found.feed(1, ("ann", 1), ("bob", 9))
            found.feed(2, ("ann", 2))
            yield found


@pytest.fixture
def served() -> Iterator[Served]:
    with shop() as found:
        yield found


@pytest.fixture(scope="module")
def settled() -> Iterator[Served]:
    """A job of which tests only read."""
    with shop() as found:
        yield found


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "SELECT * FROM spend",
            "query:1:15: app 'shop' has no table 'spend'; did you mean 'spent'",
        ),
        ("SELECT totl FROM spent", "query:1:8: no column 'totl'; did you mean 'total'?"),
        ("SELECT\n  lowr(user) FROM spent", "query:2:3: no function 'lowr'; did you mean 'lower'?"),
        ("SELECT user FROM spent WHERE", "query:1:24: this is no SQL"),
        ("SELECT * FROM spent [1 minute]", "windows are those of tables"),
        ("DROP TABLE spent", "expected one query"),
        ("SELECT 1; SELECT 2", "query:1:1: expected one expression"),
        ("else", "query:1:1: expected one expression"),
        ("SELECT repeat(user, 1000000000) FROM spent", "query:1:8: a query cannot call repeat"),
        ("SELECT unnest(range(1000000000000))", "cannot call generate_series"),
        ("SELECT * FROM 'spent.csv'", "has no table"),
        ("SELECT * FROM read_csv('/etc/passwd')", "has no table"),
        ("SELECT * FROM duckdb_settings()", "has no table"),
        ("SELECT (SELECT content FROM read_text('/etc/passwd'))", "has no table"),
        ("SELECT user FROM (SELECT user FROM spent) [1 minute]", "windows are those of tables"),
        ("SELECT user FROM spent GROUP BY total", "query:1:8: DuckDB: Binder Error"),
        ("SELECT s.user, s.totl FROM spent s", "query:1:18: no column 'totl'; did you mean"),
        ("SELECT x.user FROM spent s", "query:1:8: DuckDB: Binder Error: Referenced table"),
        ("SELECT sum(user) FROM spent", "DuckDB: Binder Error"),
        ("SELECT total FROM spent, most", "DuckDB: Binder Error: Ambiguous"),
    ],
)
def test_a_query_that_cannot_be_answered_says_why(settled: Served, query: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as found:
        settled.ask(query)
    assert said in str(found.value)


def test_a_mistake_is_shown_at_its_place(settled: Served) -> None:
    with pytest.raises(InvalidInputError) as found:
        settled.ask("SELECT user,\n  totl FROM spent")
    assert found.value.message.splitlines() == [
        "query:2:3: no column 'totl'; did you mean 'total'?",
        "    totl FROM spent",
        "    ^^^^",
    ]


def test_an_answer_has_limits(settled: Served) -> None:
    with pytest.raises(InvalidInputError, match="more than 1 rows; add LIMIT"):
        settled.ask("SELECT * FROM spent", windows="all", limit=1)
    assert len(settled.ask("SELECT * FROM spent LIMIT 1", limit=1)) == 1


def test_a_query_that_takes_too_long_is_ended(settled: Served) -> None:
    slow = (
        "WITH RECURSIVE up(n) AS (SELECT total FROM spent UNION ALL SELECT n + 1 FROM up) "
        "SELECT count(*) FROM up"
    )
    with pytest.raises(InvalidInputError, match=r"took more than 0\.2 s"):
        TableQueries(settled.live, seconds=0.2)(slow)


def test_a_query_reads_so_many_rows_at_most(served: Served) -> None:
    served.feed(3, ("ann", 1), ("bob", 2), ("cy", 3))
    served.feed(4, ("ann", 1))
    with pytest.raises(InvalidInputError, match=r"too many rows of stream 'shop\.spent'"):
        TableQueries(served.live, read_rows=2)("SELECT * FROM spent")
    ask = TableQueries(served.live, read_rows=2)
    assert ask("SELECT total FROM spent WHERE user = 'cy'") == [{"total": 3}]


def test_tables_are_listed(settled: Served) -> None:
    found = {one["name"]: one for one in settled.client.get("/v1/sql/tables")}
    assert set(found) == {"spent", "most", "large"}
    assert found["spent"]["stream"] == "shop.spent"
    assert [one["name"] for one in found["large"]["columns"]] == ["user", "n"]


def test_a_table_is_known_by_its_stream_and_in_any_case(settled: Served) -> None:
    rows = settled.ask("SELECT user, total FROM spent ORDER BY user")
    assert rows == [{"user": "ann", "total": 1}, {"user": "bob", "total": 9}]
    assert settled.ask("SELECT USER, x.Total FROM shop.spent AS x ORDER BY 1") == rows
    assert settled.ask("SELECT user, n FROM Large") == [{"user": "bob", "n": 9}]


def test_changes_come_as_epochs_commit_them(served: Served) -> None:
    query = "SELECT user, total FROM spent WHERE user <> 'cy'"
    with served.following(query) as changes:
        served.feed(3, ("bob", 3), ("cy", 5))
        assert changes.next(1) == [{"user": "ann", "total": 2}]
        served.feed(4, ("ann", 4), ("bob", 5))
        assert changes.next(1) == [{"user": "bob", "total": 3}]
        seen = changes.last
    served.feed(5, ("ann", 6))
    served.feed(6, ("ann", 7))
    missed = [("ann", 4), ("ann", 6), ("bob", 5)]
    with served.following(query, after=seen) as changes:
        first = changes.next(1)
        middle = changes.last
        rows = first + changes.next(2)
        assert sorted((row["user"], row["total"]) for row in rows) == missed
    with served.following(query, after=middle) as changes:
        assert first + changes.next(2) == rows, "each row once, wherever it was interrupted"
    with served.following("SELECT * FROM large", begin="earliest") as changes:
        assert [row["n"] for row in changes.next(3)] == [9, 6, 7]


def test_open_windows_are_followed_until_they_close(served: Served) -> None:
    query = "SELECT user, total, window_is_open AS is_open FROM spent"
    with served.following(query, windows="all") as changes:
        assert changes.next(1) == [{"user": "ann", "total": 2, "is_open": True}]
        served.feed(2, ("ann", 5))
        assert changes.next(1) == [{"user": "ann", "total": 7, "is_open": True}]
        served.feed(3, ("bob", 1))
        assert changes.next(2) == [
            {"user": "ann", "total": 7, "is_open": False},
            {"user": "bob", "total": 1, "is_open": True},
        ]


def test_a_client_of_another_driver_goes_on_where_it_was(served: Served) -> None:
    with served.following("SELECT total FROM spent", begin="earliest") as changes:
        changes.next(1)
        seen = changes.last
    served.driver.crash()
    live = live_job(served.driver)
    with api(served.driver, live) as client:
        again = Served(served.driver, live, client)
        again.feed(3, ("cy", 7))
        again.feed(4, ("cy", 8))
        with again.following("SELECT total FROM spent", after=seen) as changes:
            rest = [row["total"] for row in changes.next(3)]
    assert sorted(rest) in ([1, 2, 7], [2, 7, 9])


def test_a_client_that_reads_slowly_gets_all_and_holds_up_nobody(served: Served) -> None:
    wide = "x" * 20_000
    with served.following("SELECT user, n FROM large") as changes:
        for minute in range(3, 7):
            served.feed(minute, *[(f"{wide}{n}", 100 * minute + n) for n in range(100)])
        assert len(served.ask("SELECT n FROM large WHERE n > 400 AND n < 500")) == 99
        found = [row["n"] for row in changes.next(400)]
    assert sorted(found) == [100 * minute + n for minute in range(3, 7) for n in range(100)]


def test_what_was_removed_while_a_client_was_away_is_counted(served: Served) -> None:
    with served.following("SELECT n FROM large", begin="earliest") as changes:
        assert changes.next(1) == [{"n": 9}]
        seen = changes.last
    stream = served.driver.bus.stream("large")
    [removed] = [n for n, end in enumerate(stream.ends()) if end]
    served.feed(3, ("bob", 8))
    served.feed(4, ("bob", 10))
    assert served.ask("SELECT sum(n) AS n FROM large") == [{"n": 27}]
    stream.trim(removed, stream.ends()[removed] - 1)
    assert served.ask("SELECT n FROM large") == [{"n": 10}]
    with served.following("SELECT n FROM large", after=seen) as changes:
        assert changes.next(2) == [{"rows": 1}, {"n": 10}]


@pytest.mark.parametrize(
    ("query", "after", "said"),
    [
        ("SELECT count(*) FROM spent", "", "can be followed row by row"),
        ("SELECT user FROM spent ORDER BY user", "", "can be followed row by row"),
        ("SELECT a.user FROM spent a JOIN most b USING (user)", "", "can be followed"),
        ("SELECT user FROM spent", "x", "Last-Event-ID 'x' is not"),
        ("SELECT user FROM spent", "99,99", "beyond the rows that there are"),
        ("SELECT usr FROM spent", "", "query:1:8: no column 'usr'; did you mean 'user'?"),
        ("SELECT user FROM spent UNION ALL SELECT user FROM most", "", "can be followed"),
    ],
)
def test_what_cannot_be_followed_says_why(
    settled: Served, query: str, after: str, said: str
) -> None:
    url = urlsplit(settled.client.place.url)
    headers = {"Authorization": f"Bearer {settled.client.place.token}"}
    if after:
        headers["Last-Event-ID"] = after
    with closing(HTTPConnection(url.hostname or "", url.port, timeout=60)) as connection:
        connection.request("GET", _path(query, "/changes"), None, headers)
        answer = connection.getresponse()
        assert answer.status == 409
        assert said in json.loads(answer.read())["message"]
