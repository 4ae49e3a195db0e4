"""A worker of Spark's that may write no more: a clear error, and nothing lost once it may again."""

from __future__ import annotations

import errno
import os

import pytest
from pyspark.sql import SparkSession
from tests.support.jobs import counting, model
from tests.support.runs import World, on_spark, run_driver

pytestmark = pytest.mark.spark

BOUNDED = ("job.bounded=true", "epoch.max_rows=100")


@pytest.mark.soak
def test_a_worker_that_may_write_no_more(spark: SparkSession, world: World) -> None:
    """The limit of the system on a file's size stands for a disk: writes stop in the middle."""
    world.feed(300)
    said = run_driver("limited", world, *BOUNDED)
    assert said["error"] == "UnavailableError", said
    assert os.strerror(errno.EFBIG) in said["message"]
    assert "jobs/counting/segment/" in said["message"]
    assert "java" not in said["message"].lower()
    assert 0 < sum(said["rows"]) < 600
    assert len(world.rows("counts")) == sum(said["rows"]) == world.read_so_far("counting")
    result, _ = on_spark(counting(), world.settings(*BOUNDED))
    assert result.state.ended
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []
