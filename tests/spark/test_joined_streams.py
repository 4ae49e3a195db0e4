"""A join of streams on Spark: in small epochs over two runs, against all pairs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.spark.runs import World

import headrace as hr
from headrace.coordinator.loop import Control
from headrace.coordinator.summary import EpochSummary
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark

WITHIN_S = 12


@hr.job("pairs")
def pairs(g: hr.Graph) -> None:
    sides = g.input("events", time="at", lateness="5s").split(even=hr.col("v") % 2 == 0)
    left, right = (sides[name].partition_by("id") for name in ("even", "default"))
    joined = left.join(right, within=f"{WITHIN_S}s", how="full", columns={"w": "v", "then": "at"})
    joined.map("id", "v", "w", "at", "then").send_to(g.output("pairs"))


def wanted(log: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    left = [(n, row) for n, row in enumerate(log) if row["v"] % 2 == 0]
    right = [(n, row) for n, row in enumerate(log) if row["v"] % 2]
    found: list[tuple[Any, ...]] = []
    paired: set[int] = set()
    for (n, one), (m, other) in itertools.product(left, right):
        apart = abs(one["at"] - other["at"])
        if one["id"] == other["id"] and apart <= WITHIN_S * 1000:
            found.append((one["id"], one["v"], other["v"], one["at"], other["at"]))
            paired |= {n, m}
    found += [(r["id"], r["v"], None, r["at"], None) for n, r in left if n not in paired]
    return found + [(r["id"], None, r["v"], None, r["at"]) for n, r in right if n not in paired]


@pytest.mark.usefixtures("spark")
def test_two_runs_find_all_pairs_and_all_rows_alone(world: World) -> None:
    world.feed(150)
    control = Control()

    def stop_soon(summary: EpochSummary) -> None:
        if summary.epoch == 2:
            control.stop.set()

    run_job(pairs, world.settings("epoch.max_rows=60"), control=control, on_epoch=stop_soon)
    result = run_job(pairs, world.settings("epoch.max_rows=60", "job.bounded=true"))
    assert result.state.ended
    assert "late" not in result.state.counts
    found = [tuple(row.values()) for row in world.rows("pairs")]
    expected = wanted([row for rows in world.log for row in rows])
    assert sorted(expected, key=str) == sorted(found, key=str)
    alone = sum(row[1] is None or row[2] is None for row in found)
    assert 0 < alone < len(found)
