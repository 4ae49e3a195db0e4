"""A table that real slots write, from files that the settings name, and that Spark reads."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.changes import with_settings
from tests.support.cli import done, on_spark, refused
from tests.support.jobs import SCHEMA, tabling
from tests.support.runs import World, run_job
from tests.support.servers import S3Server
from tests.support.storages import forget_storages

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.spark import session
from headrace.testing import TestDriver, crash_at

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000


def test_a_driver_that_dies_fills_a_table_from_files_once_and_spark_reads_it(
    spark: SparkSession, world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    world.feed(300)
    fed = [row for rows in world.log for row in rows]
    for number, rows in enumerate(world.log):
        days = [{**row, "at": row["at"] + n % 3 * DAY_MS} for n, row in enumerate(rows)]
        table = pa.Table.from_pylist(days, schema=SCHEMA)
        pq.write_table(table, world.gates / f"{number}.parquet", row_group_size=70)
    sets = ["job.bounded=true", "epoch.max_rows=150", f"inputs.events.files={world.gates}"]
    with crash_at("warehouse.listed", 2):
        run_job(tabling(world.gates), world.settings(*sets))

    result = run_job(tabling(world.gates), world.settings(*sets))

    assert result.state.ended
    warehouse = world.home / "warehouse"
    read = spark.read.parquet(str(warehouse / "events")).collect()
    assert len(read) == len(fed)
    first = dt.date(1970, 1, 1) + dt.timedelta(days=fed[0]["at"] // DAY_MS)
    assert {row.ds for row in read} == {first + dt.timedelta(days=n) for n in range(3)}
    found = pl.read_parquet(warehouse / "events/*/*.parquet").select(SCHEMA.names)
    wanted = pl.read_parquet(world.gates / "*.parquet").select(SCHEMA.names)
    assert sorted(found.rows()) == sorted(wanted.rows())
    [counted] = on_spark(
        f"SELECT count(*) AS n FROM events WHERE ds = date '{first}'", spark, warehouse
    )
    assert counted == {"n": found.filter(pl.col("at") // DAY_MS == fed[0]["at"] // DAY_MS).height}
    with pytest.raises(InvalidInputError, match=r"Spark: .*evnts"):
        list(on_spark("SELECT * FROM evnts", spark, warehouse))
    by_spark = ("warehouse", "sql", "--engine", "spark", "--json", "--home", world.home)
    assert json.loads(done(*by_spark, "SELECT count(*) AS n FROM events")) == {"n": len(fed)}
    capfd.readouterr()
    assert "error HR100: Spark: [TABLE_OR_VIEW_NOT" in refused(*by_spark, "SELECT * FROM evnts")
    assert "errorClass" not in capfd.readouterr().err  # of Spark's own logger, with Java's frames
    [doubled] = on_spark("SELECT 1 AS n, 2 AS n, 3 AS n_1, 4 AS N", spark, warehouse)
    assert doubled == {"n": 1, "n_2": 2, "n_1": 3, "N": 4}
    assert session("local[2]", home=world.home).sparkContext is spark.sparkContext
    for name in ("events", "warehouse.events"):
        by_day = spark.sql(f"SELECT ds, count(*) n FROM {name} GROUP BY ds").collect()
        assert {row.ds for row in by_day} == {row.ds for row in read}
        assert sum(row.n for row in by_day) == len(fed)
    (warehouse / "torn" / "_delta_log").mkdir(parents=True)
    [counted] = on_spark("SELECT count(*) AS n FROM events", spark, warehouse)
    assert counted == {"n": len(fed)}
    with pytest.raises(InvalidInputError, match=r"Spark: .*torn.*; the log of Delta table"):
        list(on_spark("SELECT * FROM torn", spark, warehouse))
    counted = {"n": found.filter(pl.col("at") // DAY_MS == fed[0]["at"] // DAY_MS).height}
    mark = warehouse / "events" / f"ds={first}" / "_SUCCESS"
    assert json.loads(mark.read_text())["rows"] == counted["n"]


READ = """
import os
from headrace.spark import session

held = [open(os.devnull) for _ in range(1100)]  # so Java cannot call back, and need not here
spark = session("local[1]", home=HOME)
found = spark.read.format("headrace").option("home", HOME).option("table", "history").load()
print([tuple(row) for row in found.orderBy("n").collect()])
print(spark.sql("select count(*) from headrace.warehouse.history").first()[0])
"""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestDriver]:
    """A driver that has written a table with two days to a bucket."""

    @hr.job("history")
    def history(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output_table("history"))

    with S3Server(tmp_path / "s3") as server:
        forget_storages()
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        place = f"s3://{server.bucket}/warehouse"
        monkeypatch.setenv("HEADRACE__WAREHOUSE__ADDRESS", place)
        with TestDriver(history, home=tmp_path / "home") as driver:
            with_settings(driver, "warehouse", address=place)
            driver.create("in", {"at": pa.timestamp("us", "UTC"), "n": pa.int64()})
            for n in range(3):
                at = dt.datetime(2013, 1, 1 + n % 2, tzinfo=dt.UTC)
                driver.feed("in", [{"at": at, "n": n}])
                driver.advance()
            driver.finish()
            yield driver
    forget_storages()


def test_views_show_a_table_in_a_bucket(spark: SparkSession, bucket: TestDriver) -> None:
    """Its files are copies on the driver's host."""
    query = "SELECT ds, count(*) AS n FROM history GROUP BY ds"
    rows = on_spark(query, spark, bucket.settings.warehouse_dir)
    assert {row["ds"].day: row["n"] for row in rows} == {1: 2, 2: 1}


@pytest.mark.soak(share=20)
def test_tasks_of_spark_read_a_table_in_a_bucket(bucket: TestDriver) -> None:
    """In a session of its own, whose workers have the login in their environment."""
    script = READ.replace("HOME", repr(str(bucket.home)))
    read = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    first, count = read.stdout.strip().splitlines()[-2:]
    assert "datetime.date(2013, 1, 2)" in first
    assert count == "3"


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_columns_that_were_added_are_null_in_older_files_to_spark(
    spark: SparkSession, form: str, tmp_path: Path
) -> None:
    @hr.job("history")
    def history(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output_table("added", format=form))

    with TestDriver(history, home=tmp_path, tasks=2) as driver:
        driver.create("in", {"at": pa.int64(), "n": pa.int64()}, time="at")
        driver.feed("in", [{"at": n, "n": n} for n in range(5)])
        driver.run()
        driver.bus.stream("in").evolve(
            pa.schema([*driver.bus.stream("in").spec.schema, ("shop", pa.string())])
        )
        driver.crash()
        driver.feed("in", [{"at": DAY_MS, "n": 5, "shop": "here"}])
        driver.run()
        warehouse = driver.settings.warehouse_dir
        wanted = [(n, None) for n in range(5)] + [(5, "here")]
        found = on_spark("SELECT n, shop FROM added ORDER BY n", spark, warehouse)
        assert [tuple(row.values()) for row in found] == wanted
        if form == "parquet":
            plain = spark.read.option("mergeSchema", "true").parquet(str(warehouse / "added"))
            assert [(row.n, row.shop) for row in plain.orderBy("n").collect()] == wanted
