"""``headrace jobs`` and ``headrace state`` over a job in parts: one job to whoever asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, refused

import headrace as hr
from headrace.testing import TestDriver


@hr.job("shop")
def shop(g: Any) -> None:
    paid = g.input("orders", time="at").partition_by("user", name="paid")
    paid.aggregate(name="spent", n=hr.agg.count()).send_to(g.output("spent"))
    by_n = g.input("orders", time="at", name="again").partition_by("n", via="bus", name="by-n")
    by_n.window(hr.tumbling("10s"), name="sizes", c=hr.agg.count()).send_to(g.output("sizes"))


COLUMNS = {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(shop, tasks=4, home=tmp_path, memory_bus=False, key_groups=8) as made:
        made.create("orders", COLUMNS, partitions=2, time="at", key=["user"])
        feed(made, 0)
        yield made


def feed(driver: TestDriver, second: int) -> None:
    rows = [{"user": u, "n": n, "at": (second + n) * 1000} for n, u in enumerate("abcabc")]
    driver.feed("orders", rows)
    driver.run()
    driver.crash()


def asked(driver: TestDriver, *words: object) -> Any:
    said = done(*words, "--json", "--home", driver.home).splitlines()
    found = [json.loads(line) for line in said]
    return found[0] if len(found) == 1 else found


def test_a_job_in_parts_is_told_as_one(driver: TestDriver) -> None:
    found = asked(driver, "jobs", "ls")
    assert (found["job"], found["status"], found["rows"], found["lag"]) == (
        "shop",
        "stopped",
        12,
        0,
    )
    assert [part["part"] for part in found["parts"]] == ["shop", "shop@by-n"]
    assert {one["operator"] for one in found["inputs"]} == {"orders", "again", "by-n"}
    assert found["outputs"] == ["sizes", "spent"]
    text = done("jobs", "describe", "shop", "--home", driver.home)
    assert "part shop@by-n" in text
    assert "by-n (shop.by-n.exchange)" in text
    why = asked(driver, "jobs", "why", "shop")
    assert [one["job"] for one in why] == ["shop", "shop@by-n"]


def test_stores_are_found_in_whichever_part_they_are(driver: TestDriver) -> None:
    stores = asked(driver, "state", "ls", "shop")
    assert {(one["job"], one["store"]) for one in stores} == {
        ("shop", "spent"),
        ("shop@by-n", "sizes"),
    }
    assert asked(driver, "state", "get", "shop", "spent", "a")["n"] == 2
    assert len(asked(driver, "state", "scan", "shop", "sizes")) == 6
    plans = asked(driver, "state", "plan", "shop")
    assert [one["job"] for one in plans] == ["shop", "shop@by-n"]
    told = refused("state", "scan", "shop", "none", "--home", driver.home)
    assert "has no store 'none'; it has spent, sizes" in told


def test_tasks_of_all_parts_are_changed_or_none(driver: TestDriver) -> None:
    told = refused("jobs", "rescale", "shop", "--tasks", 3, "--home", driver.home)
    assert "HR114" in told
    assert "expected a number that divides 4" in told
    first, second = asked(driver, "jobs", "rescale", "shop", "--tasks", 2)
    assert (first["job"], first["tasks"]) == ("shop", {"paid": 2})
    assert (second["job"], second["tasks"]) == ("shop@by-n", {"by-n": 2})
    assert "4 to" not in done(
        "jobs", "rescale", "shop", "--tasks", 1, "--stage", "paid", "--home", driver.home
    )
    feed(driver, 10)
    driver.finish()
    assert sum(row["c"] for row in driver.output("sizes")) == 12


def test_all_parts_are_reset_and_none_is_rewound(driver: TestDriver) -> None:
    told = refused("jobs", "rewind", "shop", "--to", "-1", "--home", driver.home)
    assert "HR114" in told
    assert "headrace jobs reset shop" in told
    wrong = refused("jobs", "reset", "shop", "--offset", "by-n/0=1", "--home", driver.home)
    assert "no input 'by-n'" in wrong
    found = asked(driver, "jobs", "reset", "shop", "--from", "latest", "--offset", "again/1=0")
    ends = driver.bus.stream("orders").ends()
    assert found["inputs"] == {"orders": ends, "again": [ends[0], 0]}
    assert asked(driver, "jobs", "ls")["status"] == "reset"
    feed(driver, 10)
    driver.finish()
    assert driver.parts[0].state.counts["in"] == 6 + 6 + ends[1]


def test_all_parts_are_deleted(driver: TestDriver) -> None:
    found = asked(driver, "jobs", "delete", "shop", "--yes")
    assert len(found["deleted"]) == 2
    assert list(driver.settings.jobs_dir.iterdir()) == []
    assert "shop.by-n.exchange" not in driver.bus.names()
