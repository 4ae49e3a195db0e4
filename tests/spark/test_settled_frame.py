"""DataFrames in the place of streams, by settings alone: each row once, and what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs import model, rows_of
from tests.spark.runs import World, read_stream, run_driver

import headrace as hr
from headrace.config import load_settings
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark

FILES, ROWS = 4, 50
AT = 1_356_998_400_000  # 2013-01-01


def put_files(folder: Path) -> list[dict[str, Any]]:
    """Write one file of JSON for each batch; their times rise."""
    folder.mkdir(parents=True)
    rows = [rows_of(ROWS, 0, start=number * ROWS) for number in range(FILES)]
    for number, some in enumerate(rows):
        path = folder / f"{number}.json"
        path.write_text("\n".join(map(json.dumps, some)))
        os.utime(path, (AT / 1000 + number,) * 2)  # by which Spark orders them
    return [row for some in rows for row in some]


def test_files_that_spark_follows_count_once_though_the_driver_dies(world: World) -> None:
    rows = put_files(world.gates / "files")
    sets = [
        "job.bounded=true",
        "inputs.events.partitions=2",
        *(
            f"inputs.events.dataframe.{word}"
            for word in (
                "format=json",
                f"load={world.gates / 'files'}",
                "schema=id bigint, kind string, v bigint, at bigint, more string",
                "streaming=true",
                "options.maxFilesPerTrigger=1",
            )
        ),
    ]
    died = run_driver("counting", world, *sets, die_at=("spark.part_appended", 3))
    assert died["code"] < 0
    done = run_driver("counting", world, *sets)
    assert done["ended"], done
    assert len(world.rows("counting.events.dataframe")) == FILES * ROWS
    assert world.found() == model([rows])


@hr.job("spent")
def spent(g: hr.Graph) -> None:
    columns = {"shop": int, "price": float, "at": int}
    orders = g.input("orders", schema=columns, time="at").partition_by("shop")
    orders.window(hr.global_window(), n=hr.agg.count(), total=hr.agg.sum("price")).send_to(
        g.output("totals")
    )


def run(home: Path, *words: str) -> None:
    """Run the job over the DataFrame that words say."""
    sets = [f"home={home}", "job.bounded=true", *(f"inputs.orders.{word}" for word in words)]
    run_job(spent, load_settings(None, sets, {}))


def test_a_table_of_a_database_and_a_range_of_it(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    address = f"jdbc:derby:memory:{tmp_path.name};create=true"
    driver = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
    rows = spark.range(300).selectExpr(
        "id", f"{AT} + id at", "id % 2 shop", "cast(id as decimal(12,2)) price"
    )
    rows.write.jdbc(address, "orders", mode="overwrite", properties={"driver": driver})
    words = (
        "dataframe.format=jdbc",
        f"dataframe.options.url={address}",
        "dataframe.options.dbtable=orders",
        f"dataframe.options.driver={driver}",
        "dataframe.where=id < 200",
        "from=2013-01-01T00:00:00.100",
    )
    with pytest.raises(InvalidInputError, match=r"column 'price' is decimal128\(12, 2\), not dou"):
        run(tmp_path, *words)
    run(tmp_path, *words, "dataframe.select=SHOP, AT, cast(price as double) price")
    found = {row["shop"]: (row["n"], row["total"]) for row in read_stream(tmp_path, "totals")}
    assert found == {shop: (50, float(sum(range(100 + shop, 200, 2)))) for shop in (0, 1)}


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (UnavailableError, ("format=nosuch",), r"dataframe: Spark has no nosuch: .*; name the pac"),
        (InvalidInputError, ("format=csv", "load=/no/where"), r"dataframe: .*Path does not exist"),
        (InvalidInputError, ("table=no.such.thing",), r"setting inputs\.orders\.dataframe: .*"),
        (InvalidInputError, ("format=rate", "streaming=true", "where=value >"), "SYNTAX_ERROR"),
        (
            InvalidInputError,
            ("format=rate", "streaming=true", "select=value at, 'x' price"),
            r"dataframe: found no column 'shop'; column 'price' is string, not double; it has",
        ),
        (
            UnavailableError,
            ("format=jdbc", "options.url=jdbc:derby:memory:none", "options.dbtable=t"),
            r"could not reach Spark DataFrame of jdbc, dbtable t: .*FAILED_JDBC",
        ),
    ],
)
def test_what_is_wrong_is_told_before_the_job_begins(
    spark: SparkSession,
    tmp_path: Path,
    kind: type[HeadraceError],
    words: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(kind, match=message):
        run(tmp_path, *(f"dataframe.{word}" for word in words))
    assert not list((tmp_path / "jobs" / "spent" / "manifests").glob("*.json"))
    assert not (tmp_path / "bus" / "spent.orders.dataframe").exists()
