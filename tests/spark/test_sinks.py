"""Epochs of real slots go to files; the driver dies between its commit and the sink's."""

from __future__ import annotations

import signal

import polars as pl
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import filing
from tests.spark.runs import World, run_driver

import headrace as hr
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
