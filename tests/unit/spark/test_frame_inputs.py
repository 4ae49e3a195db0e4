"""Inputs that are DataFrames, where there is no Spark."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructType, TimestampType, VariantType

import headrace as hr
from headrace.bus.file import FileBus
from headrace.clock import SystemClock
from headrace.config import load_settings
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_run import JobRun
from headrace.coordinator.job_storage import JobContext
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.operators import Input
from headrace.plan import explain, plan
from headrace.spark.dataframe_inputs import DataFrameFeeds
from headrace.spark.dataframes import _settings as frame_settings
from headrace.spark.run import run_job
from headrace.testing import TestDriver

LOCK = threading.Lock()


@hr.job("framed")
def framed(g: hr.Graph) -> None:
    def make(spark: object) -> object:
        return LOCK  # which cannot travel

    rows = g.input_dataframe("rows", make, schema={"k": str, "v": int})
    rows.partition_by("k").aggregate(total=hr.agg.sum("v")).send_to(g.output("totals"))


def test_a_test_feeds_the_internal_stream() -> None:
    with TestDriver(framed) as driver:
        driver.create("framed.rows.dataframe", {"k": pa.string(), "v": pa.int64()})
        driver.feed("framed.rows.dataframe", [{"k": "a", "v": 2}, {"k": "a", "v": 3}])
        driver.run()
        assert driver.output("totals")[-1] == {"k": "a", "total": 5}


def test_the_function_stays_with_the_driver() -> None:
    source = framed.build().operator("rows")
    assert isinstance(source, Input)
    assert source.frame is not None
    assert source.frame.make is not None
    assert pickle.loads(pickle.dumps(source.frame)).make is None


def test_explain_says_where_the_rows_come_from() -> None:
    text = explain(plan(framed.build(), {}))
    assert "input framed.rows.dataframe" in text
    assert "internal stream of a Spark DataFrame" in text


def test_a_run_without_spark_is_refused(tmp_path: Path) -> None:
    settings = load_settings(None, [f"home={tmp_path}"], {})
    with FileBus(settings.bus_dir) as bus:
        context = JobContext(settings, framed.name, bus, Files(sync=False), SystemClock())
        course = JobRun(context, JobControl())
        with pytest.raises(InvalidInputError, match="'rows' of job 'framed' is a Spark DataFrame"):
            course.deployed(framed)


def test_a_run_that_a_lost_host_takes_along_is_refused_before_it_begins(tmp_path: Path) -> None:
    sets = [f"home={tmp_path}", f"state.dir={tmp_path / 'own'}", "state.durability=backup(30s)"]
    with pytest.raises(InvalidInputError) as refused:
        run_job(framed, load_settings(None, sets, {}))
    assert refused.value.message == (
        "inputs ['rows'] of job 'framed' are Spark DataFrames, and state.durability is "
        "backup(30s): what Spark has read of them is noted on this host's disk alone, so after a "
        "lost host rows would be lost or count twice; use state.durability=epoch"
    )
    assert not list(tmp_path.rglob("manifests")), "nothing of the job is there"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (IntegerType(), "event-time column 'at' is int32, expected int64 or a timestamp"),
        (VariantType(), "column 'at'"),
        (None, "event-time column 'at' is not in the schema; found"),
    ],
)
def test_columns_that_no_stream_can_have_are_refused_before_the_last_run_goes(
    tmp_path: Path, kind: Any, said: str
) -> None:
    columns = StructType().add("v", TimestampType())
    frame = mock.Mock(spec=DataFrame, schema=columns if kind is None else columns.add("at", kind))

    @hr.job("timed")
    def timed(g: hr.Graph) -> None:
        g.input_dataframe("rows", lambda spark: frame, time="at").send_to(g.output("out"))

    settings, spark = load_settings(None, [f"home={tmp_path}"], {}), mock.Mock()
    with FileBus(settings.bus_dir) as bus:
        feeds = DataFrameFeeds(spark, timed.build(), bus, settings, tmp_path / "timed")
        with pytest.raises(InvalidInputError, match=said):
            feeds.make()


def test_a_home_may_be_in_that_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = frame_settings("~/shop", "job.tasks=3", "job.bounded=true")
    assert (found.home, found.job.tasks, found.job.bounded) == (tmp_path / "shop", 3, True)
