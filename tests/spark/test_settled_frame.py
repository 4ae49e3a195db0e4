"""DataFrames in the place of streams, by settings alone: each row once, and what is wrong."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.support.homes import load_settings
from tests.support.jobs import SCHEMA, counting, model, rows_of
from tests.support.runs import EpochSummary, JobControl, World, read_stream, run_driver, run_job

import headrace as hr
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError

pytestmark = pytest.mark.spark

FILES, ROWS = 4, 50
AT = 1_356_998_400_000  # 2013-01-01


BATCHES = [rows_of(ROWS, 0, start=number * ROWS) for number in range(FILES)]


def following(*words: str) -> list[str]:
    """Say that a job follows a DataFrame, a file a batch, to where it ends now."""
    frame = (*words, "streaming=true", "options.maxFilesPerTrigger=1")
    mine = (f"inputs.events.dataframe.{word}" for word in frame)
    return ["job.bounded=true", "inputs.events.partitions=2", *mine]


def check_counted(world: World) -> None:
    """Check that each row counts once, in what the job has come to."""
    assert len(world.rows("counting.events.dataframe")) == FILES * ROWS
    assert world.found() == model([[row for rows in BATCHES for row in rows]])


def test_files_are_followed(spark: SparkSession, world: World) -> None:
    folder = world.gates / "files"
    folder.mkdir(parents=True)
    for number, rows in enumerate(BATCHES):
        path = folder / f"{number}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (AT / 1000 + number,) * 2)  # by which Spark orders them
    columns = "schema=id bigint, kind string, v bigint, at bigint, more string"
    sets = following("format=json", f"load={folder}", columns)
    assert run_job(counting(), world.settings(*sets)).state.ended
    check_counted(world)


def test_a_batch_that_a_loss_of_power_took_from_sparks_checkpoint_is_put_back(
    spark: SparkSession, world: World
) -> None:
    """Its rows are in the stream; Spark plans one of its number with the rows that came since."""
    folder = world.gates / "files"
    folder.mkdir(parents=True)

    def write(number: int) -> None:
        path = folder / f"{number}.json"
        path.write_text("\n".join(map(json.dumps, BATCHES[number])))
        os.utime(path, (AT / 1000 + number,) * 2)

    columns = "schema=id bigint, kind string, v bigint, at bigint, more string"
    sets = [one for one in following("format=json", f"load={folder}", columns) if "max" not in one]
    sets = [one for one in sets if one != "job.bounded=true"]

    def run(rows: int) -> None:
        control = JobControl()

        def on_epoch(summary: EpochSummary) -> None:
            if world.read_so_far("counting") >= rows:
                control.stop.set()

        run_job(counting(), world.settings(*sets), control=control, on_epoch=on_epoch)

    write(0)
    run(ROWS)
    checkpoint = world.job_dir("counting") / "frames" / "events" / "checkpoint"
    last = max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    for name in ("offsets", "commits"):
        for path in (checkpoint / name).glob(f"*{last}*"):
            path.unlink()
    for number in range(1, FILES):
        write(number)
    with pytest.raises(UnavailableError, match="put back: start it again"):
        run(FILES * ROWS)
    run(FILES * ROWS)
    assert len(world.rows("counting.events.dataframe")) == FILES * ROWS
    assert world.counts() == model([[row for rows in BATCHES for row in rows]])["counts"]


@pytest.mark.soak
def test_a_table_of_delta_is_followed(world: World) -> None:
    script = (Path(__file__).parents[2] / "tools" / "delta.sh").read_text()
    [version] = re.findall(r"^version=(.+)$", script, re.MULTILINE)
    jars = sorted(map(str, (Path(sys.prefix) / "jars" / f"delta-{version}").glob("*.jar")))
    assert jars, "there are no jars of Delta for Spark; tools/delta.sh fetches them"
    table = world.gates / "table"
    for rows in BATCHES:
        write_deltalake(table, pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
    sets = [
        *following(f"table=delta.`{table}`"),
        f"spark.conf.spark.jars={','.join(jars)}",
        "spark.conf.spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
        "spark.conf.spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.conf.spark.databricks.delta.v2.enableMode=STRICT",
    ]
    done = run_driver("counting", world, *sets, frames=True)
    assert done["ended"], done
    check_counted(world)


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
    run(tmp_path, *words, "dataframe.select=SHOP, AT, cast(price as double) price")
    found = {row["shop"]: (row["n"], row["total"]) for row in read_stream(tmp_path, "totals")}
    assert found == {shop: (50, float(sum(range(100 + shop, 200, 2)))) for shop in (0, 1)}
    manifests = tmp_path / "jobs" / "spent" / "manifests"
    held = sorted(manifests.glob("*.json"))
    with pytest.raises(InvalidInputError, match=r"column 'price' is decimal128\(12, 2\), not dou"):
        run(tmp_path, *words)
    assert sorted(manifests.glob("*.json")) == held, "no other run has begun"


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


@pytest.mark.parametrize("word", ["streaming=false", "streaming=true"])
def test_rows_that_cannot_be_read_stop_the_job(
    spark: SparkSession, tmp_path: Path, word: str
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.json").write_text('{"shop": 1, "at": 1000, "price": "a lot"}')
    words = (
        word,
        "format=json",
        f"load={tmp_path / 'rows'}",
        "schema=shop bigint, at bigint, price string",
        "select=shop, at, cast(price as double) price",
    )
    with pytest.raises(
        UnavailableError, match=r"read input 'orders', .*Spark DataFrame of json .*"
    ):
        run(tmp_path, *(f"dataframe.{one}" for one in words))
    assert not (tmp_path / "jobs" / "spent" / "frames" / "orders" / "rows.json").exists()
