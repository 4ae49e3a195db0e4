"""kill -9 of a driver whose epochs commit to its own disk, with that disk and without."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import counting, model
from tests.spark.runs import World, run_driver

from headrace.config import Settings
from headrace.coordinator.backup.places import places
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark

SETS = ("job.bounded=true", "epoch.max_rows=100", "state.durability=backup(10ms)")


def kill_in_the_middle(world: World) -> tuple[Settings, int]:
    """Let a driver die after a few commits; returns the settings and the epoch of the copy."""
    world.feed(300)
    said = run_driver("counting", world, *SETS, die_at=("commit.published", 5))
    assert said["code"] == -signal.SIGKILL, said["story"]
    copied = world.state("counting")
    assert copied.copy_of
    assert copied.durability == "backup(10ms)"
    return world.settings(*SETS), copied.epoch


def at_least(expected: Iterable[Any], found: Iterable[Any]) -> bool:
    """Nothing is missing, and nothing is there that should not be."""
    held, wanted = Counter(found), Counter(expected)
    return held.keys() == wanted.keys() and all(held[key] >= n for key, n in wanted.items())


def test_a_lost_disk_steps_back_to_the_copy(spark: SparkSession, world: World) -> None:
    """State is as without a loss; outputs appear at least once; the end is in the copy."""
    settings, epoch = kill_in_the_middle(world)
    before = world.state("counting")
    shutil.rmtree(settings.state_dir)
    told: list[str] = []
    result = run_job(counting(), settings, on_notice=told.append)
    assert result.state.ended
    assert result.state.lineage != before.lineage
    assert before.counts.get("in", 0) + result.rows == 600
    assert any(f"goes on from the copy of epoch {epoch}" in line for line in told)
    expected, found = model(world.log), world.found()
    assert expected["store"] == found["store"]
    for stream in ("windows", "totals"):
        assert at_least(expected[stream], found[stream])
    for key, numbers in expected["counts"].items():
        assert at_least(numbers, found["counts"][key])
    assert result.state.digest == world.state("counting").copy_of


def test_a_disk_that_is_still_there_loses_and_doubles_nothing(
    spark: SparkSession, world: World
) -> None:
    """However far the copy was, and also without it."""
    settings, _ = kill_in_the_middle(world)
    away = world.job_dir("counting").rename(world.home / "away")
    told: list[str] = []
    result = run_job(counting(), settings, on_notice=told.append)
    assert result.state.ended
    assert "the job goes on" in told[0]
    away.rename(world.job_dir("counting"))
    run_job(counting(), world.settings(*SETS[1:]))  # nothing is left to do but to copy
    assert model(world.log) == world.found()
    assert places(settings, "counting").storage.is_relative_to(settings.state_dir)
