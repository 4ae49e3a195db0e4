"""SIGTERM in mid-epoch, and errors in the user's code: nothing of that epoch is seen."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, failing, model
from tests.spark.runs import Driver, World, until

from headrace.cli.running.ways import Way
from headrace.clock import SystemClock
from headrace.control.stillness import still
from headrace.coordinator.changes.requests import cut_request, cuts
from headrace.coordinator.loop import Control
from headrace.coordinator.running.course import Listeners
from headrace.coordinator.story import MERGING, RESUMED, StoryLog
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.spark.run import run_job
from headrace.task.messages.calls import UserFunctionError

pytestmark = pytest.mark.spark

END_S = 10.0
POISON = 99


def test_sigterm_in_a_stuck_epoch_drops_it(spark: SparkSession, world: World) -> None:
    """The driver ends in time although a user's function does not; the next run does it all."""
    world.feed(200)
    sets = ["job.bounded=true", "spark.loop=direct", "epoch.max_rows=250"]
    clock = SystemClock()
    with Driver("gated", world, *sets) as driver:
        until(lambda: world.at_gate("count"), "a message at the gate", driver)
        committed = world.read_so_far("counting")
        began = clock.monotonic()
        driver.terminate()
        said = driver.wait()
        took = clock.monotonic() - began
    assert took < END_S
    assert said["code"] == 0, driver.story
    assert said["interrupted"]
    assert not said["ended"]
    assert committed < 400, "the signal came after the last epoch with input"
    assert world.read_so_far("counting") == committed
    result = run_job(counting(), world.settings(*sets))
    assert result.state.ended
    assert result.rows == 400 - committed
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []


def test_sigterm_ends_the_epoch_under_way(spark: SparkSession, world: World) -> None:
    """An epoch that can end is committed, not dropped; the run returns without an error."""
    world.feed(200)
    with Driver("gated", world, "spark.loop=query") as driver:
        until(lambda: world.at_gate("count"), "a message at the gate", driver)
        assert world.read_so_far("counting") == 0
        driver.terminate()
        world.open_gate("count")
        said = driver.wait()
    assert said["code"] == 0, driver.story
    assert said["interrupted"]
    assert said["rows"] == [400]
    result = run_job(counting(), world.settings("job.bounded=true"))
    assert result.rows == 0
    assert model(world.log) == world.found()


@pytest.mark.parametrize("loop", ["direct", "query"])
def test_an_error_of_the_users_code_is_told_as_it_was(
    spark: SparkSession, world: World, loop: str
) -> None:
    """The job stops with the user's error and no word of Java; mended, it goes on."""
    world.feed(150)
    world.append(1, [{**world.log[1][-1], "id": POISON}])
    sets = ["job.bounded=true", f"spark.loop={loop}", "epoch.max_rows=100"]
    with pytest.raises(UserFunctionError) as caught:
        run_job(failing(POISON), world.settings(*sets))
    error = caught.value
    assert isinstance(error, InvalidInputError)
    assert error.fields["operator"] == "checked"
    assert f"raised ValueError: cannot take id {POISON}" in str(error)
    assert f"on message Message(id={POISON}" in str(error)
    told = str(error) + "".join(error.__notes__)
    assert "jobs.py" in told
    assert "py4j" not in told
    assert "java" not in told.lower()

    committed = world.state("failing")
    assert 100 <= committed.counts["in"] < 301
    assert len(world.rows("counts")) == committed.counts["in"]
    result = run_job(failing(-1), world.settings(*sets))
    assert result.state.ended
    expected = model(world.log)
    assert expected["store"] == world.store("failing", "n")
    assert expected["counts"] == world.counts()
    assert world.leftovers("failing") == []


def test_a_job_under_a_query_is_still_while_somebody_merges_into_it(
    spark: SparkSession, world: World
) -> None:
    """It has no API, so it is asked by its files; and goes on by itself when that is over."""
    world.feed(20)
    settings = world.settings("spark.loop=query", "control.enabled=false")
    control, clock, files = Control(), SystemClock(), Files(sync=False)
    given = (counting(), settings, world.bus, control, Listeners(), clock, lambda drives: None)
    running = threading.Thread(target=Way().run, args=given)
    running.start()
    try:
        until(lambda: world.read_so_far("counting") == 40, "the first rows")
        with still(settings, "counting", "old", world.bus, files, clock, 60.0):
            world.feed(20)
            for _ in range(3):  # each is answered between two batches
                cuts(world.job_dir("counting"), files, clock).ask(cut_request(clock), 60.0)
            assert world.read_so_far("counting") == 40
        until(lambda: world.read_so_far("counting") == 80, "the rows that came meanwhile")
        control.finish.set()
        until(lambda: not running.is_alive(), "the end of the run")
    finally:
        control.stop.set()
        running.join(60)
    told = [(one.kind, one.text) for one in StoryLog(world.job_dir("counting")).read()]
    assert [one for one in told if one in (MERGING, RESUMED)] == [MERGING, RESUMED]
    assert model(world.log) == world.found()
