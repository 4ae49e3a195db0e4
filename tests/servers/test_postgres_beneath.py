"""Results over old data that a real PostgreSQL server is given: beneath what it has, and once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import headrace as hr
from headrace.bus.memory import MemoryBus
from headrace.bus.spec import StreamSpec
from headrace.clock import SystemClock
from headrace.coordinator.reprocessing import giving, parted
from headrace.coordinator.reprocessing.giving import Given, give
from headrace.errors import InvalidInputError
from headrace.faults import injected
from headrace.files import Files
from headrace.graph.sinks import Prepared, SinkEpoch, SinkSite
from headrace.plan.stages import SinkBinding
from headrace.testing.postgres import PostgresServer

ORDERS = pa.schema({"id": pa.int64(), "price": pa.float64(), "gone": pa.bool_()})


class Died(BaseException):
    """The process that merges ends here."""


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def url(shared: PostgresServer, request: pytest.FixtureRequest) -> str:
    name = f"test_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(shared.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return shared.url.replace("/postgres?", f"/{name}?")


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBus]:
    """With old orders: the price of each is its number, but later rows have other ones."""
    monkeypatch.setattr(parted, "PART_ROWS", 5)
    monkeypatch.setattr(giving, "ROWS", 5)
    with MemoryBus() as made:
        stream = made.create(StreamSpec("kept", 2, ORDERS, key=("id",)))
        for price in (0.5, None):
            rows = [
                {"id": n, "price": price or float(n), "gone": bool(price is None and n == 9)}
                for n in range(10)
            ]
            stream.append_rows(pa.RecordBatch.from_pylist(rows, ORDERS))
        yield made


def send(bus: MemoryBus, sink: Any) -> Given:
    binding = SinkBinding("out", sink, ORDERS)
    parts = parted.part_count(bus.stream("kept"))
    return give(bus.stream("kept"), binding, "shop", "run", parts, SystemClock())


def live(sink: Any, tmp_path: Path, number: int, *rows: dict[str, Any]) -> None:
    """What the live job sends, as the epoch of a number."""
    path = tmp_path / f"{number}.copy"
    batch = pa.RecordBatch.from_pylist(list(rows), ORDERS)
    Files().write_new(path, sink.prepare([batch], ORDERS))
    receiver = sink.open(SinkSite("shop", "out", ORDERS, SystemClock(), Files()))
    receiver.commit(SinkEpoch("live", number, (Prepared(path, len(rows)),)))
    receiver.close()


@pytest.mark.parametrize("nth", [1, 3])
def test_a_row_that_is_there_stays_and_others_come_once(
    url: str, bus: MemoryBus, tmp_path: Path, nth: int
) -> None:
    sink = hr.sinks.postgres(url, "orders", mode="upsert", key="id")
    live(sink, tmp_path, 1, *({"id": n, "price": 77.0, "gone": False} for n in (3, 20)))
    passed: list[str] = []

    def die(point: str) -> None:
        passed.append(point)
        if passed.count("merge.appended") == nth:
            raise Died

    with injected(die, ("merge.appended",)), pytest.raises(Died):
        send(bus, sink)
    live(sink, tmp_path, 2, {"id": 4, "price": 88.0, "gone": False})
    assert send(bus, sink).rows == 10
    found = dict(ask(url, "SELECT id, price FROM orders"))
    assert found == {n: float(n) for n in range(10)} | {3: 77.0, 20: 77.0, 4: 88.0}
    live(sink, tmp_path, 3, {"id": 5, "price": 99.0, "gone": False})
    assert dict(ask(url, "SELECT id, price FROM orders"))[5] == 99.0


def test_rows_without_a_key_come_once_each(url: str, bus: MemoryBus) -> None:
    sink = hr.sinks.postgres(url, "orders")

    def die(point: str) -> None:
        if point == "sink.sent":
            raise Died

    with injected(die, ("sink.sent",)), pytest.raises(Died):
        send(bus, sink)
    send(bus, sink)
    assert send(bus, sink).rows == 20
    assert ask(url, "SELECT count(*), count(DISTINCT (id, price)) FROM orders") == [(20, 20)]


def test_what_deletes_is_refused(url: str, bus: MemoryBus) -> None:
    sink = hr.sinks.postgres(url, "orders", mode="delete", key="id")
    with pytest.raises(InvalidInputError, match="takes away rows, and cannot tell which"):
        send(bus, sink)
