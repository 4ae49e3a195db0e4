"""``headrace backfill --blocking`` on real Spark, with executors that are given back at the end."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.test_backfill import BEGIN, JOB, ROOT, counts, headrace

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.clock import Deadline, SystemClock
from headrace.testing.processes import end_group, wait_until

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])
USERS, HOURS = 5, 3
MASTER = ("--master", "local-cluster[2,1,768]", "--set", "spark.conf.spark.executor.memory=512m")


def feed(bus: Bus, hour: int) -> None:
    at = BEGIN + dt.timedelta(hours=hour)
    rows = {"user": [f"u{n}" for n in range(USERS)], "at": [at] * USERS}
    bus.stream("events").append(0, pa.Table.from_pydict(rows, schema=SCHEMA))


def test_executors_and_tasks_are_those_of_before_when_it_has_caught_up(tmp_path: Path) -> None:
    """The second Spark application begins in the same process, and reads what comes by then."""
    (tmp_path / "hours.py").write_text(JOB)
    with open_bus(tmp_path / ".headrace" / "bus") as bus:
        bus.create(StreamSpec("events", 1, SCHEMA, "at"))
        for hour in range(HOURS):
            feed(bus, hour)
        headrace(tmp_path, "run", "hours.py", "--bounded", "--standalone", "--set", "job.tasks=2")
        words = ("--from", "2013-01-01", "--blocking", "--tasks", "4", "--executors", "2")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        command = [sys.executable, "-m", "headrace.cli.main", "backfill", "hours.py", *words]
        process = subprocess.Popen(
            [*command, *MASTER, "--set", "job.tasks=2"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
        )
        stderr = process.stderr
        assert stderr is not None
        try:
            said = []
            for line in stderr:
                said.append(line.strip())
                if "has caught up" in line:
                    break
            assert said[-1] == "hours has caught up, and goes on as before", said
            assert "hours: 4 tasks for each keyed stage (else events.by_user 2)" in said
            feed(bus, HOURS)
            feed(bus, HOURS + 1)
            last = f"u{USERS - 1}", HOURS
            wait_until(
                lambda: counts(tmp_path, "out").get(last) == 1,
                Deadline(SystemClock(), 90),
                "the job to go on",
            )
            headrace(tmp_path, "jobs", "stop", "hours")
            assert process.wait(60) in (0, 130)
        finally:
            end_group(process)
            stderr.close()
    (job,) = headrace(tmp_path, "jobs", "describe", "hours")
    assert [(one["stage"], one["tasks"]) for one in job["stages"]] == [("events.by_user", 2)]
