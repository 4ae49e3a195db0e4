"""What ``headrace`` tells of tables: their rows, rows that wait, and what is read first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, refused

import headrace as hr
from headrace.testing import TestDriver


@hr.job("visits")
def visits(g: hr.Graph) -> None:
    names = g.table("names", "member", name="held")
    rates = g.table("rates", "member", time="at", history="1h", name="versions")
    clicks = g.input("clicks", time="at", priority=2).partition_by("member")
    named = clicks.join(names, columns=["name"], name="named")
    valued = named.join(rates, columns=["rate"], as_of="event", name="valued")
    valued.send_to(g.output("out"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with TestDriver(visits, tasks=2, home=tmp_path, max_rows=10) as driver:
        driver.create("names", {"member": pa.int64(), "name": pa.string()})
        driver.create("rates", {"member": pa.int64(), "rate": pa.int64(), "at": pa.int64()})
        driver.create("clicks", {"member": pa.int64(), "at": pa.int64()})
        driver.feed("names", [{"member": n % 3, "name": f"n{n}"} for n in range(8)])
        driver.feed("rates", [{"member": 1, "rate": n, "at": n} for n in range(8)])
        driver.feed("clicks", [{"member": 1, "at": 7}])
        driver.advance()
        (tmp_path / "first.json").write_text(done("jobs", "why", "visits", "--json", *at(tmp_path)))
        (tmp_path / "first.txt").write_text(done("jobs", "why", "visits", *at(tmp_path)))
        driver.run()
    return tmp_path


def at(home: Path) -> list[Any]:
    return ["--home", home]


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_rows_of_tables_are_shown_by_key(home: Path) -> None:
    found = rows(done("state", "scan", "visits", "held", "--json", *at(home)))
    assert sorted((row["member"], row["name"]) for row in found) == [
        (0, "n6"),
        (1, "n7"),
        (2, "n5"),
    ]
    [one] = rows(done("state", "get", "visits", "held", "1", "--json", *at(home)))
    assert one["name"] == "n7"


def test_versions_and_rows_that_wait_are_shown(home: Path) -> None:
    [versions] = rows(done("state", "scan", "visits", "versions", "--json", *at(home)))
    assert versions["rate"] == list(range(8))
    [waiting] = rows(done("state", "get", "visits", "valued", "1", "--json", *at(home)))
    assert (waiting["member"], waiting["name"]) == (1, "n7")


def test_a_diff_of_a_table_is_refused_with_what_there_is(home: Path) -> None:
    text = refused("state", "diff", "visits", "held", "1", "2", *at(home))
    assert "see what there is with headrace state scan" in text


def test_why_tells_what_is_read_first_and_that_others_wait(home: Path) -> None:
    [why] = rows((home / "first.json").read_text())
    assert [(one["operator"], one["next_offset"], one["end"]) for one in why["first"]] == [
        ("names", 5, 8),
        ("rates", 5, 8),
    ]
    stops = {one["operator"]: (one["stopped_at"], one["reason"]) for one in why["ends"]}
    assert stops["valued.to_out"] == ("clicks", "it waits until names has been read")
    shown = (home / "first.txt").read_text()
    assert "names is read first, partition 0 is at 5 of 8; other inputs wait" in shown
    assert "clicks, priority 2" in shown


def test_a_row_that_waits_for_event_time_is_told_so(home: Path) -> None:
    [why] = rows(done("jobs", "why", "visits", "--json", *at(home)))
    [end] = [one for one in why["ends"] if one["operator"] == "valued.to_out"]
    assert (end["stopped_at"], end["reason"]) == ("valued", "it waits for a watermark")
    assert why["first"] == []
