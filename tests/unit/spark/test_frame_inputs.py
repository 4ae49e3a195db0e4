"""Inputs that are DataFrames, where there is no Spark."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.bus.file import FileBus
from headrace.clock import SystemClock
from headrace.config import load_settings
from headrace.coordinator.loop import Control
from headrace.coordinator.running.course import Course
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.operators import Input
from headrace.plan import explain, plan
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
        course = Course(bus, settings, Control(), SystemClock(), Files(sync=False))
        with pytest.raises(InvalidInputError, match="'rows' of job 'framed' is a Spark DataFrame"):
            course.deployed(framed)
