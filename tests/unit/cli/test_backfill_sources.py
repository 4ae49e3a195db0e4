"""``headrace backfill`` from what a stream retains, from the warehouse and from a bootstrap."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import JobState, part_reader
from tests.support.cli import done, headrace

import headrace as hr
from headrace.bus import StreamSpec
from headrace.testing import TestDriver

BEGIN = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
COLUMNS = {"at": pa.timestamp("us", "UTC"), "user": pa.string(), "n": pa.int64()}
HERE = Path(__file__).stem
SPAN = ("--from", "2013-01-01", "--to", "2013-01-03")


@hr.job("days")
def days(g: hr.Graph) -> None:
    rows = g.input("in", time="at").partition_by("user")
    rows.window(hr.tumbling("1d"), n=hr.agg.sum("n")).send_to(g.output("out"), name="out")


@hr.job("history")
def history(g: hr.Graph) -> None:
    g.input("in", time="at").send_to(g.output_table("events"))


@hr.job("cities")
def cities(g: hr.Graph) -> None:
    """Of a database: what was made of each profile, as it is now."""
    g.input("profiles", bootstrap=True, start="latest").partition_by("user").aggregate(
        city=hr.agg.last("city")
    ).send_to(g.output("made"), name="out")


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Two users, a row of each every six hours, from one day to another."""
    return [
        {"at": BEGIN + dt.timedelta(days=day, hours=6 * n), "user": user, "n": 1}
        for day in range(first, last)
        for n in range(4)
        for user in ("ann", "bob")
    ]


def totals(driver: TestDriver, stream: str = "out") -> dict[tuple[str, int], int]:
    return {
        (one["user"], (one["window_start"] - BEGIN).days): one["n"] for one in driver.output(stream)
    }


def state(driver: TestDriver, job: str) -> JobState:
    reader = part_reader(driver, job)
    return reader.state()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[TestDriver]:
    """A job that began with the third of five days; the last one is not over."""
    with TestDriver(days, tasks=2, home=tmp_path, memory_bus=False, start="latest") as made:
        made.create("in", COLUMNS, time="at")
        for day in range(2):
            made.feed("in", rows(day, day + 1))
        made.run()
        made.feed("in", rows(2, 5))
        made.run()
        made.crash()
        yield made


WHOLE = {(user, day): 4 for user in ("ann", "bob") for day in range(4)}


def backfill(driver: TestDriver, job: str, *words: str) -> None:
    asked = ("backfill", f"tests.unit.cli.{HERE}:{job}", *words, "--standalone", "--merge")
    ran = headrace(*asked, "--home", driver.home)
    assert ran.code == 0, ran.err


def test_from_a_stream_that_retains_it(live: TestDriver) -> None:
    assert {day for _, day in totals(live)} == {2, 3}
    before = state(live, "days")
    backfill(live, "days", *SPAN)
    assert state(live, "days").inputs == before.inputs
    assert state(live, "days-backfill").lineage != before.lineage
    assert {day for _, day in totals(live, "out.backfill")} == {0, 1}
    assert totals(live) == WHOLE


def test_from_the_warehouse_what_the_stream_has_dropped(live: TestDriver, tmp_path: Path) -> None:
    with TestDriver(history, home=tmp_path, memory_bus=False) as kept:
        kept.run()
    done("bus", "trim", "in", "--before", "latest", "--home", tmp_path)
    backfill(live, "days", *SPAN, "--set", "inputs.in.table=events")
    assert totals(live) == WHOLE
    live.feed("in", rows(5, 6))
    live.run()
    assert totals(live) == WHOLE | {("ann", 4): 4, ("bob", 4): 4}


def test_from_a_bootstrap_what_changed_before_the_job_began(tmp_path: Path) -> None:
    """A compacted stream is the database as it is: its last row of each key, and changes after."""
    with TestDriver(cities, tasks=2, home=tmp_path, memory_bus=False) as live:
        schema = pa.schema({"user": pa.string(), "city": pa.string()})
        spec = StreamSpec("profiles", 2, schema, key=("user",), compact=True)
        profiles = live.bus.create(spec)
        old = [{"user": f"u{n}", "city": f"old {n}"} for n in range(6)]
        live.feed("profiles", [{**one, "city": "left"} for one in old])
        live.feed("profiles", old)
        for partition in range(2):
            profiles.compact(partition)
        live.run()
        live.feed("profiles", [{"user": "u1", "city": "new"}])
        live.run()
        live.crash()

        def made(stream: str) -> dict[str, str]:
            return {one["user"]: one["city"] for one in live.output(stream)}

        assert made("made") == {"u1": "new"}
        backfill(live, "cities", "--from", "earliest")
        assert made("made.backfill") == {f"u{n}": f"old {n}" for n in range(6)} | {"u1": "new"}
        assert made("made") == made("made.backfill")
        live.feed("profiles", [{"user": "u2", "city": "newer"}])
        live.run()
        assert made("made") == made("made.backfill") | {"u2": "newer"}
