"""A driver that has run two epochs, what it lets others see, its API; a webhook's server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
from tests.support.watching import API_FILE, Client, LiveJob, api_server, new_live_job, show_parts
from tests.unit.control.shops import shop

from headrace.testing import TestDriver


@pytest.fixture
def driver() -> Iterator[TestDriver]:
    """A job that has run two epochs."""
    with TestDriver(shop) as made:
        columns = {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}
        made.create("orders", columns, time="at")
        yield made


@pytest.fixture
def live(driver: TestDriver) -> LiveJob:
    made = new_live_job("shop", driver.settings)
    for n in range(2):
        driver.feed("orders", [{"user": "ann", "n": n, "at": 1_000 + n}])
        summary = driver.advance()
        assert summary is not None
        show_parts(made, driver)
        made.observe(summary)
    return made


@pytest.fixture
def client(driver: TestDriver, live: LiveJob) -> Iterator[Client]:
    server = api_server(live, driver.storage)
    server.start()
    yield Client(driver.storage, "shop")
    server.stop()
    assert not (driver.storage / API_FILE).exists()


class Hook(BaseHTTPRequestHandler):
    """A server of somebody else's."""

    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answers = self.server.answers
        code = answers.pop(0) if answers else 200
        if code == 200:
            self.server.got.append((self.headers["Content-Type"], json.loads(body)))
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    made.answers, made.got = [], []
    made.url = f"http://127.0.0.1:{made.server_address[1]}/hook"
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()
