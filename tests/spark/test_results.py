"""A job with every kind of keyed state on real Spark, under both loops, against its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, model
from tests.spark.runs import World

from headrace.coordinator.summary import EpochSummary
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("loop", ["direct", "query"])
def test_bounded_run_comes_to_its_model(spark: SparkSession, world: World, loop: str) -> None:
    """Outputs and stores are those of one pass in plain Python, over several epochs."""
    world.feed(300)
    epochs: list[EpochSummary] = []
    settings = world.settings("job.bounded=true", f"spark.loop={loop}", "epoch.max_rows=200")
    result = run_job(counting(), settings, on_epoch=epochs.append)
    assert result.state.ended
    assert not result.interrupted
    assert sum(epoch.rows for epoch in epochs) == 600
    assert len([epoch for epoch in epochs if epoch.rows]) >= 3
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []


def test_both_loops_agree_record_by_record(spark: SparkSession, tmp_path: Path) -> None:
    """The loop only wakes the job: every output stream is the same, offset by offset."""
    found = []
    for loop in ("direct", "query"):
        world = World(tmp_path / loop / "home")
        world.feed(120)
        settings = world.settings("job.bounded=true", f"spark.loop={loop}", "epoch.max_rows=100")
        run_job(counting(), settings)
        found.append({name: world.rows(name) for name in ("counts", "windows", "totals")})
    assert found[0] == found[1]


def test_following_the_inputs_of_an_ended_job_changes_nothing(
    spark: SparkSession, world: World
) -> None:
    """Nothing is run, and nothing is published twice; only a bounded start begins another run."""
    world.feed(50)
    first = run_job(counting(), world.settings("job.bounded=true"))
    assert run_job(counting(), world.settings()).epochs == 0
    assert model(world.log) == world.found()
    again = run_job(counting(), world.settings("job.bounded=true"))
    assert (first.state.run, again.state.run, again.rows) == (1, 2, first.rows)
