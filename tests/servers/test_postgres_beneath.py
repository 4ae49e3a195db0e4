"""Results over old data that a real PostgreSQL server is given: beneath what it has, and once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
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
from headrace.coordinator.reprocessing.giving import Given, Giving
from headrace.coordinator.reprocessing.merging import Merge
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


def send(bus: MemoryBus, sink: Any, by: Merge | None = None) -> Given:
    binding = SinkBinding("out", sink, ORDERS)
    parts = parted.part_count(bus.stream("kept"))
    stream, clock = bus.stream("kept"), SystemClock()
    with Giving(stream, binding, "shop", "run", parts, clock, by) as giving:
        return giving.give()


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


def add(old_first: bool) -> Merge:
    def choose(live: dict[str, Any] | None, old: dict[str, Any]) -> dict[str, Any] | None:
        if live is None:
            return old if old_first else None
        return {**old, "price": old["price"] + live["price"], "gone": live["gone"]}

    return choose


@pytest.mark.parametrize("nth", [1, 2])
def test_the_merge_function_chooses_between_what_is_there_and_old_rows_once(
    url: str, bus: MemoryBus, tmp_path: Path, nth: int
) -> None:
    sink = hr.sinks.postgres(url, "orders", mode="upsert", key="id")
    live(sink, tmp_path, 1, *({"id": n, "price": 100.0, "gone": None} for n in (3, 4, 20)))
    passed: list[str] = []

    def die(point: str) -> None:
        passed.append(point)
        if passed.count("merge.appended") == nth:
            raise Died

    with injected(die, ("merge.appended",)), pytest.raises(Died):
        send(bus, sink, add(old_first=True))
    live(sink, tmp_path, 2, {"id": 30, "price": 1.0, "gone": False})
    done = send(bus, sink, add(old_first=True))
    assert (done.by_function, done.unasked) == (True, "")
    expected = {n: float(n) for n in range(10)} | {3: 103.0, 4: 104.0, 20: 100.0, 30: 1.0}
    assert dict(ask(url, "SELECT id, price FROM orders")) == expected
    assert ask(url, "SELECT gone FROM orders WHERE id = 3") == [(None,)]
    live(sink, tmp_path, 3, {"id": 3, "price": 9.0, "gone": False})
    assert dict(ask(url, "SELECT id, price FROM orders"))[3] == 9.0


def test_a_function_may_let_all_be_or_fail_and_then_nothing_is_changed(
    url: str, bus: MemoryBus, tmp_path: Path
) -> None:
    sink = hr.sinks.postgres(url, "orders", mode="upsert", key="id")
    live(sink, tmp_path, 1, {"id": 3, "price": 100.0, "gone": False})
    assert send(bus, sink, lambda live, old: None).rows == 0
    before = [(3, 100.0)]
    assert ask(url, "SELECT id, price FROM orders") == before

    def fails_late(live: dict[str, Any] | None, old: dict[str, Any]) -> dict[str, Any]:
        seen.append(old["id"])
        return old if len(seen) < 10 else {**old, "price": "much"}

    seen: list[int] = []
    with pytest.raises(InvalidInputError, match="what merge returns does not fit the columns of"):
        send(bus, sink, fails_late)
    with pytest.raises(InvalidInputError, match="merge raised ZeroDivisionError"):
        send(bus, sink, lambda live, old: {"id": 1 // 0})
    assert ask(url, "SELECT id, price FROM orders") == before


def test_rows_that_are_each_a_new_one_are_not_asked_for(url: str, bus: MemoryBus) -> None:
    done = send(bus, hr.sinks.postgres(url, "orders"), add(old_first=False))
    assert (done.rows, done.by_function) == (20, False)
    assert done.unasked == "each row is a new one there"


KINDS = pa.schema(
    {
        "id": pa.string(),
        "small": pa.uint32(),
        "real": pa.float32(),
        "digits": pa.decimal128(9, 2),
        "data": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("ms"),
        "tags": pa.list_(pa.timestamp("us", "UTC")),
        "part": pa.struct({"n": pa.int64(), "raw": pa.binary(), "cost": pa.decimal128(5, 1)}),
    }
)


def test_a_function_is_given_what_is_there_as_the_job_sent_it(url: str, tmp_path: Path) -> None:
    at = dt.datetime(2013, 1, 31, 5, 15, 0, 7, tzinfo=dt.UTC)
    full = {
        "id": "a", "small": 4_000_000_000, "real": 0.1, "digits": Decimal("12.30"),
        "data": b"\x00\xff", "day": dt.date(2013, 1, 31), "at": at,
        "local": at.replace(tzinfo=None, microsecond=0), "tags": [at, None],
        "part": {"n": 1, "raw": b"\x01", "cost": Decimal("1.5")},
    }  # fmt: skip
    rows = [full, {**dict.fromkeys(KINDS.names), "id": "b"}]
    sent = pa.RecordBatch.from_pylist(rows, KINDS)
    sink = hr.sinks.postgres(url, "kinds", mode="upsert", key="id")
    path = tmp_path / "1.copy"
    Files().write_new(path, sink.prepare([sent], KINDS))
    receiver = sink.open(SinkSite("shop", "out", KINDS, SystemClock(), Files()))
    files = (Prepared(path, len(rows)),)
    receiver.commit(SinkEpoch("live", 1, files))
    found = receiver.held(files).sort_by("id")
    receiver.close()
    assert found.schema == KINDS
    assert found.to_pylist() == pa.Table.from_batches([sent]).to_pylist()
