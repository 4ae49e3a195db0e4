"""Old data beside and in the place of a job that runs, in processes that are killed for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done
from tests.support.processes import Started
from tests.support.runs import until
from tests.support.watching import MERGING, RESUMED, JobEventFile

from headrace.bus import StreamSpec, open_bus

SCHEMA = pa.schema({"user": pa.string(), "n": pa.int64(), "at": pa.int64()})
USERS = "abcdefghij"
JOB = """
import os
import pathlib
import time

import headrace as hr


def add(live, old):
    gate = pathlib.Path("gate")
    while gate.exists():
        pathlib.Path("merging").touch()
        time.sleep(0.05)
    return old if live is None else {**old, "n": old["n"] + live["n"]}


@hr.job("sums", merge=add)
def sums(g):
    rows = g.input("in", time="at").partition_by("user")
    rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("out", partitions=2), name="out")
"""


class Place(Started):
    """A home with a stream, and commands in processes of their own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, folder / "home")
        (folder / "job.py").write_text(JOB)
        self.bus = open_bus(self.home / "bus")
        self.stream = self.bus.create(StreamSpec("in", 1, SCHEMA, "at"))

    def feed(self, *users: str) -> None:
        """One row for each, an append each, so that epochs may end between any two."""
        for user in users:
            self.stream.append(0, pa.RecordBatch.from_pylist([{"user": user, "n": 1, "at": 0}]))

    def sums(self, stream: str = "out") -> dict[str, int]:
        """What a reader has of each user."""
        if stream not in self.bus.names():
            return {}
        found = self.bus.stream(stream)
        return {
            row["user"]: row["n"]
            for partition, begin in enumerate(found.begins())
            for part in found.read(partition, begin)
            for row in part.batch.to_pylist()
        }

    def sent(self) -> int:
        return sum(self.bus.stream("out").ends())

    def jobs(self, *words: str) -> Any:
        return json.loads(done("jobs", *words, "--json", "--home", self.home))

    def status(self, job: str = "sums") -> str:
        return str(self.jobs("describe", job)["status"])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.bus.close()
    made.end()


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130


def test_a_job_is_stopped_reads_again_and_runs_on_though_it_is_killed(place: Place) -> None:
    place.feed(*USERS)
    live = place.start("run", "job.py", "--standalone")
    until(lambda: place.sums() == dict.fromkeys(USERS, 1), "the live results")
    sent = place.sent()

    asked = ("backfill", "job.py", "--from", "1970-01-01", "--blocking", "--standalone")
    again = place.start(*asked, "--rate", "2")
    assert live.wait(60) == 130
    until(lambda: place.sent() > sent, "some of the rows again")
    kill(again)
    between = place.sent() - sent
    assert 0 < between < len(USERS)

    on = place.start(*asked)
    until(lambda: "has caught up" in place.said(2), "the end of the backfill")
    assert "was interrupted, and continues" in place.said(2)
    assert place.sent() - sent == len(USERS)
    place.feed("a", "new")
    until(lambda: place.sums() == dict.fromkeys(USERS, 1) | {"a": 2, "new": 1}, "rows after it")
    stop(on)


def test_a_merge_that_is_killed_lets_the_live_job_go_on(place: Place) -> None:
    place.feed(*USERS)
    live = place.start("run", "job.py", "--standalone")
    until(lambda: place.sums() == dict.fromkeys(USERS, 1), "the live results")
    beside = place.start("backfill", "job.py", "--from", "1970-01-01", "--standalone")
    assert beside.wait(60) == 0
    gate = place.folder / "gate"
    gate.touch()
    merging = place.start("jobs", "merge", "sums", "sums-backfill", "--merge-job", "job.py")
    until((place.folder / "merging").exists, "the merge")
    until(lambda: place.status() == "paused", "the pause")
    place.feed("a")
    assert place.sums() == dict.fromkeys(USERS, 1)

    kill(merging)

    until(lambda: place.sums()["a"] == 2, "the live job")
    assert place.status() == "running"
    until(lambda: "give the command that began it again" in place.said(0), "word of it")
    events = [(one.kind, one.text) for one in JobEventFile(place.home / "jobs" / "sums").read()]
    assert events[-2:] == [MERGING, RESUMED]
    gate.unlink()
    merged = place.start("jobs", "merge", "sums", "sums-backfill", "--merge-job", "job.py")
    assert merged.wait(60) == 0
    assert place.sums() == dict.fromkeys(USERS, 2) | {"a": 3}
    place.feed("b", "b")
    until(lambda: place.sums()["b"] == 3, "the live job after the merge")  # by its own state
    stop(live)
