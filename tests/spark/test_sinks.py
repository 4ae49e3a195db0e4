"""Epochs of real slots go to files; the driver dies between its commit and the sink's."""

from __future__ import annotations

import fcntl
import signal

import polars as pl
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import filing
from tests.spark.runs import World, run_driver

import headrace as hr
from headrace.sinks.folder import control_folder
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("point", ["sink.sent", "sink.listed"])
def test_a_killed_driver_files_no_row_twice_and_none_not(
    spark: SparkSession, world: World, point: str
) -> None:
    world.feed(300)
    sets = ["job.bounded=true", "epoch.max_rows=150"]
    said = run_driver("filing", world, *sets, die_at=(point, 1))
    assert said["code"] == -signal.SIGKILL, said["story"]
    folder = world.gates / "filed"
    before = hr.sinks.committed_files(folder)
    result = run_job(filing(world.gates), world.settings(*sets))
    assert result.state.ended
    files = hr.sinks.committed_files(folder)
    assert files != before
    found = pl.concat([pl.read_parquet(path) for path in files])
    fed = pl.DataFrame([row for rows in world.log for row in rows])
    assert sorted(found.rows()) == sorted(fed.select(found.columns).rows())
    assert world.leftovers("filing") == []


def test_a_sink_that_is_away_at_the_start_is_waited_for(spark: SparkSession, world: World) -> None:
    """For so long, then it is an error; else until it is back, with a word that says so."""
    world.feed(60)
    folder = world.gates / "filed"
    control_folder(folder).mkdir(parents=True)
    sets = ["job.bounded=true", "state.disk_wait_s=1"]
    told: list[str] = []
    with (control_folder(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(hr.sinks.ReceiverAwayError, match="another driver is writing to"):
            run_job(filing(world.gates), world.settings(*sets), on_notice=told.append)

        def come_back(line: str) -> None:
            told.append(line)
            fcntl.flock(lock, fcntl.LOCK_UN)

        result = run_job(filing(world.gates), world.settings(sets[0]), on_notice=come_back)
    assert result.state.ended
    found = sum(pl.read_parquet(path).height for path in hr.sinks.committed_files(folder))
    assert found == sum(map(len, world.log))
    assert told[0].endswith("the job waits for an answer, for 1 s at most")
    assert told[1].endswith("the job waits for an answer")
    assert told[2].startswith("there is an answer again after")
