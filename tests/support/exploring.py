"""Streams that are explored: kept by a tailer that a test steps, queried, served to browsers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.homes import FILES, Home, Rows

from headrace.bus.spec import StreamSpec
from headrace.clock import Clock, SystemClock
from headrace.explore.chart import chart
from headrace.explore.query import Query, read_query
from headrace.explore.results import Result, plain_rows
from headrace.explore.segments import SegmentFolder
from headrace.explore.service import ExploreService
from headrace.explore.sql_box import read_select
from headrace.explore.sql_worker import Asked, answer
from headrace.explore.stream_tail import is_sampled
from headrace.explore.tailer import Tailer
from headrace.testing.script import ManualClock
from headrace.ui.app import STATIC
from headrace.ui.assets import Assets
from headrace.ui.server import UiServer

__all__ = [
    "STATIC",
    "Answer",
    "Assets",
    "Browser",
    "Explored",
    "ManualClock",
    "Query",
    "SegmentFolder",
    "StreamSpec",
    "Tailer",
    "UiServer",
    "chart",
    "kept_rows",
    "read_query",
    "read_select",
    "run_unchecked",
    "sampled_rows",
    "serving",
    "tables_read",
    "write_token",
]

DEADLINE_S = 120


class Explored:
    """A home whose streams are kept, by a tailer that takes its steps here.

    Args:
        home: with the streams.
        clock: of the tailer and of queries.
        sets: settings, as the command line has them.
    """

    def __init__(self, home: Home, clock: Clock, *sets: str) -> None:
        self.home = home
        self.settings = home.settings("explore.threads=1", *sets)
        self.service = ExploreService(home.bus, self.settings, clock, files=FILES)

    def step(self) -> None:
        """Read all that is there, and do what is due."""
        while self.service.tailer.step():
            pass

    def ask(self, stream: str, **query: Any) -> Result:
        """Answer a query, from the begin of 2000 on where it names no time."""
        given = {"from": "2000-01-01", "to": "2100-01-01", **query, "stream": stream}
        return self.service.answer(read_query(given))

    def count(self, stream: str) -> int:
        """Return how many rows there are."""
        found: int = self.ask(stream).rows[0][0]
        return found

    def places(self, stream: str) -> list[tuple[int, int]]:
        """Return partition and offset of each row that is kept, in order."""
        result = self.ask(stream, view="samples", limit=10_000)
        names = [one.name for one in result.columns]
        partition, offset = names.index("_partition"), names.index("_offset")
        return sorted((row[partition], row[offset]) for row in result.rows)

    def sql(self, text: str, streams: Sequence[str] | None = None) -> Result:
        """Answer SQL."""
        return self.service.sql(text, lambda name: streams is None or name in streams)

    def files(self, stream: str) -> list[str]:
        """Return the files that queries read."""
        kept = self.service.tailer.tail(stream).kept()
        return [one.path.name for one in kept.segments]

    def drop(self) -> None:
        """End as a process does that is killed: nothing in memory is written."""
        tailer = self.service.tailer
        if tailer._lock is not None:
            import os

            os.close(tailer._lock)
            tailer._lock = None
        self.service._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.service.close()


def sampled_rows(rows: Rows, stream: str, partition: int, first: int, rate: int) -> Rows:
    """Return the rows that are kept of some at consecutive offsets."""
    chosen = is_sampled(stream, partition, np.arange(first, first + len(rows)), rate)
    return [row for row, keeps in zip(rows, chosen.tolist(), strict=True) if keeps]


def kept_rows(home: Home, stream: str) -> int:
    """Return how many rows the files on disk have, each file by itself."""
    folder = home.home / "explore" / stream
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def tables_read(sql: str) -> set[str]:
    """Return the tables that DuckDB itself finds in a statement."""
    return set(_duckdb().get_table_names(sql))


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def run_unchecked(sql: str, rows: pa.Table, seconds: float = 1.0) -> str:
    """Return all that a worker's DuckDB says to a text that nobody has checked."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data = bytes(memoryview(sink.getvalue()))
    view = 'SELECT * FROM "web_rows"'
    found = answer(Asked(sql, [("web", view, data)], [], 100, seconds, "100MB", 1))
    if not found.rows:
        return found.problem
    return str(plain_rows(pa.ipc.open_stream(found.rows).read_all()))


class Answer:
    """What a server answers."""

    def __init__(self, found: HTTPResponse) -> None:
        self.status, self.headers = found.status, found.headers
        self.body = found.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        found: str = self.json["error"]["message"]
        return found


class Browser:
    """Asks a server as the page does, with the cookie that it got.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.host = urlsplit(url).netloc
        self.cookie = ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        """Send a request; a header that is ``None`` is left out."""
        given = {"Host": self.host, "Cookie": self.cookie or None}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if body is None or isinstance(body, bytes | str) else json.dumps(body)
        with closing(self._connection()) as connection:
            sent = {name: value for name, value in given.items() if value is not None}
            connection.request(method, path, data, sent)
            return Answer(connection.getresponse())

    def _connection(self) -> HTTPConnection:
        place = urlsplit(self.url)
        return HTTPConnection(place.hostname or "", place.port, timeout=DEADLINE_S)

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.ask("GET", path, **headers)

    def change(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        """Send what changes something, as the page does."""
        own: dict[str, str | None] = {"Origin": f"http://{self.host}", "X-Headrace": "1"}
        return self.ask(method, path, body, **{**own, **headers})

    def query(self, **query: Any) -> Answer:
        return self.ask("POST", "/api/query", query)

    def sign_in(self, token: str) -> Answer:
        """Open the address with a token, and keep the cookie."""
        found = self.get(f"/?token={token}")
        self.cookie = (found.headers.get("Set-Cookie") or "").partition(";")[0]
        return found

    @contextmanager
    def asking(self, method: str, path: str, body: Any = None) -> Iterator[None]:
        """Send a request, and go away at the end without having read the answer."""
        with closing(self._connection()) as connection:
            data = body if body is None else json.dumps(body)
            connection.request(method, path, data, {"Host": self.host, "Cookie": self.cookie})
            yield

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Follow server-sent events: their names, and their data."""
        with closing(self._connection()) as connection:
            connection.request("GET", path, None, {"Host": self.host, "Cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()

            def read() -> Iterator[tuple[str, Any]]:
                name = ""
                for line in answer:
                    if line.startswith(b"event: "):
                        name = line[7:].decode().strip()
                    elif line.startswith(b"data: "):
                        yield name, json.loads(line[6:])

            yield read()


@contextmanager
def serving(home: Home, *sets: str) -> Iterator[UiServer]:
    """Serve a home from a thread, on a free port."""
    settings = home.settings("ui.port=0", "explore.threads=1", *sets)
    server = UiServer(home.bus, settings, SystemClock())
    thread = threading.Thread(target=server.serve, name="ui of a test")
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(DEADLINE_S)


def write_token(folder: Path, name: str) -> Path:
    """Write a token file; the token is its name, many times."""
    path = folder / f"{name}.token"
    path.write_text(name * 8)
    return path
