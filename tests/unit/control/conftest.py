"""A driver that has run two epochs, what it lets others see, its API; a webhook's server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.control.shops import FILES, shop

from headrace.clock import SystemClock
from headrace.control.board import Board
from headrace.control.client import Client
from headrace.control.place import PLACE
from headrace.control.server import ControlServer
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control
from headrace.testing import TestDriver


@pytest.fixture
def driver() -> Iterator[TestDriver]:
    """A job that has run two epochs."""
    with TestDriver(shop) as made:
        columns = {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}
        made.create("orders", columns, time="at")
        yield made


@pytest.fixture
def board(driver: TestDriver) -> Board:
    made = Board("shop", driver.settings, Control(), SystemClock())
    for n in range(2):
        driver.feed("orders", [{"user": "ann", "n": n, "at": 1_000 + n}])
        summary = driver.advance()
        assert summary is not None
        made.ready(JoinedParts(driver.parts))
        made.observe(summary)
    return made


@pytest.fixture
def client(driver: TestDriver, board: Board) -> Iterator[Client]:
    server = ControlServer(board, driver.storage, "127.0.0.1", 0, FILES, SystemClock())
    server.start()
    yield Client(driver.storage, "shop")
    server.stop()
    assert not (driver.storage / PLACE).exists()


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
