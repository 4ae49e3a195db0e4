"""A window closes on a quiet stream of which one partition stays behind."""

from __future__ import annotations

from threading import Timer

import pytest
from pyspark.sql import SparkSession
from tests.support.runs import SOON_S, EpochSummary, JobControl, World, run_job

import headrace as hr

pytestmark = pytest.mark.spark


@hr.job("quiet")
def quiet(g: hr.Graph) -> None:
    events = g.input("events", time="at", idle="1s").partition_by("id")
    events.window(hr.tumbling("10s"), n=hr.agg.count()).send_to(g.output("windows"))


def test_a_window_closes_although_no_row_comes(spark: SparkSession, world: World) -> None:
    """The job wakes when the partition is idle, and reads nothing."""
    row = {"id": 7, "kind": "a", "v": 1}
    world.append(0, [row | {"at": 1_000}, row | {"at": 30_000}])
    world.append(1, [row | {"at": 2_000}])
    control, epochs = JobControl(), []

    def on_epoch(summary: EpochSummary) -> None:
        epochs.append(summary.rows)
        if summary.output_rows:
            control.stop.set()

    giving_up = Timer(SOON_S, control.stop.set)
    giving_up.start()
    try:
        run_job(quiet, world.settings(), control=control, on_epoch=on_epoch)
    finally:
        giving_up.cancel()
        giving_up.join()
    assert epochs == [3, 0]
    assert [row["n"] for row in world.rows("windows")] == [2]
