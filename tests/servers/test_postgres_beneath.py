"""Results over old data that a real PostgreSQL server is given: beneath what it has, and once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.conftest import ask
from tests.support.changes import MergeFunction, SinkBackfillResult, given
from tests.support.homes import Files
from tests.support.limits import limit
from tests.support.processes import SystemClock

import headrace as hr
from headrace.bus import MemoryBus, StreamSpec
from headrace.errors import InvalidInputError
from headrace.sinks import Prepared, SinkEpoch, SinkSite
from headrace.testing import crash_at

ORDERS = pa.schema({"id": pa.int64(), "price": pa.float64(), "gone": pa.bool_()})


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBus]:
    """With old orders: the price of each is its number, but later rows have other ones."""
    limit(monkeypatch, merge_part_rows=5, sink_rows=5)
    with MemoryBus() as made:
        stream = made.create(StreamSpec("kept", 2, ORDERS, key=("id",)))
        for price in (0.5, None):
            rows = [
                {"id": n, "price": price or float(n), "gone": bool(price is None and n == 9)}
                for n in range(10)
            ]
            stream.append_rows(pa.RecordBatch.from_pylist(rows, ORDERS))
        yield made


def send(bus: MemoryBus, sink: Any, by: MergeFunction | None = None) -> SinkBackfillResult:
    return given(bus.stream("kept"), sink, ORDERS, by)


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
    with crash_at("merge.appended", nth):
        send(bus, sink)
    live(sink, tmp_path, 2, {"id": 4, "price": 88.0, "gone": False})
    assert send(bus, sink).rows == 10
    found = dict(ask(url, "SELECT id, price FROM orders"))
    assert found == {n: float(n) for n in range(10)} | {3: 77.0, 20: 77.0, 4: 88.0}
    live(sink, tmp_path, 3, {"id": 5, "price": 99.0, "gone": False})
    assert dict(ask(url, "SELECT id, price FROM orders"))[5] == 99.0


def test_rows_without_a_key_come_once_each(url: str, bus: MemoryBus) -> None:
    sink = hr.sinks.postgres(url, "orders")

    with crash_at("sink.sent"):
        send(bus, sink)
    send(bus, sink)
    assert send(bus, sink).rows == 20
    assert ask(url, "SELECT count(*), count(DISTINCT (id, price)) FROM orders") == [(20, 20)]


def test_what_deletes_is_refused(url: str, bus: MemoryBus) -> None:
    sink = hr.sinks.postgres(url, "orders", mode="delete", key="id")
    with pytest.raises(InvalidInputError, match="removes rows, and does not know which"):
        send(bus, sink)


def add(old_first: bool) -> MergeFunction:
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
    with crash_at("merge.appended", nth):
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
