"""``headrace run --join``: what the command says, shows and is asked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import done
from tests.support.processes import Started
from tests.support.runs import World, until

JOB = """
import headrace as hr

@hr.job("passing")
def passing(g: hr.Graph) -> None:
    g.input("events").partition_by("id").send_to(g.output("passed"))
"""


class Commands(Started):
    """Commands of ours in a folder with a job, on the home of a world."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(folder, world.home)
        self.world = world
        (folder / "job.py").write_text(JOB)

    def __call__(self, *words: str) -> str:
        """Run a command in this process."""
        return done(*words, "--home", self.world.home)

    def described(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("jobs", "describe", "passing", "--json"))
        return found


@pytest.fixture
def headrace(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(World(tmp_path / "home"), tmp_path)
    yield commands
    commands.end()


def test_processes_that_share_a_job_are_told_asked_and_stopped(headrace: Commands) -> None:
    headrace.world.feed(20)
    words = ("run", "job.py", "--join", "--set", "placement.wait_s=0.5", "-v")
    first = headrace.start(*words)
    until(lambda: headrace.world.read_so_far("passing") == 40, "the first rows")
    second = headrace.start(*words)
    until(lambda: f"joined process {first.pid}" in headrace.said(1), "the second process")

    found = headrace.described()
    assert (found["status"], found["process"]) == ("running", first.pid)
    shown = {(one["process"], one["drives"], one["slots"]) for one in found["members"]}
    assert shown == {(first.pid, True, 1), (second.pid, False, 1)}
    assert f"process {first.pid}, 1 more" in headrace("jobs", "ls")
    told = headrace("jobs", "describe", "passing")
    assert f"process {first.pid} on {os.uname().nodename} with 1 slot, drives" in told

    assert "paused" in headrace("jobs", "pause", "passing")
    assert "running" in headrace("jobs", "resume", "passing")
    said = headrace("jobs", "stop", "passing")
    assert f"process {first.pid} has left it after epoch" in said
    assert f"process {second.pid}, which shares it, goes on" in said
    assert first.wait(30) == 130
    assert "stopped after epoch" in headrace.said(0)
    until(lambda: headrace.described()["process"] == second.pid, "the next driver")
    headrace.world.feed(20)
    until(lambda: headrace.world.read_so_far("passing") == 80, "more rows")
    assert "stopped after epoch" in headrace("jobs", "stop", "passing")
    assert second.wait(30) == 130
    assert headrace.described()["status"] == "stopped"
    assert headrace.described()["members"] == []


def test_a_bounded_run_ends(headrace: Commands) -> None:
    headrace.world.feed(20)
    path = str(headrace.folder / "job.py")
    told = headrace("run", path, "--standalone", "--bounded", "--set", "control.enabled=false")
    assert "passing: 40 rows" in told
    assert "ended in epoch" in told
