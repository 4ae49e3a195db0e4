"""kill -9 of a Python worker in mid-epoch: Spark runs its slot again, exactly once."""

from __future__ import annotations

from functools import partial

import pytest
from pyspark.sql import SparkSession
from tests.spark.beside import Beside
from tests.spark.story import story
from tests.support.jobs import counting, model, pass_gate
from tests.support.processes import command, kill
from tests.support.runs import World

pytestmark = pytest.mark.spark


def test_a_killed_worker_is_replaced(spark: SparkSession, world: World) -> None:
    """The dead attempt had changed its store and emitted; none of that is seen."""
    world.feed(200)
    settings = world.settings("job.bounded=true", "epoch.max_rows=200")
    job = counting((3, 7), partial(pass_gate, world.gates, "count"))
    with Beside(job, settings) as running:
        running.until(lambda: world.at_gate("count"), "a worker at the gate")
        (victim,) = world.at_gate("count")
        assert "pyspark" in command(victim)
        assert not running.is_over
        committed = world.read_so_far("counting")
        kill(victim)
        world.open_gate("count")
        result = running.result()
    assert committed < 400, "the worker died after the last epoch with input"
    assert len(set(world.at_gate("count"))) == 2, "no other worker ran the slot again"
    assert result.state.ended
    assert sum(running.epochs.rows) == 400
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []
    told = [one for one in story(world, "counting") if one.startswith(f"process {victim} of")]
    assert ["continues" in text for text in told] == [True]
