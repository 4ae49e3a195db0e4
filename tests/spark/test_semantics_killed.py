"""kill -9 of the driver of a job with at-least-once output: results twice, state exact."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, model
from tests.spark.runs import World, run_driver

from headrace.spark.run import run_job

pytestmark = pytest.mark.spark


def test_a_killed_driver_doubles_output_and_counts_once(spark: SparkSession, world: World) -> None:
    """It dies in its second epoch, whose rows are out already and whose manifest is not."""
    world.feed(300)
    sets = ["job.bounded=true", "epoch.max_rows=200", "job.output_semantics=at_least_once"]
    said = run_driver("counting", world, *sets, die_at=("commit.step_done", 3))
    assert said["code"] == -signal.SIGKILL, said["story"]
    before = world.state("counting")
    sent = len(world.rows("counts"))
    assert before.counts["in"] == 200
    assert sent == 400, "the rows of the second epoch are seen before it is committed"
    assert not before.outputs

    result = run_job(counting(), world.settings(*sets))

    assert result.state.ended
    assert 200 + result.rows == 600
    expected, found = model(world.log), world.found()
    assert found["store"] == expected["store"]
    twice = Counter(len(n) - len(set(n)) for n in found["counts"].values())
    assert sum(times * ids for times, ids in twice.items()) == 200
    assert {id_: sorted(set(n)) for id_, n in found["counts"].items()} == expected["counts"]
    assert set(found["windows"]) == set(expected["windows"])
    assert set(found["totals"]) == set(expected["totals"])
    assert world.leftovers("counting") == []
