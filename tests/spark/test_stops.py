"""SIGTERM in mid-epoch, and errors in the user's code: nothing of that epoch is seen."""

from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
from pyspark.sql import SparkSession
from tests.spark.beside import Beside
from tests.support.jobs import counting, failing, model, pass_gate
from tests.support.runs import Driver, World, on_spark, run_job, until

from headrace.errors import InvalidInputError, NotOwnerError, UnavailableError, UserFunctionError
from headrace.testing import crash_at

pytestmark = pytest.mark.spark

POISON = 99


def test_sigterm_in_a_stuck_epoch_drops_it(spark: SparkSession, world: World) -> None:
    """The driver ends in time although a user's function does not; the next run does it all."""
    world.feed(200)
    sets = ["job.bounded=true", "epoch.max_rows=250"]
    with Driver("gated", world, *sets, limits={"stop_grace_s": 1}) as driver:
        until(lambda: world.at_gate("count"), "a message at the gate", driver)
        committed = world.read_so_far("counting")
        named = f"already driven by process {driver.process.pid} on this host"
        with pytest.raises(NotOwnerError, match=named):
            on_spark(counting(), world.settings(*sets))
        driver.terminate()
        said = driver.wait()
    assert committed == world.read_so_far("counting"), "the function went on when its gate gave up"
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


def test_the_epoch_under_way_is_ended_and_committed(spark: SparkSession, world: World) -> None:
    """One that can end is not dropped; the run returns without an error."""
    world.feed(200)
    job = counting((3, 5), partial(pass_gate, world.gates, "count"))
    with Beside(job, world.settings()) as running:
        running.until(lambda: world.at_gate("count"), "a message at the gate")
        assert world.read_so_far("counting") == 0
        running.epochs.stop()
        world.open_gate("count")
        assert running.result().interrupted
    assert running.epochs.rows == [400]
    result, _ = on_spark(counting(), world.settings("job.bounded=true"))
    assert result.rows == 0
    assert model(world.log) == world.found()


def test_an_error_of_the_users_code_is_told_as_it_was(spark: SparkSession, world: World) -> None:
    """The job stops with the user's error and no word of Java; mended, it goes on."""
    world.feed(150)
    world.append(1, [{**world.log[1][-1], "id": POISON}])
    sets = ["job.bounded=true", "epoch.max_rows=100"]
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


@pytest.mark.soak
def test_a_recovery_that_stands_still_ends_in_an_error(spark: SparkSession, world: World) -> None:
    """A segment that cannot be opened: a pipe that nobody writes to stands for the disk."""
    world.feed(200)
    sets = ("job.bounded=true", "epoch.max_rows=200")
    with crash_at("epoch.planned", 2):
        on_spark(counting(), world.settings(*sets))
    (victim, *_) = sorted(
        path for path in world.state("counting").files() if path.startswith("segment/")
    )
    segment = world.job_dir("counting") / victim
    kept = segment.rename(world.home / "kept")
    os.mkfifo(segment)
    shutil.rmtree(world.settings().state_dir)
    try:
        with pytest.raises(UnavailableError, match="has not moved for 2 s, at ") as error:
            on_spark(counting(), world.settings(*sets, "state.recovery_timeout_s=2"))
    finally:
        os.close(os.open(segment, os.O_WRONLY | os.O_NONBLOCK))  # the worker may end
    assert str(segment) in str(error.value)
    segment.unlink()
    kept.rename(segment)
    result, _ = on_spark(counting(), world.settings(*sets))
    assert result.state.ended
    assert model(world.log) == world.found()
