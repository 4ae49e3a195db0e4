"""``headrace state`` over the ids that ``deduplicate`` keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done

import headrace as hr
from headrace.testing import TestDriver


@hr.job("once")
def once(g: hr.Graph) -> None:
    orders = g.input("orders", time="at").partition_by("user")
    orders.deduplicate(within="1m", name="users").send_to(g.output("users"))
    orders.deduplicate("order", "user", name="orders-seen").send_to(g.output("fresh"))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(once, tasks=3, home=tmp_path, key_groups=16) as made:
        columns = {"user": pa.string(), "order": pa.int64(), "at": pa.int64()}
        made.create("orders", columns, time="at")
        rows = [{"user": f"u{n % 4}", "order": n, "at": 1000 * n} for n in range(20)]
        made.feed("orders", rows)
        made.run()
        yield made


def state(driver: TestDriver, *words: object) -> list[dict[str, Any]]:
    text = done("state", *words, "--json", "--home", driver.home)
    return [json.loads(line) for line in text.splitlines()]


def test_ls_and_scan_show_ids(driver: TestDriver) -> None:
    found = {row["store"]: row for row in state(driver, "ls", "once", "--count")}
    assert {name: (row["form"], row["entries"]) for name, row in found.items()} == {
        "users": ("ids", 4),
        "orders-seen": ("ids", 20),
    }
    users = state(driver, "scan", "once", "users")
    assert sorted(row["user"] for row in users) == ["u0", "u1", "u2", "u3"]
    some = state(driver, "scan", "once", "orders-seen", "--where", '"order" > 17')
    assert sorted((row["user"], row["order"]) for row in some) == [("u2", 18), ("u3", 19)]
    assert len(state(driver, "scan", "once", "orders-seen", "--prefix", "u1")) == 5


def test_get_finds_an_id_by_all_of_its_columns(driver: TestDriver) -> None:
    assert state(driver, "get", "once", "users", "u3") == [{"user": "u3"}]
    assert state(driver, "get", "once", "orders-seen", "u3", "7") == [{"user": "u3", "order": 7}]


def test_what_event_time_is_past_is_shown_no_more(driver: TestDriver) -> None:
    before = driver.coordinator.state.epoch
    driver.feed("orders", [{"user": "late", "order": 99, "at": 100_000}])
    driver.run()
    assert state(driver, "scan", "once", "users") == [{"user": "late"}]
    assert len(state(driver, "scan", "once", "users", "--epoch", before)) == 4
    changes = state(driver, "diff", "once", "orders-seen", before, before + 1)
    assert len(changes) == 1
