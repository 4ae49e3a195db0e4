"""A job goes from standalone to Spark and back, as if it had always been in one place."""

from __future__ import annotations

import fcntl

import pytest
from pyspark.sql import SparkSession
from tests.support.jobs import counting, model
from tests.support.runs import EpochSummary, JobControl, World, run_job, until

import headrace as hr

pytestmark = pytest.mark.spark


def open_elsewhere(world: World) -> list[str]:
    """Return the databases of this host that another process has open."""
    found = []
    for path in world.settings().state_dir.rglob("LOCK"):
        with path.open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(str(path))
    return found


def test_a_job_moves_between_standalone_and_spark(spark: SparkSession, world: World) -> None:
    """Each run is stopped where it stands; the next goes on from there, on the same stores."""
    world.feed(50)
    with hr.start(counting(), world.settings("control.enabled=false")):
        until(lambda: world.read_so_far("counting") == 100, "the first rows")
    homes = {task.host for task in world.state("counting").tasks.values()}

    world.feed(50)
    control = JobControl()

    def stop_at_the_end(summary: EpochSummary) -> None:
        if summary.lag == 0:
            control.stop.set()

    result = run_job(counting(), world.settings(), control=control, on_epoch=stop_at_the_end)
    assert result.rows == 100
    assert {task.host for task in world.state("counting").tasks.values()} == homes
    assert open_elsewhere(world) == []  # though the session stays, and its workers

    world.feed(50)
    result = hr.run(counting(), world.settings("job.bounded=true", "control.enabled=false"))
    assert (result.state.ended, result.rows, result.state.generation) == (True, 100, 3)
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []
