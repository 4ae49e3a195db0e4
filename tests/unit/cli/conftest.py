"""A home to try commands in: a job that has run two epochs, and a dead letter."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.bus import StreamSpec
from headrace.files import Files
from headrace.graph.sinks import Prepared, SinkEpoch, SinkSite
from headrace.testing.clock import ManualClock
from headrace.testing.driver import TestDriver
from headrace.warehouse.sink import TableSink

JOB = """
import headrace as hr

@hr.job("shop")
def shop(g):
    g.input("orders").partition_by("user").aggregate(n=hr.agg.count()).send_to(g.output("n"))
"""


def checked(order: Any) -> dict[str, Any]:
    if order.n < 0:
        raise ValueError("less than nothing")
    return {"user": order.user, "n": order.n}


@hr.job("shop")
def spending(g: hr.Graph) -> None:
    orders = g.input("orders").map(checked, returns={"user": str, "n": int}, on_error="dead_letter")
    orders.partition_by("user").aggregate(name="spent", n=hr.agg.sum("n")).send_to(
        g.output("spent")
    )


def _fill_table(folder: Path, clock: ManualClock) -> None:
    """A table of the warehouse with two rows of one day."""
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("user", pa.string())])
    sink = TableSink("visits", "at", folder=str(folder))
    files = Files(sync=False)
    rows = [{"at": 1_000_000, "user": "ann"}, {"at": 2_000_000, "user": None}]
    packet = folder.with_name("packet")
    batch = pa.RecordBatch.from_pylist(rows, schema)
    files.write_new(packet, sink.prepare([batch], schema))
    receiver = sink.open(SinkSite("shop", "to_visits", schema, clock, files))
    receiver.commit(SinkEpoch("lineage", 1, (Prepared(packet, 2),)))
    packet.unlink()


@pytest.fixture(scope="module")
def shop_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a job that has run two epochs, and a dead letter."""
    folder = tmp_path_factory.mktemp("shop")
    with TestDriver(spending, tasks=2, home=folder / ".headrace", memory_bus=False) as driver:
        driver.create("orders", {"user": pa.string(), "n": pa.int64()})
        driver.feed("orders", [{"user": "ann", "n": 1}, {"user": "bob", "n": -1}])
        driver.run()
        driver.feed("orders", [{"user": "ann", "n": 2}])
        driver.run()
        schema = pa.schema([("user", pa.string())])
        driver.bus.create(StreamSpec("latest", 1, schema, key=("user",), compact=True))
        _fill_table(driver.settings.warehouse_dir / "visits", driver.clock)
    (folder / "shop_job.py").write_text(JOB)
    (folder / "orders.jsonl").write_text('{"user": "cat", "n": 3}\n')
    return folder


@pytest.fixture
def shop(shop_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "shop"
    shutil.copytree(shop_once, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    sys.modules.pop("shop_job", None)
