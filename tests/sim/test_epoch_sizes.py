"""What is late and what a window holds depends on the log, not on where epochs are cut."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from tests.support.soak import more

import headrace as hr
from headrace.testing import TestDriver


@hr.job("chained")
def chained(g: Any) -> None:
    """Windows on windows, in one stage and across a repartition, with grace."""
    events = g.input("events", time="at", out_of_orderness="1s").partition_by("id")
    first = events.window(hr.tumbling("10s", allowed_lateness="20s"), n=hr.agg.count())
    first.send_to(g.output("first"))
    first.window(hr.tumbling("1m"), most=hr.agg.max("n")).send_to(g.output("same-stage"))
    first.partition_by("window_start").window(
        hr.tumbling("10s", allowed_lateness="5s"), most=hr.agg.max("n")
    ).send_to(g.output("next-stage"))


def _run(max_rows: int, *, bounded: bool) -> tuple[dict[str, Counter[Any]], dict[str, int]]:
    rng = random.Random(11)
    with TestDriver(chained, max_rows=max_rows, tasks=2) as driver:
        columns = {"id": pa.int64(), "at": pa.int64()}
        driver.create("events", columns, partitions=3, time="at", key=("id",))
        now = 1_000_000
        for _ in range(26):
            rows = []
            for _ in range(10):
                now += rng.randrange(2_000)
                rows.append({"id": rng.randrange(9), "at": now - rng.randrange(60_000)})
            driver.feed("events", rows)
            if not bounded:
                driver.run()
        driver.finish()
        streams = ("first", "same-stage", "next-stage")
        outputs = {
            stream: Counter(tuple(row.items()) for row in driver.output(stream))
            for stream in streams
        }
        return outputs, driver.coordinator.state.counts


@cache
def _undisturbed() -> tuple[dict[str, Counter[Any]], dict[str, int]]:
    return _run(1_000_000, bounded=True)


@pytest.mark.parametrize("max_rows", more([1_000, 9], [1_000, 70, 9]))
def test_results_do_not_depend_on_epochs(max_rows: int) -> None:
    """Streaming in epochs of any size equals one bounded run."""
    expected, counts = _undisturbed()
    assert counts["late"] > 0
    assert all(len(rows) > 10 for rows in expected.values())
    found, found_counts = _run(max_rows, bounded=False)
    assert expected == found
    assert counts == found_counts
