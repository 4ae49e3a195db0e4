"""A job in parts on Spark: killed between two steps, and with one side that stands still."""

from __future__ import annotations

import signal
from functools import partial

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, model
from tests.spark.runs import Driver, World, run_driver, until

from headrace.spark.run import run_job

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("point", "nth"), [("feed.mark_published", 5), ("epoch.level_done", 5)])
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, world: World, point: str, nth: int
) -> None:
    """Both parts die with their process, one of them between two steps of an epoch."""
    world.feed(300)
    sets = ["job.bounded=true", "epoch.max_rows=200"]
    said = run_driver("parts", world, *sets, die_at=(point, nth))
    assert said["code"] == -signal.SIGKILL, said["story"]
    expected = model(world.log)
    assert 0 < world.state("counting").counts["in"] < 600
    result = run_job(counting(via="bus"), world.settings(*sets))
    assert result.state.ended
    assert result.state.counts["in"] == 600
    assert expected == world.found()


def _has_read(world: World, rows: int) -> bool:
    return world.read_so_far("counting") >= rows


def test_a_side_that_stands_still_does_not_hold_up_the_other(
    spark: SparkSession, world: World
) -> None:
    """While an epoch of one part waits, the other goes on, and it catches up later."""
    world.feed(100)
    with Driver("gated-parts", world) as driver:
        until(lambda: world.at_gate("count"), "a message came to the gate", driver)
        before = world.read_so_far("counting")
        for _ in range(2):
            world.feed(100)
            fed = sum(map(len, world.log))
            until(partial(_has_read, world, fed), "all was read", driver)
        assert before < world.read_so_far("counting")
        assert world.rows("totals")
        assert world.rows("windows") == []
        world.open_gate("count")
        until(lambda: world.rows("windows"), "windows came", driver)
        driver.terminate()
        assert driver.wait()["interrupted"]
    result = run_job(counting(via="bus"), world.settings("job.bounded=true"))
    assert result.state.ended
    assert model(world.log) == world.found()
