"""Jobs with sinks beside the live one: what they have for these is kept, and given at the merge."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.changes import MergeOutcome, merge_run, sink_line, with_own_outputs
from tests.support.cli import done, headrace, refused
from tests.support.limits import limit

import headrace as hr
from headrace import Job
from headrace.testing import TestDriver, crash_at
from headrace.warehouse import Table

BEGIN = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
COLUMNS = {"at": pa.timestamp("us", "UTC"), "user": pa.string(), "n": pa.int64()}


def row(n: int) -> dict[str, Any]:
    return {"at": BEGIN + dt.timedelta(hours=6 * n), "user": f"u{n % 3}", "n": n}


def to(sink: Any) -> Job:
    @hr.job("files")
    def files(g: hr.Graph) -> None:
        rows = g.input("in", time="at").partition_by("user")
        rows.send_to(sink, name="lake")
        rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("totals"), name="out")

    return files


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def job(lake: Path) -> Job:
    return to(hr.sinks.parquet(lake))


@pytest.fixture
def live(job: Job, tmp_path: Path) -> Iterator[TestDriver]:
    """A job that began with the fifth row of ten, and a run over those before, apart."""
    with TestDriver(job, tasks=2, home=tmp_path, memory_bus=False, start="latest") as made:
        made.create("in", COLUMNS, time="at")
        made.feed("in", [row(n) for n in range(5)])
        made.run()
        made.feed("in", [row(n) for n in range(5, 10)])
        made.run()
        made.crash()
        yield made


def beside(live: TestDriver, job: Job) -> None:
    apart = dataclasses.replace(job, name="files-backfill", apart="backfill")
    span = {"in": {"from": "2013-01-01T00:00", "to": str(row(5)["at"].replace(tzinfo=None))}}
    with TestDriver(apart, tasks=2, home=live.home, memory_bus=False, inputs=span) as run:
        run.finish()


def merge(live: TestDriver, code: Job) -> MergeOutcome:
    return merge_run(code, live.home)


def held(lake: Path) -> list[int]:
    files = hr.sinks.committed_files(lake)
    return sorted(pl.read_parquet(files)["n"]) if files else []


def test_a_run_beside_sends_nothing_to_the_sink_until_it_is_merged(
    live: TestDriver, job: Job, lake: Path
) -> None:
    assert held(lake) == [5, 6, 7, 8, 9]
    beside(live, job)
    assert held(lake) == [5, 6, 7, 8, 9]
    kept = live.output("files-backfill.lake")
    assert sorted(one["n"] for one in kept) == [0, 1, 2, 3, 4]
    found = json.loads(
        done("jobs", "compare", "files", "files-backfill", "--json", "--home", live.home)
    )
    assert found["kept"] == {"lake": "files-backfill.lake"}
    said = refused("jobs", "merge", "files", "files-backfill", "--home", live.home)
    assert (
        f"kept for Parquet files in {lake}; give the job whose sinks take them: --merge-job" in said
    )

    brought = merge(live, job)

    assert [one.rows for one in brought.given] == [5]
    assert held(lake) == list(range(10))
    merge(live, job)
    assert held(lake) == list(range(10))
    live.feed("in", [row(10)])
    live.run()
    assert held(lake) == list(range(11))


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", ["sink.sent", "merge.appended"])
def test_who_dies_giving_gives_the_rest_later(
    live: TestDriver, job: Job, lake: Path, point: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, sink_rows=1)
    beside(live, job)
    with crash_at(point, nth):
        merge(live, job)
    live.feed("in", [row(10)])
    live.run()  # the job is not held up by a merge that died
    live.crash()
    merge(live, job)
    assert held(lake) == list(range(11))
    assert not (live.home / "jobs" / "files-backfill" / "merging").exists()


def test_a_function_that_a_sink_cannot_ask_is_told_of(
    live: TestDriver, job: Job, tmp_path: Path
) -> None:
    beside(live, job)
    by_function = dataclasses.replace(job, merge=lambda live, old: None)
    (given,) = merge(live, by_function).given
    assert sink_line(given).endswith(
        "has 5 rows of files-backfill.lake, beneath what was there; the merge function was not "
        "asked: each row is a new one there"
    )


def test_old_days_come_to_a_table_of_the_warehouse(tmp_path: Path) -> None:
    @hr.job("files")
    def days(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output_table("events"), name="lake")

    with TestDriver(days, home=tmp_path, memory_bus=False, start="latest") as live:
        live.create("in", COLUMNS, time="at")
        live.feed("in", [row(n) for n in range(5)])
        live.run()
        live.feed("in", [row(n) for n in range(5, 10)])
        live.run()
        live.crash()
        place = live.settings.warehouse_dir / "events"
        assert [str(day.day) for day in Table(place).days] == ["2013-01-02", "2013-01-03"]
        beside(live, days)
        merge(live, days)
        assert sorted(pl.read_parquet(Table(place).files())["n"]) == list(range(10))
        assert [str(day.day) for day in Table(place).days] == [
            "2013-01-01",
            "2013-01-02",
            "2013-01-03",
        ]


def test_a_version_that_keeps_rows_for_sinks_is_not_swapped_in(live: TestDriver, job: Job) -> None:
    named = dataclasses.replace(job, name="files-2")
    version = with_own_outputs(live, named, "v2")
    with TestDriver(version, tasks=2, home=live.home, memory_bus=False) as other:
        other.run()
    live.bus.alias("spending", "totals")
    said = refused("jobs", "swap", "files", "files-2", "--home", live.home)
    assert "keeps in 'files-2.lake' what it has for Parquet files in" in said
    assert live.bus.aliases() == {"spending": "totals"}
    drop = ("jobs", "delete", "files-2", "--yes", "--outputs", "--home", live.home)
    assert "its outputs files-2.lake, totals.v2 too" in done(*drop)


def test_a_backfill_gives_its_rows_to_the_sink_by_the_command(
    live: TestDriver, lake: Path, tmp_path: Path
) -> None:
    (tmp_path / "lake_job.py").write_text(
        f"""
import headrace as hr

@hr.job("files")
def files(g):
    rows = g.input("in", time="at").partition_by("user")
    rows.send_to(hr.sinks.parquet({str(lake)!r}), name="lake")
    rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("totals"), name="out")
"""
    )
    span = ("--from", "2013-01-01", "--to", row(5)["at"].isoformat())
    asked = ("backfill", tmp_path / "lake_job.py", *span, "--standalone", "--merge")
    ran = headrace(*asked, "--home", live.home)
    assert ran.code == 0, ran.err
    assert f"Parquet files in {lake}: has 5 rows of files-backfill.lake, beneath what" in ran.out
    assert held(lake) == list(range(10))


def test_old_rows_come_to_the_warehouse_that_the_settings_of_the_backfill_name(
    tmp_path: Path,
) -> None:
    """As given to the command, or in a file that is named: the merge goes by them, too."""
    with TestDriver(to(hr.sinks.parquet(tmp_path / "no")), home=tmp_path, memory_bus=False) as live:
        live.create("in", COLUMNS, time="at")
        live.feed("in", [row(n) for n in range(10)])
    module, elsewhere = tmp_path / "lake_table.py", tmp_path / "elsewhere"
    module.write_text(
        """
import headrace as hr

@hr.job("days")
def days(g):
    g.input("in", time="at").send_to(g.output_table("events"), name="lake")
"""
    )
    (tmp_path / "lake.toml").write_text(f'home = "{tmp_path}"\n')
    given = (
        "--standalone",
        "--config",
        tmp_path / "lake.toml",
        "--set",
        f"warehouse.dir={elsewhere}",
    )
    at = row(5)["at"].replace(tzinfo=None).isoformat()
    assert headrace("run", module, "--bounded", *given, "--set", f"job.start={at}").code == 0
    assert sorted(pl.read_parquet(Table(elsewhere / "events").files())["n"]) == [5, 6, 7, 8, 9]
    ran = headrace("backfill", module, "--from", "2013-01-01", "--to", at, "--merge", *given)
    assert ran.code == 0, ran.err
    assert sorted(pl.read_parquet(Table(elsewhere / "events").files())["n"]) == list(range(10))
    assert not (tmp_path / "warehouse").exists()


def test_sinks_of_a_job_whose_input_is_a_dataframe_by_settings_are_given_rows(
    lake: Path, tmp_path: Path
) -> None:
    def read(name: str, apart: str, found: list[int]) -> None:
        stream = f"{name}.rows.dataframe"

        @hr.job(name)
        def framed(g: hr.Graph) -> None:
            rows = g.input(stream, name="rows").partition_by("user")
            rows.send_to(hr.sinks.parquet(lake), name="lake")

        made = dataclasses.replace(framed, apart=apart)
        with TestDriver(made, tasks=2, home=tmp_path, memory_bus=False) as driver:
            driver.create(stream, COLUMNS, time="at")
            driver.feed(stream, [row(n) for n in found])
            driver.finish()

    @hr.job("files")
    def code(g: hr.Graph) -> None:
        rows = g.input("in", name="rows").partition_by("user")
        rows.send_to(hr.sinks.parquet(lake), name="lake")

    read("files", "", [5, 6])
    read("files-backfill", "backfill", [3, 4])
    merge_run(code, tmp_path, overrides=["inputs.in.dataframe.format=csv"])
    assert held(lake) == [3, 4, 5, 6]
