"""A job that runs on Spark is given another number of tasks, and goes on where it was."""

from __future__ import annotations

import json

import pytest
from tests.spark.beside import Beside
from tests.support.cli import done, refused
from tests.support.jobs import counting, model
from tests.support.runs import World, on_spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_a_running_job_is_rescaled(world: World) -> None:
    """Up while it runs, down when it has stopped; the same driver and the same Spark go on."""
    world.feed(200)
    with Beside(counting(), world.settings()) as driver:
        driver.until(lambda: world.read_so_far("counting") == 400, "the first records")
        before = world.state("counting")
        held = done("state", "scan", "counting", "n", "--json", "--home", world.home)
        assert sum(json.loads(line)["value"] for line in held.splitlines()) == 400
        words = ("jobs", "rescale", "counting", "--tasks", 5, "--wait", 60)
        told = json.loads(done(*words, "--json", "--home", world.home))
        assert set(told["before"].values()) == {3}
        assert set(told["tasks"].values()) == {5}
        world.feed(200)
        driver.until(lambda: world.read_so_far("counting") == 800, "the records after")
        state = world.state("counting")
        assert state.generation == before.generation
        assert state.lineage != before.lineage
        assert len(state.tasks) == sum(state.task_counts.values())
        assert driver.stop().interrupted
    text = done("jobs", "rescale", "counting", "--tasks", 2, "--home", world.home)
    assert "5 to 2 tasks, epoch" in text
    world.feed(100)
    result, _ = on_spark(counting(), world.settings("job.bounded=true"))
    assert result.state.ended
    assert set(result.state.task_counts.values()) == {2}
    assert model(world.log) == world.found()
    left = world.leftovers("counting")
    assert [name for name in left if "/.merge-" not in name] == []  # of processes that ended


def test_what_cannot_be_is_refused_before_anybody_is_asked(world: World) -> None:
    world.feed(20)
    on_spark(counting(), world.settings("job.bounded=true", "job.key_groups=8"))
    words = ("jobs", "rescale", "counting", "--home", world.home, "--tasks")
    assert "found 9 tasks, expected 1 to 8" in refused(*words, 9)
    assert "no keyed stage 'x'" in refused(*words, 2, "--stage", "x")
    assert "has 3 tasks already" in done(*words, 3)
