"""``headrace backfill`` on real Spark: old data beside a job, merged with what it has."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
BEGIN = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
HOURS, ROWS, USERS = 6, 100, 5
JOB = """
import headrace as hr

def more(live, old):
    return old if live is None or old["n"] > live["n"] else None

@hr.job("hours", merge=more)
def hours(g: hr.Graph) -> None:
    rows = g.input("events", time="at").partition_by("user")
    rows.window(hr.tumbling("1h"), name="win", n=hr.agg.count()).send_to(g.output("out"))
"""


def headrace(folder: Path, *words: str) -> list[dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *words, "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def counts(folder: Path, stream: str) -> dict[tuple[str, int], int]:
    """The last count of each user and hour."""
    with open_bus(folder / ".headrace" / "bus") as bus:
        found = bus.stream(stream)
        return {
            (row["user"], round((row["window_start"] - BEGIN).total_seconds() / 3600)): row["n"]
            for partition in range(found.spec.partitions)
            for part in found.read(partition, 0)
            for row in part.batch.to_pylist()
        }


def test_old_hours_come_to_the_live_ones(tmp_path: Path) -> None:
    """The job began in the middle of an hour: that one is made whole, later ones are let be."""
    schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    with open_bus(tmp_path / ".headrace" / "bus") as bus:
        stream = bus.create(StreamSpec("events", 1, schema, "at"))
        step = dt.timedelta(hours=1) / ROWS
        numbers = range(HOURS * ROWS)
        rows = {
            "user": [f"u{n % USERS}" for n in numbers],
            "at": [BEGIN + n * step for n in numbers],
        }
        for begin in range(0, HOURS * ROWS, ROWS // 2):
            table = pa.Table.from_pydict(rows, schema=schema).slice(begin, ROWS // 2)
            stream.append(0, table)
    (tmp_path / "hours.py").write_text(JOB)
    master = ("--master", "local[2]")
    headrace(
        tmp_path, "run", "hours.py", "--bounded", *master, "--set", "job.start=2013-01-01T02:30"
    )
    each = ROWS // USERS
    users = [f"u{n}" for n in range(USERS)]
    live = {(user, hour): each for user in users for hour in range(3, HOURS)}
    assert counts(tmp_path, "out") == live | {(user, 2): each // 2 for user in users}

    span = ("--from", "2013-01-01T00:00", "--to", "2013-01-01T03:00", "--rate", "200")
    told = headrace(tmp_path, "backfill", "hours.py", *span, "--merge", *master)

    old = {(user, hour): each for user in users for hour in range(3)}
    assert counts(tmp_path, "out.backfill") == old
    assert counts(tmp_path, "out") == old | live
    (merged,) = [one for one in told if one["type"] == "merged"]
    assert (merged["appended"], merged["there"], merged["kept"]) == (3 * USERS, 0, 0)
    epochs = [one["rows"] for one in told if one["type"] == "epoch"]
    assert max(epochs) <= 200
    (same,) = headrace(tmp_path, "jobs", "compare", "hours", "hours-backfill")
    assert (same["outputs"][0]["only"], same["outputs"][0]["different"]) == ([3 * USERS, 0], 0)
