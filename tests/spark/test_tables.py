"""Tables on Spark: filled first, in small epochs, over two runs; and as of event time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.spark.runs import World

import headrace as hr
from headrace.coordinator.loop import Control
from headrace.coordinator.summary import EpochSummary
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark


@hr.job("tables")
def tables(g: hr.Graph) -> None:
    sides = g.input("events", time="at", lateness="5s").split(even=hr.col("v") % 2 == 0)
    evens, odds = (sides[name].partition_by("id") for name in ("even", "default"))
    held = evens.table(history="1d")
    asked = odds.join(held, how="left", columns={"w": "v"}, as_of="event")
    asked.map("id", "v", "at", "w").send_to(g.output("asked"))
    last = g.table("events", key="id", name="last", bootstrap=True)
    last.changes().map("id", "v", "is_deleted").send_to(g.output("changed"))


def held_at(row: dict[str, Any], evens: list[dict[str, Any]]) -> set[int | None]:
    """The values of the latest even rows of a key up to an odd row's time; of one time, any."""
    own = [one for one in evens if one["id"] == row["id"] and one["at"] <= row["at"]]
    latest = max((one["at"] for one in own), default=None)
    return {one["v"] for one in own if one["at"] == latest} or {None}


@pytest.mark.usefixtures("spark")
def test_rows_take_versions_of_their_own_time_over_two_runs(world: World) -> None:
    world.feed(150)
    control = Control()

    def stop_soon(summary: EpochSummary) -> None:
        if summary.epoch == 2:
            control.stop.set()

    run_job(tables, world.settings("epoch.max_rows=60"), control=control, on_epoch=stop_soon)
    result = run_job(tables, world.settings("epoch.max_rows=60", "job.bounded=true"))
    assert result.state.ended
    assert "late" not in result.state.counts
    rows = [row for part in world.log for row in part]
    changed = {row["id"]: row["v"] for row in world.rows("changed")}
    assert changed.keys() == {row["id"] for row in rows}
    odd, even = ([row for row in rows if row["v"] % 2 == part] for part in (1, 0))
    asked = world.rows("asked")
    assert Counter((r["id"], r["v"], r["at"]) for r in odd) == Counter(
        (r["id"], r["v"], r["at"]) for r in asked
    )
    assert all(row["w"] in held_at(row, even) for row in asked)
    assert any(row["w"] is not None for row in asked)
