"""``headrace backfill`` on real Spark: beside a job, and in the place of it with more executors."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.hosts import small_executors
from tests.support.cli import headrace
from tests.support.homes import Home
from tests.support.processes import until
from tests.support.shop import end, started

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
HOURS, ROWS, USERS = 6, 100, 5
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])
JOB = """
import headrace as hr

def more(live, old):
    return old if live is None or old["n"] > live["n"] else None

@hr.job("hours", merge=more)
def hours(g: hr.Graph) -> None:
    rows = g.input("events", time="at").partition_by("user")
    rows.window(hr.tumbling("1h"), name="win", n=hr.agg.count()).send_to(g.output("out"))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """The home of a folder with a job, in which commands are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "hours_job.py").write_text(JOB)
    with Home(tmp_path / ".headrace") as made:
        made.create("events", SCHEMA, time="at")
        yield made
    sys.modules.pop("hours_job", None)


def told(*words: str) -> list[dict[str, Any]]:
    ran = headrace(*words, "--json")
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def counts(home: Home, stream: str) -> dict[tuple[str, int], int]:
    """The last count of each user and hour."""
    return {
        (row["user"], round((row["window_start"] - BEGIN).total_seconds() / 3600)): row["n"]
        for row in home.rows(stream)
    }


def test_old_hours_come_to_the_live_ones(home: Home) -> None:
    """The job began in the middle of an hour: that one is made whole, later ones are let be."""
    step = dt.timedelta(hours=1) / ROWS
    rows = [{"user": f"u{n % USERS}", "at": BEGIN + n * step} for n in range(HOURS * ROWS)]
    for begin in range(0, HOURS * ROWS, ROWS // 2):
        home.send("events", rows[begin : begin + ROWS // 2], 0)
    master = ("--master", "local[2]")
    told("run", "hours_job.py", "--bounded", *master, "--set", "job.start=2013-01-01T02:30")
    each = ROWS // USERS
    users = [f"u{n}" for n in range(USERS)]
    live = {(user, hour): each for user in users for hour in range(3, HOURS)}
    assert counts(home, "out") == live | {(user, 2): each // 2 for user in users}

    span = ("--from", "2013-01-01T00:00", "--to", "2013-01-01T03:00", "--rate", "200")
    said = told("backfill", "hours_job.py", *span, "--merge", *master)

    old = {(user, hour): each for user in users for hour in range(3)}
    assert counts(home, "out.backfill") == old
    assert counts(home, "out") == old | live
    (merged,) = [one for one in said if one["type"] == "merged"]
    assert (merged["appended"], merged["there"], merged["kept"]) == (3 * USERS, 0, 0)
    epochs = [one["rows"] for one in said if one["type"] == "epoch"]
    assert max(epochs) <= 200
    (same,) = told("jobs", "compare", "hours", "hours-backfill")
    assert (same["outputs"][0]["only"], same["outputs"][0]["different"]) == ([3 * USERS, 0], 0)


@pytest.mark.soak
def test_executors_and_tasks_are_those_of_before_when_it_has_caught_up(home: Home) -> None:
    """The second Spark application begins in the same process, and reads what comes by then."""

    def feed(hour: int) -> None:
        at = BEGIN + dt.timedelta(hours=hour)
        home.send("events", [{"user": f"u{n}", "at": at} for n in range(USERS)], 0)

    for hour in range(3):
        feed(hour)
    told("run", "hours_job.py", "--bounded", "--standalone", "--set", "job.tasks=2")
    words = ["backfill", "hours_job.py", "--from", "2013-01-01", "--blocking", "--tasks", "4"]
    words += ["--executors", "1", "--master", "local-cluster[1,1,768]"]
    words += [word for one in ("job.tasks=2", *small_executors()) for word in ("--set", one)]
    process = started(Path.cwd(), *words)
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line.strip())
            if "has caught up" in line:
                break
        assert said[-1] == "hours has caught up, and continues as before", said
        assert "hours: 4 tasks for each keyed stage (else events.by_user 2)" in said
        feed(3)
        feed(4)
        until(lambda: counts(home, "out").get((f"u{USERS - 1}", 3)) == 1, "the job to go on")
        told("jobs", "stop", "hours")
        assert process.wait(60) in (0, 130)
    finally:
        end(process)
    (job,) = told("jobs", "describe", "hours")
    assert [(one["stage"], one["tasks"]) for one in job["stages"]] == [("events.by_user", 2)]
