"""``jobs describe`` lists sinks with what they have committed, whatever died when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import CONFIRMED_FILE
from tests.support.cli import done

import headrace as hr
from headrace.testing import TestDriver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    @hr.job("lake")
    def lake(g: Any) -> None:
        orders = g.input("orders")
        orders.send_to(hr.sinks.json_lines(tmp_path / "all"))
        large = orders.filter(hr.col("n") > 10)
        large.send_to(hr.sinks.csv(tmp_path / "large"), name="large")

    with TestDriver(lake, home=tmp_path / "home", memory_bus=False) as made:
        made.create("orders", {"n": pa.int64()})
        yield made


def sinks(driver: TestDriver) -> dict[str, tuple[int, int, int]]:
    told = json.loads(done("jobs", "describe", "lake", "--json", "--home", driver.home))
    found = told["sinks"]
    assert all(one["promise"].startswith("exactly-once") for one in found)
    return {one["operator"]: (one["rows"], one["epoch"], one["waiting"]) for one in found}


def test_rows_and_epochs_of_each_sink_are_told(driver: TestDriver, tmp_path: Path) -> None:
    driver.feed("orders", [{"n": 1}, {"n": 20}])
    driver.run()
    driver.feed("orders", [{"n": 2}])
    driver.run()

    assert sinks(driver) == {"orders.to_all": (3, 2, 0), "large": (1, 2, 0)}
    text = done("jobs", "describe", "lake", "--home", driver.home)
    (line,) = [line for line in text.splitlines() if line.startswith("large")]
    assert str(tmp_path / "large") in line
    assert line.split()[-3:] == ["1", "2", "0"]
    assert "sink." not in text


@pytest.mark.parametrize("point", ["commit.published", "sink.committed"])
def test_what_a_sink_has_not_confirmed_waits(driver: TestDriver, point: str) -> None:
    driver.feed("orders", [{"n": 1}])
    driver.run()
    driver.feed("orders", [{"n": 20}, {"n": 30}])
    assert driver.advance_with_crash(point)

    assert driver.storage.joinpath(CONFIRMED_FILE).exists()  # of the epoch before
    assert sinks(driver) == {"orders.to_all": (1, 1, 2), "large": (0, 1, 2)}

    driver.run()
    assert sinks(driver) == {"orders.to_all": (3, 2, 0), "large": (2, 2, 0)}


def test_a_rewind_takes_the_counts_back(driver: TestDriver) -> None:
    for n in (1, 2, 3):
        driver.feed("orders", [{"n": n}])
        driver.run()
    driver.crash()
    done("jobs", "rewind", "lake", "--to", "1", "--home", driver.home)

    assert sinks(driver)["orders.to_all"][0] == 1
    driver.run()
    assert sinks(driver)["orders.to_all"][0] == 3
