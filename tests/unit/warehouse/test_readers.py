"""Programs that know nothing of Headrace read a table: by a pattern, by a folder, in SQL."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.docs.pages import GUIDE
from tests.support.cli import app, on_duckdb
from typer.testing import CliRunner

import headrace as hr
from headrace import Job
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

BEGIN = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
COLUMNS = {"at": pa.timestamp("us", "UTC"), "user": pa.string(), "n": pa.int64()}
STEPS = ("warehouse.written", "warehouse.listed", "sink.committed", "commit.published")


def job(form: str) -> Job:
    @hr.job("history")
    def history(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output_table("events", format=form, late="drop"))

    return history


def feed(driver: TestDriver, first: int, count: int) -> None:
    driver.feed(
        "in",
        [
            {"at": BEGIN + dt.timedelta(hours=n), "user": f"u{n % 3}", "n": n}
            for n in range(first, first + count)
        ],
    )


@pytest.fixture(scope="module", params=["parquet", "delta"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 60 rows over three days, whose driver has died at each step of a commit."""
    home = tmp_path_factory.mktemp("home")
    with TestDriver(job(request.param), home=home, tasks=2) as driver:
        driver.create("in", COLUMNS, partitions=2, time="at", key=["user"])
        for number, point in enumerate(STEPS):
            feed(driver, number * 15, 15)
            assert driver.advance_with_crash(point)
            driver.run()
    return home / "warehouse" / "events"


def test_duckdb(table: Path) -> None:
    if (table / "_delta_log").exists():
        files = hr.warehouse.Table(table).files()
    else:
        files = [f"{table}/*/*.parquet"]
    query = "SELECT ds, count(*), sum(n) FROM read_parquet(?, hive_partitioning = true) GROUP BY 1"
    found = sorted(duckdb.execute(query, [files]).fetchall())
    assert found == [
        (dt.date(2013, 1, 1), 24, sum(range(24))),
        (dt.date(2013, 1, 2), 24, sum(range(24, 48))),
        (dt.date(2013, 1, 3), 12, sum(range(48, 60))),
    ]


def test_polars(table: Path) -> None:
    if (table / "_delta_log").exists():
        rows = pl.read_delta(str(table))
    else:
        rows = pl.read_parquet(table / "*/*.parquet", hive_partitioning=True)
    assert rows["n"].sort().to_list() == list(range(60))
    assert rows.filter(pl.col("ds") == dt.date(2013, 1, 2)).height == 24


def test_pandas_and_arrow(table: Path) -> None:
    if (table / "_delta_log").exists():
        assert sorted(DeltaTable(table).to_pandas()["n"]) == list(range(60))
        return
    rows = pd.read_parquet(table)
    assert sorted(rows["n"]) == list(range(60))
    assert set(rows["ds"].astype(str)) == {"2013-01-01", "2013-01-02", "2013-01-03"}
    found = ds.dataset(table, partitioning="hive")
    assert found.count_rows(filter=ds.field("ds") == "2013-01-03") == 12


def test_columns_that_were_added_are_null_in_older_files_to_every_reader(tmp_path: Path) -> None:
    """As the guide reads them; without its words pandas leaves them out, and Polars refuses."""
    with TestDriver(job("parquet"), home=tmp_path, tasks=2) as driver:
        driver.create("in", COLUMNS, time="at")
        feed(driver, 0, 30)
        driver.run()
        schema = pa.schema([*driver.bus.stream("in").spec.schema, ("shop", pa.string())])
        driver.bus.stream("in").evolve(schema)
        driver.crash()
        at = BEGIN + dt.timedelta(hours=40)
        driver.feed("in", [{"at": at, "user": "x", "n": 40, "shop": "here"}])
        driver.run()
    folder = tmp_path / "warehouse" / "events"
    page = (GUIDE / "warehouse.md").read_text()
    [block] = [text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "unify" in text]
    told: dict[str, Any] = {}
    exec(block, told)
    by_polars = told["with_polars"](folder).collect()
    by_pandas = pl.from_pandas(told["with_pandas"](folder)).select(by_polars.columns)
    query = f"FROM read_parquet('{folder}/*/*.parquet', hive_partitioning=true, union_by_name=true)"
    by_duckdb = duckdb.execute(f"SELECT n, shop {query}").fetchall()
    wanted = sorted([(n, None) for n in range(30)] + [(40, "here")])
    for frame in (by_polars, by_pandas):
        assert sorted(frame.select("n", "shop").rows()) == wanted
        assert frame.filter(pl.col("ds") == dt.date(2013, 1, 2)).height == 7
    assert sorted(by_duckdb) == wanted
    assert "shop" not in pd.read_parquet(folder)
    with pytest.raises(pl.exceptions.SchemaError):
        pl.read_parquet(folder / "*/*.parquet", hive_partitioning=True)


def test_sql_of_the_command(table: Path) -> None:
    query = "SELECT ds, count(*) AS rows FROM events WHERE n >= 40 GROUP BY ds ORDER BY ds"
    found = list(on_duckdb(query, table.parent))
    assert found == [
        {"ds": dt.date(2013, 1, 2), "rows": 8},
        {"ds": dt.date(2013, 1, 3), "rows": 12},
    ]


def test_sql_that_says_nothing_or_names_a_column_twice(table: Path) -> None:
    for query in ("", "-- nothing"):
        with pytest.raises(InvalidInputError, match="there is no query"):
            list(on_duckdb(query, table.parent))
    [found] = on_duckdb("SELECT 1 AS n, 2 AS n, 3 AS n_1", table.parent)
    assert list(found.values()) == [1, 2, 3]


def test_sql_prints_json_that_any_program_reads(tmp_path: Path) -> None:
    query = "SELECT 'nan'::DOUBLE AS n, [1.5, 'inf'::DOUBLE] AS several"
    words = ["warehouse", "sql", query, "--json", "--home", str(tmp_path)]
    said = CliRunner().invoke(app, words).stdout
    assert msgspec.json.decode(said) == {"n": "nan", "several": [1.5, "inf"]}


def test_sql_of_a_table_below_folders_that_look_like_partitions(tmp_path: Path) -> None:
    with TestDriver(job("parquet"), home=tmp_path / "year=2013" / "at=[x]") as driver:
        driver.create("in", COLUMNS)
        feed(driver, 0, 1)
        driver.run()
        [found] = on_duckdb("SELECT * FROM events", driver.settings.warehouse_dir)
    assert set(found) == {"at", "user", "n", "ds"}
    assert found["at"] == BEGIN


def test_what_is_known_of_it(table: Path) -> None:
    found = hr.warehouse.Table(table)
    assert (found.job, found.time, found.schema.names) == ("history", "at", [*COLUMNS])
    assert [(day.day, day.rows) for day in found.days] == [
        ("2013-01-01", 24),
        ("2013-01-02", 24),
        ("2013-01-03", 12),
    ]
    assert sorted(found.to_arrow("2013-01-03")["n"].to_pylist()) == list(range(48, 60))


def test_describe_tells_what_other_programs_read(table: Path) -> None:
    """A pattern would find files of Delta that no version names."""
    words = ["warehouse", "describe", "events", "--home", str(table.parents[1])]
    said = CliRunner().invoke(app, words, env={"COLUMNS": "300"}).stdout
    assert (f"{table}/*/*.parquet" in said) != (f"{table}, as a Delta table" in said)
    assert ("as a Delta table" in said) == (table / "_delta_log").exists()


def test_a_delta_table_gets_columns_and_compaction_and_is_of_one_job(tmp_path: Path) -> None:
    with TestDriver(job("delta"), home=tmp_path, tasks=2) as driver:
        driver.create("in", COLUMNS, time="at")
        for number in range(3):
            feed(driver, number * 10, 10)
            driver.run()
        schema = pa.schema([*driver.bus.stream("in").spec.schema, ("shop", pa.string())])
        driver.bus.stream("in").evolve(schema)
        driver.crash()
        driver.feed("in", [{"at": BEGIN, "user": "x", "n": 99, "shop": "here"}])
        driver.feed("in", [{"at": BEGIN + dt.timedelta(days=1), "user": "x", "n": 30, "shop": "h"}])
        driver.run()
        folder = driver.settings.warehouse_dir / "events"
        rows = hr.warehouse.Table(folder).to_arrow().to_pylist()
        assert [row["n"] for row in rows if row["shop"]] == [30]  # 99 was late, and is dropped
        assert sorted(row["n"] for row in rows) == list(range(31))

    @hr.job("other")
    def other(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output_table("events", format="delta"))

    with TestDriver(other, home=tmp_path, tasks=2) as driver:
        driver.create("in", COLUMNS, time="at")
        with pytest.raises(InvalidInputError, match=r"expected .*other.*: give each a table of"):
            driver.start()


@pytest.mark.parametrize("said", ["my own", "3", None])
def test_a_delta_table_of_others_is_told(said: str | None, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "mine"), pa.table({"a": [1]}), description=said)
    with pytest.raises(
        InvalidInputError, match=r"mine does not exist.*; Delta table .*mine was made"
    ):
        list(on_duckdb("SELECT * FROM mine", tmp_path))


def test_tables_that_cannot_be_read_keep_none_of_the_others_from_readers(tmp_path: Path) -> None:
    for form in ("parquet", "delta"):
        with TestDriver(job(form), home=tmp_path / form) as driver:
            driver.create("in", COLUMNS)
            feed(driver, 0, 3)
            driver.run()
        (tmp_path / form / "warehouse").rename(tmp_path / f"{form}-tables")
    tables = tmp_path / "home" / "warehouse"
    tables.mkdir(parents=True)
    for form in ("parquet", "delta"):
        for name in ("good", "bad"):
            for part in ("events", ".events.headrace"):
                whole = tmp_path / f"{form}-tables" / part
                if whole.exists():
                    shutil.copytree(whole, tables / part.replace("events", f"{name}-{form}"))
    (tables / ".bad-parquet.headrace" / "snapshot.json").write_text("{")
    for path in (tables / "bad-delta" / "_delta_log").iterdir():
        path.write_bytes(b"{")
    write_deltalake(str(tables / "foreign"), pa.table({"a": [1]}))

    words = ["--home", str(tmp_path / "home")]
    said = CliRunner().invoke(app, ["warehouse", "ls", "--json", *words])
    found = {row["table"]: row for row in map(msgspec.json.decode, said.stdout.splitlines())}
    assert {name for name, row in found.items() if row.get("rows") == 3} == {
        "good-parquet", "good-delta",
    }  # fmt: skip
    assert "cannot be read" in found["bad-parquet"]["error"]
    assert "cannot be read" in found["bad-delta"]["error"]
    assert "made by no job" in found["foreign"]["error"]
    said = CliRunner().invoke(app, ["warehouse", "ls", *words])
    assert said.exit_code == 0
    assert said.stderr.count("passed over: ") == 3
    assert "good-delta" in said.stdout
    [row] = on_duckdb('SELECT count(*) AS n FROM "good-delta"', tables)
    assert row == {"n": 3}


def test_a_delta_table_marks_complete_days_and_drops_old_ones(tmp_path: Path) -> None:
    @hr.job("history")
    def history(g: hr.Graph) -> None:
        table = g.output_table("events", format="delta", retention="2d", allowed_lateness="1h")
        g.input("in", time="at").send_to(table)

    with TestDriver(history, home=tmp_path) as driver:
        driver.create("in", COLUMNS, time="at")
        folder = driver.settings.warehouse_dir / "events"

        def complete() -> dict[str, int]:
            marks = folder.glob("ds=*/_SUCCESS")
            return {path.parent.name[3:]: json.loads(path.read_bytes())["rows"] for path in marks}

        def days() -> dict[str, tuple[int, bool]]:
            return {day.day: (day.rows, day.is_complete) for day in hr.warehouse.Table(folder).days}

        feed(driver, 0, 25)
        driver.run()
        assert complete() == {}
        feed(driver, 25, 1)
        # The epoch is in the log when the driver dies, and no mark is there.
        assert driver.advance_with_crash("warehouse.listed")
        assert complete() == {}
        driver.run()
        assert complete() == {"2013-01-01": 24}
        feed(driver, 3, 1)
        driver.run()
        assert complete() == {"2013-01-01": 25}  # a late row
        (folder / "ds=2013-01-01" / "_SUCCESS").write_text("{")
        driver.crash()
        feed(driver, 26, 10)
        driver.run()
        assert complete() == {"2013-01-01": 25}
        assert days() == {"2013-01-01": (25, True), "2013-01-02": (12, False)}
        feed(driver, 36, 14)
        assert driver.advance_with_crash("warehouse.listed")
        driver.run()
        assert days() == {"2013-01-02": (24, True), "2013-01-03": (2, False)}
        assert complete() == {"2013-01-02": 24}
        assert not list(folder.glob("ds=2013-01-01/_*"))
        assert pl.read_delta(str(folder)).height == 26


def test_what_delta_has_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with TestDriver(job("delta")) as driver:
        driver.create("in", {"at": pa.timestamp("us", "UTC"), "n": pa.uint32()}, time="at")
        with pytest.raises(GraphError, match="column 'n' is uint32, which Delta has no type for"):
            driver.start()
    with TestDriver(job("delta")) as driver:
        driver.create("in", {"at": pa.timestamp("us", "UTC"), "n": pa.float16()}, time="at")
        with pytest.raises(GraphError, match="column 'n' is halffloat, which Delta has no type"):
            driver.start()
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with TestDriver(job("delta")) as driver:
        driver.create("in", COLUMNS, time="at")
        with pytest.raises(InvalidInputError, match=r'install "headrace\[delta\]"'):
            driver.start()
