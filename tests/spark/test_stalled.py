"""A disk that does not answer while stores are brought back: an error with its place, no hang."""

from __future__ import annotations

import os
import shutil

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, model
from tests.spark.runs import World, run_driver

from headrace.spark.run import run_job

pytestmark = pytest.mark.spark

SETS = ("job.bounded=true", "epoch.max_rows=200")


def test_a_recovery_that_stands_still_ends_in_an_error(spark: SparkSession, world: World) -> None:
    """A segment that cannot be opened: a pipe that nobody writes to stands for the disk."""
    world.feed(200)
    said = run_driver("counting", world, *SETS, die_at=("epoch.planned", 2))
    assert said["code"] < 0
    state = world.state("counting")
    (victim, *_) = sorted(path for path in state.files() if path.startswith("segment/"))
    segment = world.job_dir("counting") / victim
    kept = segment.rename(world.home / "kept")
    os.mkfifo(segment)
    shutil.rmtree(world.settings().state_dir)
    said = run_driver("counting", world, *SETS, "state.recovery_timeout_s=2")
    assert said["error"] == "RecoveryStalledError", said
    assert "has not moved for 2 s, at " in said["message"]
    assert str(segment) in said["message"]
    segment.unlink()
    kept.rename(segment)
    result = run_job(counting(), world.settings(*SETS))
    assert result.state.ended
    assert model(world.log) == world.found()
