"""``headrace state`` over the rows that a join of streams keeps."""

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


@hr.job("pairs")
def pairs(g: hr.Graph) -> None:
    views = g.input("views", time="at").partition_by("ad")
    clicks = g.input("clicks", time="at").partition_by("of")
    joined = views.join(clicks, after="10s", columns=["cost"], name="j")
    joined.map("ad", "page", "cost").send_to(g.output("out"))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(pairs, tasks=3, home=tmp_path, key_groups=16) as made:
        columns = {"ad": pa.string(), "page": pa.int64(), "at": pa.int64()}
        made.create("views", columns, time="at")
        more = {"of": pa.string(), "cost": pa.float64(), "at": pa.int64()}
        made.create("clicks", more, time="at")
        views = [{"ad": f"ad{n % 2}", "page": n, "at": 1000 * n} for n in range(20)]
        made.feed("views", views)
        made.feed("clicks", [{"of": "ad1", "cost": 0.5, "at": 19_000}])
        made.run()
        yield made


def state(driver: TestDriver, *words: object) -> list[dict[str, Any]]:
    text = done("state", *words, "--json", "--home", driver.home)
    return [json.loads(line) for line in text.splitlines()]


def test_rows_that_wait_for_partners_are_shown_with_their_times(driver: TestDriver) -> None:
    found = {row["store"]: row for row in state(driver, "ls", "pairs", "--count")}
    assert {name: (row["form"], row["entries"]) for name, row in found.items()} == {
        "j.left": ("rows", 11),  # those of the ten seconds before the watermark, 19 s
        "j.right": ("rows", 1),
    }
    right = state(driver, "scan", "pairs", "j.right")
    assert right == [{"__time": "1970-01-01T00:00:19+00:00", "of": "ad1", "cost": 0.5}]
    left = state(driver, "scan", "pairs", "j.left", "--where", "page > 17")
    assert sorted((row["ad"], row["page"]) for row in left) == [("ad0", 18), ("ad1", 19)]


def test_all_rows_of_a_key_are_got(driver: TestDriver) -> None:
    rows = state(driver, "get", "pairs", "j.left", "ad1")
    assert sorted(row["page"] for row in rows) == [9, 11, 13, 15, 17, 19]
    assert len(state(driver, "scan", "pairs", "j.left", "--prefix", "ad0")) == 5


def test_rows_are_not_compared_by_key(driver: TestDriver) -> None:
    before = driver.coordinator.state.epoch
    driver.feed("views", [{"ad": "ad0", "page": 99, "at": 100_000}])
    driver.run()
    words = ("state", "diff", "pairs", "j.left", before, before + 1, "--home", driver.home)
    assert "any number of rows of a key" in refused(*words)
