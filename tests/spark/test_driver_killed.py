"""kill -9 of the driver in mid-epoch, and a new driver: as if nothing had happened."""

from __future__ import annotations

import signal

import pytest
from pyspark.sql import SparkSession
from tests.spark.story import story
from tests.support.jobs import counting, model
from tests.support.runs import World, run_driver, run_job
from tests.support.soak import more

pytestmark = pytest.mark.spark

# The pass of the point that falls into the second of three epochs with input.
DEATHS = [("commit.published", 2), ("epoch.level_done", 3)]


@pytest.mark.parametrize(("point", "nth"), more(DEATHS[:1], DEATHS))
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, world: World, point: str, nth: int
) -> None:
    """The next driver ends the job, its outputs and its stores as the model has them."""
    world.feed(300)
    sets = ["job.bounded=true", "epoch.max_rows=200"]
    said = run_driver("counting", world, *sets, die_at=(point, nth))
    assert said["code"] == -signal.SIGKILL, said["story"]
    expected = model(world.log)
    before = world.state("counting")
    assert not before.ended
    assert 0 < before.counts["in"] < 600
    assert expected != world.found()
    if point == "commit.published":
        assert before.outputs, "died where nothing was left to publish"
    result = run_job(counting(), world.settings(*sets))
    assert result.state.ended
    assert before.counts["in"] + result.rows == 600
    assert result.state.generation == before.generation + 1
    assert expected == world.found()
    assert world.leftovers("counting") == []
    begun = [text for text in story(world, "counting") if text.startswith("a driver began")]
    assert [text.partition(",")[0] for text in begun] == [
        f"a driver began: generation {before.generation + n}" for n in range(2)
    ]
