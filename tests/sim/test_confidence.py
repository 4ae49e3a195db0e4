"""A lateness that follows the delays: the same records are late for any epochs and crashes."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "at": pa.int64()}


@hr.job("followed")
def followed(g: Any) -> None:
    lateness = hr.confidence(0.9, first="4s")
    events = g.input("events", time="at", out_of_orderness=lateness).partition_by("id")
    events.window(hr.tumbling("2s"), n=hr.agg.count()).send_to(g.output("windows"))


def _run(max_rows: int = 100_000, point: str = "") -> tuple[Counter[Any], int]:
    rng = random.Random(3)
    with TestDriver(followed, tasks=2, max_rows=max_rows) as driver:
        driver.create("events", COLUMNS, partitions=2, time="at")
        now = 1_000_000
        for number in range(9):
            rows = []
            for _ in range(60):
                now += rng.randrange(200)
                rows.append({"id": rng.randrange(3), "at": now - int(rng.expovariate(0.001))})
            driver.feed("events", rows, partition=number % 2)
            if point and number % 3 == 2:
                assert driver.advance_with_crash(point)
            driver.run()
        driver.finish()
        found = Counter(
            (row["id"], row["window_start"], row["n"]) for row in driver.output("windows")
        )
        return found, driver.coordinator.state.counts["late"]


@cache
def _undisturbed() -> tuple[Counter[Any], int]:
    return _run()


def test_the_size_of_epochs_changes_nothing() -> None:
    expected = _undisturbed()
    windows, late = expected
    assert late > 0
    assert sum(n * times for (*_, n), times in windows.items()) == 540 - late
    assert expected == _run(19)


@pytest.mark.parametrize("point", ["slot.ran", "epoch.before_commit", "commit.published"])
def test_counts_of_delays_survive_a_crash(point: str) -> None:
    assert _undisturbed() == _run(50, point)
