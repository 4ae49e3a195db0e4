"""A driver that has run two epochs, what it lets others see, and its API."""

from __future__ import annotations

from collections.abc import Iterator

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
