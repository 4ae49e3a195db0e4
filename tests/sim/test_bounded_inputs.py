"""A job over files, days of a table or a range of a stream, by settings alone."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.changes import with_inputs
from tests.support.soak import crossed

import headrace as hr
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.testing import TestDriver

POINTS = ("slot.caught_up", "slot.ran", "epoch.planned", "epoch.before_commit", "commit.published")
BEGIN = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
COLUMNS = {"at": pa.timestamp("us", "UTC"), "user": pa.string(), "n": pa.int64()}
SCHEMA = {"at": dt.datetime, "user": str, "n": int}
Said = Mapping[str, Any]


@hr.job("hours")
def hours(g: hr.Graph) -> None:
    rows = g.input("in", time="at", schema=SCHEMA, on_error="dead_letter")
    keyed = rows.partition_by("user")
    keyed.window(hr.tumbling("1h"), total=hr.agg.sum("n"), rows=hr.agg.count()).send_to(
        g.output("out")
    )


def history(form: str) -> hr.Job:
    @hr.job("history")
    def history(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output_table("events", format=form))

    return history


def rows(count: int = 240) -> list[dict[str, Any]]:
    return [
        {"at": BEGIN + dt.timedelta(minutes=15 * n), "user": f"u{n % 3}", "n": n}
        for n in range(count)
    ]


def as_parquet(folder: Path, parts: Sequence[list[dict[str, Any]]]) -> str:
    for number, part in enumerate(parts):
        pl.DataFrame(part).write_parquet(folder / f"{number}.parquet", row_group_size=13)
    return f"{folder}/*.parquet"


def as_csv(folder: Path, parts: Sequence[list[dict[str, Any]]]) -> str:
    for number, part in enumerate(parts):
        pl.DataFrame(part).write_csv(folder / f"{number}.csv", quote_style="non_numeric")
    return str(folder)


def as_lines(folder: Path, parts: Sequence[list[dict[str, Any]]]) -> str:
    for number, part in enumerate(parts):
        lines = [json.dumps({**row, "at": row["at"].isoformat()}) for row in part]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return f"file://{folder}"


WRITERS = {"parquet": as_parquet, "csv": as_csv, "lines": as_lines}


def results(driver: TestDriver) -> list[str]:
    return sorted(map(str, driver.output("out")))


def streamed(fed: list[dict[str, Any]]) -> list[str]:
    return _streamed(tuple(row["n"] for row in fed))


@cache
def _streamed(numbers: tuple[int, ...]) -> list[str]:
    every = rows(1 + max(numbers))
    with TestDriver(hours, tasks=2) as driver:
        driver.create("in", COLUMNS, time="at")
        driver.feed("in", [every[number] for number in numbers])
        driver.finish()
        return results(driver)


def bounded(said: Said, **options: Any) -> TestDriver:
    return TestDriver(
        hours, tasks=2, inputs={"in": said}, job_settings={"bounded": True}, **options
    )


@pytest.mark.parametrize(("form", "max_rows"), crossed(list(WRITERS), [40, 17, 100_000]))
def test_files_give_what_the_stream_gives(form: str, max_rows: int, tmp_path: Path) -> None:
    """In one partition and in two, whatever epochs are cut to."""
    fed = rows()
    files = WRITERS[form](tmp_path, [fed[:100], fed[100:]])
    for partitions in (1, 2):
        with bounded({"files": files, "partitions": partitions}, max_rows=max_rows) as driver:
            driver.run()
            assert streamed(fed) == results(driver)


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_anywhere_resumes_in_the_middle_of_files(point: str, tmp_path: Path) -> None:
    """Offsets are in the manifest, so every row counts once."""
    fed = rows()
    files = as_lines(tmp_path, [fed[:100], fed[100:]])
    with bounded({"files": files}, max_rows=50) as driver:
        driver.advance()
        for nth in (1, 2):
            driver.advance_with_crash(point, nth)
        driver.run()
        assert streamed(fed) == results(driver)


def test_files_are_those_of_the_begin_of_the_run(tmp_path: Path) -> None:
    """What comes later is of the next run; what changes meanwhile is told."""
    fed = rows()
    files = as_csv(tmp_path, [fed[:100], fed[100:]])
    with bounded({"files": files}, max_rows=50) as driver:
        driver.advance()
        as_csv(tmp_path, [fed[:100], fed[100:], fed])
        driver.crash()
        driver.run()
        assert streamed(fed) == results(driver)
    with bounded({"files": files}, max_rows=50) as driver:
        driver.advance()
        pl.DataFrame(fed[:7]).write_csv(tmp_path / "2.csv")
        with pytest.raises(InvalidInputError, match=r"2\.csv has changed since the run began"):
            driver.run()


def test_a_host_that_is_lost_behind_its_copy_leaves_the_list_of_files(tmp_path: Path) -> None:
    """It is where the copy is, and so are links to files of tables."""
    fed = rows()
    files = as_lines(tmp_path, [fed[:100], fed[100:]])
    with bounded({"files": files}, max_rows=50, durability="backup(30s)") as driver:
        driver.advance()
        driver.copy()
        driver.advance()
        driver.crash(lose_hosts=[0])
        as_lines(tmp_path, [fed[:100], fed[100:], fed])
        [lease] = driver.home.glob("**/lease.json")
        os.utime(lease, (0, 0))  # its driver has been silent for long
        driver.run()
        assert set(streamed(fed)) == set(results(driver))


def test_a_range_of_a_stream_by_event_time_and_by_offset() -> None:
    """From is in it, to is not; rows out of order are found wherever they are."""
    fed = rows()
    first, last = BEGIN + dt.timedelta(hours=10), BEGIN + dt.timedelta(hours=30)
    inside = [row for row in fed if first <= row["at"] < last]
    times = {"from": "2013-01-01T10:00", "to": "2013-01-02T06:00"}
    for said, wanted in (
        (times, inside),
        ({"from_offset": 17, "to_offset": 100}, fed[17:100]),
        ({"from_offset": 60, **times}, [row for row in inside if row["n"] >= 60]),
    ):
        with bounded({"stream": "all", **said}, max_rows=11) as driver:
            driver.create("all", COLUMNS, time="at")
            for begin in range(0, len(fed), 20):
                driver.feed("all", fed[begin : begin + 20])
            driver.run()
            driver.feed("all", fed)  # of no run that has begun
            assert driver.run() == 0
            assert streamed(wanted) == results(driver)


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_days_of_a_table_give_the_rows_of_these_days(form: str, tmp_path: Path) -> None:
    """Also while the table is compacted, whose old files go."""
    fed = rows(400)
    wanted = [row for row in fed if row["at"].day in (2, 3)]
    with TestDriver(history(form), home=tmp_path, tasks=2) as writer:
        writer.create("in", COLUMNS, time="at")
        for begin in range(0, 400, 25):
            writer.feed("in", fed[begin : begin + 25])
            writer.advance()
    said = {"table": "events", "days": "2013-01-02..2013-01-03", "partitions": 1}
    with bounded(said, home=tmp_path, max_rows=30) as driver:
        driver.advance()
        old = [*(tmp_path / "warehouse").glob("events/ds=*/*.parquet")]
        old += (tmp_path / "warehouse").glob(".events.headrace/data/*/*")
        for path in old:
            path.unlink()
        driver.crash()
        driver.run()
        assert streamed(wanted) == results(driver)


def test_rows_that_cannot_be_read_become_dead_letters_or_errors(tmp_path: Path) -> None:
    """With the line that they were on; the others count."""
    fed = rows(50)
    path = tmp_path / "in.csv"
    pl.DataFrame(fed).write_csv(path)
    lines = path.read_text().splitlines(keepends=True)
    lines[10:10] = ["2013-01-01T00:00:00Z,u1,many\n", '"2013-01-01","two\nlines",x\n']
    path.write_text("".join(lines))
    for max_rows in (4, 1000):
        with bounded({"files": str(path)}, max_rows=max_rows) as driver:
            driver.run()
            dead = driver.output("hours.dead")
            assert streamed(fed) == results(driver)
        assert "in.csv line 11: column 'n': found \"many\", expected int64" in dead[0]["message"]
        assert "in.csv line 13: column 'at': found" in dead[1]["message"]
        assert [letter["offset"] for letter in dead] == [9, 10]

    @hr.job("strict")
    def strict(g: hr.Graph) -> None:
        g.input("in", time="at", schema=SCHEMA).send_to(g.output("copy"))

    with (
        TestDriver(strict, inputs={"in": {"files": str(path)}}) as driver,
        pytest.raises(InvalidInputError, match="line 11: column 'n': found \"many\", expected int"),
    ):
        driver.run()


@pytest.mark.parametrize(
    ("name", "text", "dead"),
    [
        ("all.csv", b"at,user,n\n2013-01-01,ann,many\n", 1),
        ("all.jsonl", b'[{"user":"ann"}]\n', 1),
        ("null.jsonl", b'null\n{"at":"2013-01-01T00:00:00Z","user":"ann","n":1}\n', 1),
        ("mark.jsonl", b'\xef\xbb\xbf{"at":"2013-01-01T00:00:00Z","user":"a","n":1}\n[]\n', 1),
        ("blank.csv", b"\n\r\nat,user,n\n2013-01-01T00:00:00Z,ann,1\n", 0),
    ],
)
def test_files_with_odd_lines_alone(name: str, text: bytes, dead: int, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    with bounded({"files": str(tmp_path / name)}) as driver:
        driver.run()
        assert len(driver.output("hours.dead")) == dead
        assert len(results(driver)) == (0 if name.startswith("all") else 1)


def test_from_and_to_are_of_the_event_time_that_the_job_names(tmp_path: Path) -> None:
    """Where the stream itself has none."""

    @hr.job("named")
    def named(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output("copy"))

    limits = {"from": "2013-01-01T05:00", "to": "2013-01-01T06:00"}
    pattern = as_parquet(tmp_path, [rows(50)])
    for said in (limits, {**limits, "files": pattern}):
        with TestDriver(named, inputs={"in": said}) as driver:
            driver.create("in", COLUMNS)
            driver.feed("in", rows(50))
            driver.run()
            assert [row["n"] for row in driver.output("copy")] == [20, 21, 22, 23]


def test_parquet_that_becomes_another_in_a_run_is_told(tmp_path: Path) -> None:
    pattern = as_parquet(tmp_path, [rows(50)])
    with bounded({"files": pattern}, max_rows=13) as driver:
        driver.advance()
        as_parquet(tmp_path, [[{**row, "user": "another"} for row in rows(50)]])
        driver.crash()
        with pytest.raises(InvalidInputError, match=r"0\.parquet has changed since the run began"):
            driver.run()


def test_columns_are_guessed_from_a_file_with_rows(tmp_path: Path) -> None:
    @hr.job("guess")
    def guess(g: hr.Graph) -> None:
        g.input("in").send_to(g.output("copy"))

    for number, text in enumerate(("", "user,n\n", "user,n\nann,1\n")):
        (tmp_path / f"{number}.csv").write_text(text)
    with TestDriver(guess, inputs={"in": {"files": str(tmp_path)}}) as driver:
        driver.run()
        assert [row["n"] for row in driver.output("copy")] == [1]


def test_columns_that_do_not_fit_are_told(tmp_path: Path) -> None:
    pl.DataFrame({"at": [BEGIN], "user": ["ann"]}).write_parquet(tmp_path / "less.parquet")
    with (
        bounded({"files": str(tmp_path / "less.parquet")}) as driver,
        pytest.raises(InvalidInputError, match=r"less\.parquet has no column 'n'; expected those"),
    ):
        driver.run()
    pl.DataFrame({"at": [BEGIN], "user": ["ann"], "n": ["x"]}).write_parquet(tmp_path / "x.parquet")
    with (
        bounded({"files": str(tmp_path / "x.parquet")}) as driver,
        pytest.raises(InvalidInputError, match=r"x\.parquet: .*'n'"),
    ):
        driver.run()


def test_a_run_goes_on_with_the_input_that_it_began_with(tmp_path: Path) -> None:
    """Offsets of one input mean nothing in another."""
    fed = rows()
    files = as_csv(tmp_path, [fed])
    with bounded({"files": files}, max_rows=50) as driver:
        driver.advance()
        driver.crash()
        with_inputs(driver)
        with pytest.raises(
            InvalidInputError, match="in the middle of a run in which input 'in' is"
        ):
            driver.run()
        other = {"files": files, "to": "2013-01-02"}
        with_inputs(driver, **{"in": other})
        with pytest.raises(InvalidInputError, match="end that run first, start over with"):
            driver.run()
    with TestDriver(hours) as driver:
        driver.create("in", COLUMNS, time="at")
        driver.feed("in", fed)
        driver.run()
        with_inputs(driver, **{"in": other})
        with pytest.raises(InvalidInputError, match="input 'in' is the stream; found files"):
            driver.start()


def test_files_that_are_read_hold_no_window_of_a_stream_back(tmp_path: Path) -> None:
    """Beside a stream that goes on, files are over when they are read."""

    @hr.job("both")
    def both(g: hr.Graph) -> None:
        old = g.input("old", time="at", schema=SCHEMA)
        new = g.input("new", time="at", schema=SCHEMA)
        rows = old.merge(new).partition_by("user")
        rows.window(hr.tumbling("1h"), rows=hr.agg.count()).send_to(g.output("out"))

    fed = rows(8)
    with TestDriver(both, inputs={"old": {"files": as_parquet(tmp_path, [fed[:4]])}}) as driver:
        driver.create("new", COLUMNS, time="at")
        driver.feed("new", fed[4:])
        driver.run()
        driver.feed("new", [{**fed[0], "at": BEGIN + dt.timedelta(hours=9)}])
        driver.run()
        assert sum(row["rows"] for row in driver.output("out")) == 8


def test_a_file_that_is_gone_or_torn_is_told(tmp_path: Path) -> None:
    files = as_parquet(tmp_path, [rows()])
    with bounded({"files": files}, max_rows=50) as driver:
        driver.advance()
        (tmp_path / "0.parquet").write_bytes(b"PAR1")
        driver.crash()
        with pytest.raises(CorruptDataError, match=r"0\.parquet cannot be read"):
            driver.run()
    with (
        bounded({"files": f"{tmp_path}/none/*.csv"}) as driver,
        pytest.raises(InvalidInputError, match=r"no files at .*; check the path"),
    ):
        driver.run()
