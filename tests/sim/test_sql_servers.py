"""``headrace sql serve``: several processes answer for an app, by its files, and one may die."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import done, refused
from tests.support.processes import Started, until

from headrace.sql import load_app
from headrace.testing import TestDriver

APP = """
CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, n) FROM SCRIBE("orders") TIME at;
CREATE TABLE spent AS SELECT user, sum(n) AS total FROM orders [1 minute] GROUP BY user;
"""
COLUMNS = {"at": pa.int64(), "user": pa.string(), "n": pa.int64()}
ALL = "SELECT user, sum(total) AS total FROM spent GROUP BY user ORDER BY user"
TOKEN = "of-all-the-servers-here"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    found = Started(tmp_path, tmp_path / "home")
    yield found
    found.end()


def test_another_server_answers_when_one_has_died(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, home = tmp_path / "shop.sql", tmp_path / "home"
    file.write_text(APP)
    (tmp_path / "token").write_text(TOKEN)
    with TestDriver(load_app(file).job, home=home, memory_bus=False) as driver:
        driver.create("orders", COLUMNS, time="at")
        driver.feed("orders", [{"at": n * 10_000, "user": "ab"[n % 2], "n": n} for n in range(13)])
        driver.run()
        words = ("sql", "serve", str(file), "--json", "--set")
        servers = [
            started.start(*words, f"control.token_file={tmp_path / 'token'}") for _ in range(2)
        ]
        until(lambda: all(started.said(n).startswith("{") for n in range(2)), "servers")
        urls = [json.loads(started.said(n))["url"] for n in range(2)]
        named = [word for url in urls for word in ("--url", url)]
        asked = ("sql", "query", str(file), ALL, "--json", "--home", str(home))
        assert "set HEADRACE_TOKEN" in refused(*asked, *named)
        monkeypatch.setenv("HEADRACE_TOKEN", "another-token-than-that")
        assert "token is missing, or not that" in refused(*asked, *named)
        monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)

        def rows(*more: str) -> list[tuple[str, int]]:
            found = map(json.loads, done(*asked, *more).splitlines())
            return [(row["user"], row["total"]) for row in found]

        until((home / "sql/shop/servers").is_dir, "word of servers")
        for url in urls:
            assert rows("--url", url) == [("a", 30), ("b", 36)]
        assert rows() == [("a", 30), ("b", 36)]
        late = [("a", 42), ("b", 36), ("c", 5)]
        servers[0].kill()
        servers[0].wait()
        driver.feed("orders", [{"at": n * 10_000, "user": "c", "n": 1} for n in range(13, 20)])
        driver.run()
        assert rows(*named) == late
        assert rows() == late
    assert rows(*named) == late
    servers[1].send_signal(signal.SIGTERM)
    servers[1].wait()
    message = refused(*asked, *named, code=3)
    assert "no server answers" in message
    assert all(url in message for url in urls)
    assert rows() == late
    assert list((home / "sql/shop/servers").iterdir()) == []
