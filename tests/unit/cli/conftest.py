"""A home to try commands in: a job that has run two epochs, and a dead letter."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.homes import FILES, write_visits

import headrace as hr
from headrace.bus import FileBus, StreamSpec
from headrace.testing import TestDriver

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
        write_visits(driver.settings.warehouse_dir / "visits", driver.clock)
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


APP = """CREATE APPLICATION clicks;
CREATE INPUT TABLE clicks(at, user) FROM SCRIBE("clicks") TIME at;
CREATE STREAM anns AS SELECT user FROM clicks WHERE user = 'ann'
"""


@pytest.fixture
def app_in_sql(shop: Path) -> None:
    """An app in SQL, what it reads and has made, and files to try it on."""
    (shop / "clicks.sql").write_text(APP)
    columns = pa.schema([("at", pa.int64()), ("user", pa.string())])
    with FileBus(shop / ".headrace" / "bus", files=FILES) as bus:
        bus.create(StreamSpec("clicks", 1, columns, time="at"))
        made = bus.create(StreamSpec("anns", 1, pa.schema([("user", pa.string())])))
        made.append(0, pa.record_batch({"user": ["ann"]}))
    for folder, file, row in (
        ("input", "clicks", {"at": 1, "user": "ann"}),
        ("expected", "anns", {"user": "ann"}),
    ):
        path = shop / "clicks.test" / folder / f"{file}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(row) + "\n")
