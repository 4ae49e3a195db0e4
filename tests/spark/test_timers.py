"""A quiet stream whose timer of the wall clock is due: the job wakes by itself."""

from __future__ import annotations

from threading import Timer

import pytest
from pyspark.sql import SparkSession
from tests.support.jobs import reminding
from tests.support.runs import SOON_S, EpochSummary, JobControl, World, run_job

pytestmark = pytest.mark.spark

DELAY_MS = 1500


def test_a_timer_fires_on_an_idle_stream(spark: SparkSession, world: World) -> None:
    """Nothing is fed after the start; the epoch that fires the timers reads no record."""
    world.feed(40)
    control, epochs = JobControl(), []

    def on_epoch(summary: EpochSummary) -> None:
        epochs.append(summary)
        if summary.output_rows:
            control.stop.set()

    giving_up = Timer(SOON_S, control.stop.set)
    giving_up.start()
    try:
        result = run_job(
            reminding(DELAY_MS),
            world.settings(),
            control=control,
            on_epoch=on_epoch,
        )
    finally:
        giving_up.cancel()
        giving_up.join()
    assert result.interrupted
    assert [epoch.rows for epoch in epochs] == [80, 0]
    reminders = world.rows("reminders")
    fed = {row["id"] for rows in world.log for row in rows}
    assert sorted(fed) == sorted(row["id"] for row in reminders)
    read_at = {row["due"] - DELAY_MS for row in reminders}
    assert len(read_at) == 1, "the epoch that set the timers had one clock"
    assert result.state.time_ms >= read_at.pop() + DELAY_MS
    assert result.state.tasks
    assert all(task.wall_deadline is None for task in result.state.tasks.values())
