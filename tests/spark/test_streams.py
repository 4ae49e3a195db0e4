"""Streams that come while a job runs, and one that is compacted under it, on real Spark."""

from __future__ import annotations

from threading import Timer

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.jobs import SCHEMA
from tests.support.runs import SOON_S, EpochSummary, JobControl, World, run_job

import headrace as hr
from headrace.bus import StreamSpec

pytestmark = pytest.mark.spark


@hr.job("alarms")
def alarms(g: hr.Graph) -> None:
    errors = g.input("errors.*").partition_by("id")
    errors.aggregate(n=hr.agg.count()).send_to(g.output("alarms"))


def test_a_job_wakes_for_a_stream_that_comes(spark: SparkSession, world: World) -> None:
    """Also where the job is idle; a stream that is compacted meanwhile gives every row once."""

    def come(name: str) -> None:
        spec = StreamSpec(name, 2, SCHEMA, "at", ("id",), compact=True)
        stream = world.bus.create(spec)
        for at in range(5):
            rows = [{"id": 1, "kind": "a", "v": 1, "at": at + 1}]
            stream.append(1, pa.RecordBatch.from_pylist(rows, SCHEMA))

    come("errors.a")
    control, rows = JobControl(), []

    def on_epoch(summary: EpochSummary) -> None:
        rows.append(summary.rows)
        world.bus.stream("errors.a").compact(1)
        if "errors.b" not in world.bus.names():
            come("errors.b")
        if sum(rows) >= 10:
            control.stop.set()

    giving_up = Timer(SOON_S, control.stop.set)
    giving_up.start()
    try:
        run_job(alarms, world.settings(), control=control, on_epoch=on_epoch)
    finally:
        giving_up.cancel()
        giving_up.join()
    assert rows == [5, 5]
    assert max(row["n"] for row in world.rows("alarms")) == 10
    assert world.state("alarms").inputs.keys() == {"errors.all:errors.a", "errors.all:errors.b"}
