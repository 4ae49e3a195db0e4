"""Two drivers of one job: the second is refused, or, out of the lock's reach, the first is."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, model
from tests.spark.runs import Driver, World, run_driver, until

from headrace.errors import NotOwnerError
from headrace.faults import injected
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark


def freeze(driver: Driver, world: World) -> bool:
    """Freeze a driver; not while it appends, for then the stream stays locked until it wakes."""
    driver.process.send_signal(signal.SIGSTOP)
    for path in (world.home / "bus").rglob("lock"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                driver.process.send_signal(signal.SIGCONT)
                return False
    return True


def test_the_second_driver_of_a_host_is_refused(spark: SparkSession, world: World) -> None:
    """It names the process that drives the job, and disturbs nothing."""
    world.feed(100)
    with Driver("gated", world, "job.bounded=true") as first:
        until(lambda: world.at_gate("count"), "a message at the gate", first)
        generation = world.state("counting").generation
        with pytest.raises(NotOwnerError, match=f"process {first.process.pid} on this host"):
            run_job(counting(), world.settings("job.bounded=true"))
        world.open_gate("count")
        said = first.wait()
    assert said["ended"], first.story
    assert generation == world.state("counting").generation
    assert model(world.log) == world.found()


def test_of_two_drivers_started_at_once_one_is_refused(world: World) -> None:
    """Whichever comes first drives; the other says who does, and nothing is doubled."""
    world.feed(100)
    bounded = "job.bounded=true"
    with Driver("gated", world, bounded) as one, Driver("gated", world, bounded) as two:
        until(lambda: not (one.running() and two.running()), "one to be refused")
        refused, driving = (two, one) if one.running() else (one, two)
        assert driving.running()
        answer = refused.wait()
        assert answer["error"] == "NotOwnerError"
        assert f"process {driving.process.pid} on this host" in answer["message"]
        until(lambda: world.at_gate("count"), "a message at the gate", driving)
        world.open_gate("count")
        said = driving.wait()
    assert said["ended"], driving.story
    assert model(world.log) == world.found()


@pytest.mark.parametrize("point", ["epoch.before_commit", "commit.written"])
def test_the_older_of_two_hosts_drivers_stops(
    spark: SparkSession, world: World, point: str
) -> None:
    """A newer driver with stores of its own takes over just before the older one commits."""
    world.feed(150)
    sets = ["job.bounded=true", "epoch.max_rows=100"]
    taken: list[Mapping[str, Any]] = []

    def take_over(name: str) -> None:
        if name == point and not taken and world.read_so_far("counting"):
            elsewhere = f"state.dir={world.home.parent / 'elsewhere'}"
            how = {"unlocked": True, "takes_over": True}
            taken.append(run_driver("counting", world, *sets, elsewhere, **how))

    with (
        mock.patch("headrace.spark.run.DriverLock"),  # as on two hosts: not the same lock
        injected(take_over, (point,)),
        pytest.raises(NotOwnerError, match="generation 2"),
    ):
        run_job(counting(), world.settings(*sets))
    (newer,) = taken
    assert newer["ended"], newer
    assert 0 < sum(newer["rows"]) < 300
    state = world.state("counting")
    assert (state.generation, state.ended) == (2, True)
    assert model(world.log) == world.found()
    run_job(counting(), world.settings(*sets, "job.replace_outputs=true"))  # its next run
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []


def test_a_driver_that_waits_for_input_is_taken_over(world: World) -> None:
    """It finds that by itself, and ends; nothing is doubled, and the story names both."""
    world.feed(100)
    with Driver("counting", world) as first:
        until(lambda: world.read_so_far("counting") == 200, "all to be read", first)
        refused = run_driver("counting", world)
        assert refused["error"] == "NotOwnerError"
        assert f"process {first.process.pid} on this host" in refused["message"]
        world.feed(50)
        newer = run_driver("counting", world, "job.bounded=true", takes_over=True)
        older = first.wait()
    assert newer["ended"], newer["story"]
    assert older["error"] == "NotOwnerError", first.story
    assert "taken over by generation" in older["message"]
    assert model(world.log) == world.found()
    told = [text for text in world.events("counting") if "is taken over from" in text]
    assert [f"process {first.process.pid} on" in text for text in told] == [True]
    assert "the driver stopped, for another one has taken over" in world.events("counting")


def test_a_frozen_driver_is_taken_over_and_changes_nothing_when_it_wakes(world: World) -> None:
    """Its lock is taken away, and its lease; awake again it is refused."""
    world.feed(100)
    with Driver("counting", world) as first:
        until(lambda: world.read_so_far("counting") == 200, "all to be read", first)
        until(lambda: freeze(first, world), "the driver to be frozen between appends", first)
        try:
            world.feed(50)
            elsewhere = f"state.dir={world.home.parent / 'elsewhere'}"
            newer = run_driver("counting", world, "job.bounded=true", elsewhere, takes_over=True)
            found = world.found()
        finally:
            first.process.send_signal(signal.SIGCONT)
        older = first.wait()
    assert newer["ended"], newer["story"]
    assert older["error"] == "NotOwnerError", first.story
    assert model(world.log) == found == world.found()
    assert any("which did not let go" in text for text in world.events("counting"))
