"""``headrace sql deploy --start``: a running app is stopped, saved, and run as its new version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, headrace, refused
from tests.support.processes import Started, until

from headrace.bus import FileBus, StreamSpec

HEAD = """CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, n) FROM SCRIBE("orders") TIME at;
"""
TOTALS = "CREATE TABLE totals AS SELECT user, sum(n) AS total FROM orders GROUP BY user"
LARGE = ";\nCREATE STREAM large AS SELECT user, n FROM orders WHERE n > 5"
SCHEMA = pa.schema([("at", pa.int64()), ("user", pa.string()), ("n", pa.int64())])


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    found = Started(tmp_path, tmp_path / "home")
    yield found
    found.end()


class Shop:
    """An app in a home, and the orders that it gets."""

    def __init__(self, home: Path, file: Path) -> None:
        self.home, self.file, self.at = ("--home", str(home)), str(file), 0
        self._bus = home / "bus"
        with FileBus(self._bus) as bus:
            bus.create(StreamSpec("orders", 1, SCHEMA, "at"))

    def order(self, *numbers: int) -> None:
        """Append orders of one user."""
        rows = [{"at": self.at + n, "user": "a", "n": n} for n in numbers]
        self.at += 60_000
        with FileBus(self._bus) as bus:
            bus.stream("orders").append(0, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))

    def rows(self, query: str, *more: str) -> list[dict[str, Any]]:
        """Return the answer to a query; none while there is nothing to ask."""
        ran = headrace("sql", "query", self.file, query, "--json", *more, *self.home)
        return [json.loads(line) for line in ran.out.splitlines()] if ran.code == 0 else []

    def await_total(self, total: int) -> None:
        """Wait until the app has counted all orders."""
        wanted = [{"user": "a", "total": total}]
        query = "SELECT user, total FROM totals"
        until(lambda: self.rows(query, "--windows", "current") == wanted, f"total {total}")


def test_versions_follow_each_other_with_their_state(tmp_path: Path, started: Started) -> None:
    file = tmp_path / "shop.sql"
    shop = Shop(tmp_path / "home", file)
    file.write_text(HEAD + TOTALS)
    deploy = ("sql", "deploy", str(file))
    assert "expected 'run' or 'submit'" in refused(*deploy, "--yes", "--start", "stop", *shop.home)
    assert "--start needs --yes" in refused(*deploy, "--start", "run", *shop.home)
    run = ("--yes", "--start", "run --standalone", "--set", "job.slots=1")
    first = started.start(*deploy, *run)
    shop.order(1, 2, 3)
    shop.await_total(6)
    file.write_text(HEAD + TOTALS + LARGE)
    assert "+ " in done(*deploy, *shop.home)
    second = started.start(*deploy, *run)
    first.wait(60)
    shop.order(9)
    shop.await_total(15)
    until(lambda: shop.rows("SELECT n FROM large") == [{"n": 9}], "a row of version 2")
    assert "job shop: stopped" in started.said(1)
    back = started.start(*deploy, "--rollback", *run)
    second.wait(60)
    until(lambda: "as version 3" in started.said(2), "version 1 as version 3")
    assert file.read_text() == HEAD + TOTALS
    shop.await_total(15)  # the state before version 2, and the orders that came to it
    shop.order(4)
    shop.await_total(19)
    assert back.poll() is None
    saved = done("jobs", "savepoints", "shop", *shop.home)
    assert "before-v2" in saved
    assert "before-v3" in saved
