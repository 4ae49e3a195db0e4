"""Spark DataFrames as inputs of a job: each row once, whoever dies; bounded when they end."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.homes import load_settings
from tests.support.jobs import framing, rows_of
from tests.support.runs import (
    CODEGEN,
    JobControl,
    World,
    on_spark,
    read_stream,
    run_driver,
    run_job,
)
from tests.support.soak import more

import headrace as hr
from headrace import Job
from headrace.errors import InvalidInputError
from headrace.spark import java_classes
from headrace.testing import call_at, crash_at

pytestmark = pytest.mark.spark

FILES, ROWS = 4, 50


def die() -> None:
    raise RuntimeError("died here")


@pytest.mark.parametrize("how", more(["fails"], ["fails", "is killed"]))
def test_a_batch_that_the_driver_died_in_counts_once(
    spark: SparkSession, world: World, how: str
) -> None:
    folder = world.gates / "files"
    folder.mkdir(parents=True)
    expected: Counter[int] = Counter()
    for number in range(FILES):
        rows = rows_of(ROWS, 0, start=number * ROWS)
        expected.update(row["id"] for row in rows)
        (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    bounded, (point, nth) = "job.bounded=true", ("spark.part_appended", 3)
    if how == "is killed":
        assert run_driver("framing", world, bounded, die_at=(point, nth), frames=True)["code"] < 0
    else:
        with call_at(point, die, nth), pytest.raises(Exception, match="died here"):
            run_job(framing(world.gates), world.settings(bounded))
    result, _ = on_spark(framing(world.gates), world.settings(bounded))
    assert result.state.ended
    assert len(read_stream(world.home, "framing.events.dataframe")) == FILES * ROWS
    counts: dict[int, list[int]] = {}
    for row in read_stream(world.home, "counts"):
        counts.setdefault(row["id"], []).append(row["n"])
    assert counts == {key: list(range(1, n + 1)) for key, n in expected.items()}


def summing(make: Any, **options: Any) -> Job:
    """Sum up windows of a DataFrame's rows."""

    @hr.job("summing")
    def summing(g: hr.Graph) -> None:
        rows = g.input_dataframe("numbers", make, time="at", partitions=2, **options)
        rows.partition_by("k").window(hr.tumbling("10s"), total=hr.agg.sum("v")).send_to(
            g.output("totals")
        )

    return summing


@pytest.mark.parametrize("key", [(), "k"])
def test_a_batch_frame_is_read_once_in_each_run_and_no_row_is_late(
    spark: SparkSession, tmp_path: Path, key: str
) -> None:
    made: list[int] = []

    def shuffled(session: SparkSession) -> DataFrame:
        made.append(1)
        rows = session.range(2000).selectExpr("id % 7 k", "id v", "id * 100 + 1000000 at")
        return rows.repartition(5, "v")

    settings = load_settings(None, [f"home={tmp_path}", "job.bounded=true"], {})
    job = summing(shuffled, key=key)
    assert run_job(job, settings).state.ended
    first = read_stream(tmp_path, "totals")
    assert sum(row["total"] for row in first) == sum(range(2000))
    result = run_job(job, settings)
    assert (result.state.run, result.rows) == (2, 2000)
    assert not (tmp_path / "bus" / "summing.numbers.dataframe").exists()
    assert len(read_stream(tmp_path, "totals")) == 2 * len(first)


def test_rows_of_a_run_are_written_once_with_the_columns_that_it_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A driver that dies before the rows are listed writes them again; after that none does."""

    def wide(session: SparkSession) -> DataFrame:
        return session.range(900).selectExpr("id % 7 k", "id v", "id * 100 at", "repeat('x', 9) t")

    settings = load_settings(None, [f"home={tmp_path}", "job.bounded=true"], {})
    folder = tmp_path / "jobs" / "summing" / "frames" / "numbers"
    with crash_at("spark.rows_written"):
        run_job(summing(wide), settings)
    assert not (folder / "rows.json").exists()
    with crash_at("commit.published"):
        run_job(summing(wide), settings)
    written = sorted((folder / "rows").iterdir())
    found = [pa.ipc.open_file(path).read_all() for path in written]
    assert sum(table.num_rows for table in found) == 900
    assert {tuple(table.column_names) for table in found} == {("k", "v", "at")}

    @hr.job("summing")
    def reads_more(g: hr.Graph) -> None:
        rows = g.input_dataframe("numbers", wide, time="at", partitions=2)
        rows.partition_by("t").window(hr.tumbling("10s"), total=hr.agg.sum("v")).send_to(
            g.output("totals")
        )

    with pytest.raises(InvalidInputError, match=r"reads \['t'\] now: .* jobs reset summing"):
        run_job(reads_more, settings)
    assert run_job(summing(wide), settings).state.ended
    assert sorted((folder / "rows").iterdir()) == written
    assert sum(row["total"] for row in read_stream(tmp_path, "totals")) == sum(range(900))


ODD = {
    "n": "id",
    "i": "if(id % 9 = 0, null, cast(id as int))",
    "s": "cast(id as smallint)",
    "y": "cast(id % 100 as tinyint)",
    "d": "cast(id as double) / 3",
    "f": "cast(id as float) / 3",
    "b": "id % 2 = 0",
    "m": "if(id % 3 = 0, null, id)",
    "t": "if(id % 5 = 0, null, repeat('é', cast(id % 4 as int)))",
    "x": "cast(cast(id as string) as binary)",
    "day": "date_add(date '1969-12-30', cast(id as int))",
    "stamp": "timestamp_micros(id * 1000001)",
    "money": "cast(id * 1.07 as decimal(12, 2))",
    "several": "if(id % 7 = 0, null, array(id, null))",
    "none": "cast(null as array<bigint>)",
    "both": "if(id % 4 = 0, null, named_struct('a', nullif(id, 9), 'b', nullif(id % 3, 1)))",
}


@pytest.fixture(scope="module")
def odd_rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pa.Table]:
    """Rows of many types: in a folder of Parquet files, and as Spark has them."""
    folder = str(tmp_path_factory.mktemp("odd") / "rows")
    rows = spark.range(15001).selectExpr(*(f"{kind} {name}" for name, kind in ODD.items()))
    rows.repartition(3).write.parquet(folder)  # so that a task has two files
    return folder, rows.toArrow()


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Have Spark make Java of queries, as it does for users: that is another plan."""
    before = str(spark.conf.get(CODEGEN))
    spark.conf.set(CODEGEN, "FALLBACK")
    yield
    spark.conf.set(CODEGEN, before)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("way", ["columns", "rows", "python"])
def test_rows_come_as_they_are(
    spark: SparkSession,
    tmp_path: Path,
    way: str,
    odd_rows: tuple[str, pa.Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read by columns, as Parquet is, or by rows; or in Python, where Java cannot do it."""
    folder, rows = odd_rows
    if way == "python":
        monkeypatch.setattr(java_classes, "JAR", tmp_path / "none.jar")

    def odd(session: SparkSession) -> DataFrame:
        read = session.read.parquet(folder)
        return read if way == "columns" else read.where("n >= 0")

    @hr.job("odd")
    def passing(g: hr.Graph) -> None:
        g.input_dataframe("rows", odd).send_to(g.output("same"))

    home = tmp_path / "home"
    settings = load_settings(None, [f"home={home}", "job.bounded=true"], {})
    assert run_job(passing, settings).state.ended
    found = sorted(read_stream(home, "same"), key=lambda row: row["n"])
    assert found == rows.to_pylist()


def test_a_streaming_frame_goes_on_where_it_was_and_a_failing_one_stops_the_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"

    def rows(session: SparkSession) -> DataFrame:
        return session.readStream.schema("k bigint, v bigint, at bigint").json(str(folder))

    def put(name: str, *values: int) -> None:
        lines = [json.dumps({"k": 1, "v": v, "at": 1_000_000 + v}) for v in values]
        (folder / name).write_text("\n".join(lines))

    def run(rows_wanted: int) -> None:
        control = JobControl()
        seen: list[int] = []

        def on_epoch(summary: Any) -> None:
            seen.append(summary.rows)
            if sum(seen) >= rows_wanted:
                control.stop.set()

        guard = threading.Timer(60, control.stop.set)
        guard.start()
        run_job(summing(rows), settings, control=control, on_epoch=on_epoch)
        guard.cancel()
        assert sum(seen) == rows_wanted

    settings = load_settings(None, [f"home={tmp_path / 'home'}"], {})
    folder.mkdir()
    put("a", 1, 2)
    run(2)
    put("b", 3)
    run(1)
    stored = read_stream(tmp_path / "home", "summing.numbers.dataframe")
    assert sorted(row["v"] for row in stored) == [1, 2, 3]
    put("c", -2_000_000)  # an event time before 1970
    run(1)
    put("d", -(1 << 47))
    with pytest.raises(InvalidInputError, match="in row 0, outside the years 1 to 9999"):
        run(99)


def test_what_is_no_frame_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    settings = load_settings(None, [f"home={tmp_path}"], {})
    with pytest.raises(InvalidInputError, match=r"returned a list; expected a Spark DataFrame"):
        run_job(summing(lambda session: []), settings)
    with pytest.raises(hr.GraphError, match=r"found 5 \(int\); expected a function of"):
        summing(5).build()
