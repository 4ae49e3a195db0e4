"""Inputs of a job from what Spark reads: a database by JDBC, and sources that go by a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.homes import load_settings
from tests.support.jobs import ticking
from tests.support.runs import Epochs, World, on_spark, read_stream, run_driver, run_job
from tests.support.soak import more

import headrace as hr
from headrace import spark as headrace_spark

pytestmark = pytest.mark.spark

DERBY = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}


def test_a_table_of_a_database_is_read_by_several_tasks_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    address = f"jdbc:derby:memory:{tmp_path.name};create=true"
    rows = spark.range(300).selectExpr("id", "id % 4 shop", "cast(id as decimal(12,2)) price")
    rows.write.jdbc(address, "orders", mode="overwrite", properties=DERBY)

    def orders(session: SparkSession) -> DataFrame:
        found = session.read.jdbc(address, "orders", "ID", 0, 300, 3, properties=DERBY)
        return found.selectExpr("id", "shop", "cast(price as double) price").where("id < 200")

    @hr.job("shops")
    def shops(g: hr.Graph) -> None:
        found = g.input_dataframe("orders", orders, partitions=2).partition_by("shop")
        found.window(hr.global_window(), total=hr.agg.sum("price"), n=hr.agg.count()).send_to(
            g.output("totals")
        )

    settings = load_settings(None, [f"home={tmp_path}", "job.bounded=true"], {})
    assert run_job(shops, settings).rows == 200
    found = {row["shop"]: (row["n"], row["total"]) for row in read_stream(tmp_path, "totals")}
    assert found == {shop: (50, float(sum(range(shop, 200, 4)))) for shop in range(4)}


@pytest.mark.soak
def test_rows_that_are_made_by_a_clock_count_once_whoever_dies(
    spark: SparkSession, world: World
) -> None:
    (world.gates / "form").write_text("rate")
    died = run_driver("ticking", world, die_at=("spark.part_appended", 4), frames=True)
    assert died["code"] < 0
    before = len(world.rows("seen"))

    def enough(epochs: Epochs) -> None:
        if sum(epochs.rows) >= 300:
            epochs.stop()

    on_spark(ticking(world.gates), world.settings(), enough)
    values = sorted(row["v"] for row in world.rows("seen"))
    assert values == list(range(len(values)))
    assert len(values) >= before + 300


@pytest.mark.parametrize("form", more(["rate"], ["rate", "rate-micro-batch"]))
def test_a_bounded_job_over_rows_that_are_made_by_a_clock_ends(
    spark: SparkSession, world: World, form: str
) -> None:
    (world.gates / "form").write_text(form)
    result, _ = on_spark(ticking(world.gates), world.settings("job.bounded=true"))
    assert result.state.ended
    values = sorted(row["v"] for row in world.rows("seen"))
    assert values == list(range(len(values)))


@pytest.mark.soak
def test_available_now_over_rows_that_are_made_by_a_clock_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    numbers = rows.selectExpr("value % 3 k", "value v")
    found: list[int] = []

    def take(frame: DataFrame, number: int) -> None:
        found.extend(row["n"] for row in frame.collect())

    try:
        results = headrace_spark.stateful(
            numbers, "k", aggregate={"n": hr.agg.count()}, name="ticks", home=tmp_path / "home"
        )
        query = (
            results.writeStream.foreachBatch(take).trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        assert query.awaitTermination(90)
    finally:
        headrace_spark.stop()
    assert found
