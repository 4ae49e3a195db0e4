"""SIGTERM in mid-epoch, and errors in the user's code: nothing of that epoch is seen."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, failing, model
from tests.spark.runs import Driver, World, until

from headrace.clock import SystemClock
from headrace.errors import InvalidInputError
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
