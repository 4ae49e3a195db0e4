"""Tables of Delta and Iceberg, by their packages for Spark: read by jobs, and written.

``make test-matrix`` runs this where both have packages for the version of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from tests.support.homes import load_settings
from tests.support.runs import run_job

import headrace as hr
from headrace.spark import session

pytestmark = pytest.mark.spark

ROWS = [{"shop": n % 3, "price": n, "at": n * 1000} for n in range(300)]
TOTALS = {(shop, sum(row["price"] for row in ROWS if row["shop"] == shop)) for shop in range(3)}
COLUMNS = "shop bigint, price bigint, at bigint"
PLACES = ("delta", "iceberg")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with both packages, which Spark fetches from Maven once."""
    lakes = tmp_path_factory.mktemp("lakes")
    conf = {
        "spark.jars.packages": os.environ["HEADRACE_TEST_PACKAGES"],
        "spark.jars.ivy": os.environ["HEADRACE_TEST_IVY"],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(lakes / "spark"),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(lakes / "iceberg"),
    }
    made = session("local[2]", lakes / "home", conf)
    yield made
    made.stop()


class Lake:
    """Tables of one format."""

    def __init__(self, spark: SparkSession, form: str, folder: Path) -> None:
        self.spark, self.form, self.folder = spark, form, folder

    def name(self, table: str) -> str:
        if self.form == "iceberg":
            return f"lake.{self.folder.name}.{table}"
        return f"delta.`{self.folder / table}`"

    def append(self, table: str, rows: Any) -> None:
        """Commit rows to a table, which is made by the first."""
        if self.form == "delta":
            rows.write.format("delta").mode("append").save(str(self.folder / table))
        elif self.spark.catalog.tableExists(self.name(table)):
            rows.writeTo(self.name(table)).append()
        else:
            rows.writeTo(self.name(table)).create()

    def read(self, table: str) -> Any:
        return self.spark.table(self.name(table))

    def follow(self, table: str) -> Any:
        """Return a streaming DataFrame of a table, a file a batch."""
        if self.form == "iceberg":
            reader = self.spark.readStream.option("streaming-max-files-per-micro-batch", 1)
            return reader.table(self.name(table))
        reader = self.spark.readStream.format("delta").option("maxFilesPerTrigger", 1)
        return reader.load(str(self.folder / table))

    def results(self, home: Path) -> Any:
        """Return what the job has sent; tables of streams are not known to Delta's catalogue."""
        reader = self.spark.read.format("headrace").option("home", str(home))
        return reader.load("totals").select("shop", "total")

    def write_stream(self, rows: Any, table: str) -> None:
        """Append what a streaming DataFrame has now."""
        query = rows.writeStream.trigger(availableNow=True).option(
            "checkpointLocation", str(self.folder / f"{table}.checkpoint")
        )
        if self.form == "iceberg":
            query.toTable(self.name(table)).awaitTermination()
        else:
            query.format("delta").start(str(self.folder / table)).awaitTermination()


@pytest.fixture(params=PLACES)
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Lake:
    """A table of orders in three commits."""
    made = Lake(spark, request.param, tmp_path)
    for begin in range(0, len(ROWS), 100):
        rows = [tuple(row.values()) for row in ROWS[begin : begin + 100]]
        made.append("orders", spark.createDataFrame(rows, COLUMNS).coalesce(1))
    return made


def totals(frame: Any) -> hr.Job:
    """What each shop has sold in all, of a DataFrame or, where there is none, of a stream."""

    @hr.job("totals")
    def found(g: hr.Graph) -> None:
        if frame is None:
            orders = g.input("orders", schema={"shop": int, "price": int, "at": int}, time="at")
        else:
            orders = g.input_dataframe("orders", lambda spark: frame, time="at")
        shops = orders.partition_by("shop")
        shops.window(hr.global_window(), total=hr.agg.sum("price")).send_to(g.output("totals"))

    return found


def run(job: hr.Job, home: Path, *sets: str) -> None:
    assert run_job(
        job, load_settings(None, [f"home={home}", "job.bounded=true", *sets], {})
    ).state.ended


def found(rows: Any) -> set[tuple[int, int]]:
    return {(row["shop"], row["total"]) for row in rows.collect()}


def test_a_job_reads_a_table_and_its_results_become_one(lake: Lake, tmp_path: Path) -> None:
    home = tmp_path / "home"
    run(totals(lake.read("orders").where("price >= 0")), home)

    lake.append("totals", lake.results(home))

    assert found(lake.read("totals")) == TOTALS


def test_a_job_follows_a_table_and_a_query_writes_its_results(lake: Lake, tmp_path: Path) -> None:
    home = tmp_path / "home"
    run(totals(lake.follow("orders")), home)

    lake.append("totals", lake.spark.createDataFrame([], "shop bigint, total bigint"))
    results = lake.spark.readStream.format("headrace").option("home", str(home)).load("totals")
    lake.write_stream(results.select("shop", "total"), "totals")

    assert found(lake.read("totals")) == TOTALS


def test_settings_put_a_table_in_the_place_of_a_stream(lake: Lake, tmp_path: Path) -> None:
    home = tmp_path / "home"
    run(totals(None), home, f"inputs.orders.dataframe.table={lake.name('orders')}")

    assert found(lake.results(home)) == TOTALS


def test_a_table_that_a_job_writes_is_read_by_delta_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    @hr.job("daily")
    def daily(g: hr.Graph) -> None:
        columns = {"shop": int, "price": int, "at": int}
        g.input("orders", schema=columns, time="at").send_to(g.output_table("sold", format="delta"))

    home = tmp_path / "home"
    source = tmp_path / "orders.parquet"
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), source)
    run(daily, home, f"inputs.orders.files={source}")

    sold = spark.read.format("delta").load(str(home / "warehouse" / "sold"))
    assert sorted(row.price for row in sold.collect()) == sorted(row["price"] for row in ROWS)
