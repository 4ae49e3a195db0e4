"""kill -9 of a Python worker in mid-epoch: Spark runs its slot again, exactly once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, model, pass_gate
from tests.spark.runs import World, until
from tests.spark.story import story

from headrace.coordinator.summary import EpochSummary
from headrace.spark.run import run_job
from headrace.testing.processes import command, kill

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("loop", ["direct", "query"])
def test_a_killed_worker_is_replaced(spark: SparkSession, world: World, loop: str) -> None:
    """The dead attempt had changed its store and emitted; none of that is seen."""
    world.feed(200)
    epochs: list[EpochSummary] = []
    settings = world.settings("job.bounded=true", f"spark.loop={loop}", "epoch.max_rows=200")
    job = counting((3, 7), partial(pass_gate, world.gates, "count"))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_job, job, settings, on_epoch=epochs.append)
        until(lambda: world.at_gate("count") or running.done(), "a worker at the gate")
        (victim,) = world.at_gate("count")
        assert "pyspark" in command(victim)
        assert not running.done()
        committed = world.read_so_far("counting")
        kill(victim)
        world.open_gate("count")
        result = running.result(timeout=60)
    assert committed < 400, "the worker died after the last epoch with input"
    assert len(set(world.at_gate("count"))) == 2, "no other worker ran the slot again"
    assert result.state.ended
    assert sum(epoch.rows for epoch in epochs) == 400
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []
    told = [one for one in story(world, "counting") if one.startswith(f"process {victim} of")]
    assert ["goes on" in text for text in told] == [True]
