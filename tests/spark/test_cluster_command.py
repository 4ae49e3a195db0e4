"""``headrace cluster``: hosts with disks of their own, which come and go while a job runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.hosts import world_on
from tests.support.cli import done, refused
from tests.support.runs import Driver, until

from headrace.testing.cluster import SparkCluster, namespace_command

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home with a cluster of two hosts, of which nothing is left at the end."""
    folder = tmp_path / "home"
    apart(folder, "up", "--workers", "2", "--memory", "512")
    yield folder
    told(folder, "down")
    assert SparkCluster(folder / "cluster").processes() == []


def apart(home: Path, *words: str) -> None:
    """Start hosts by a process of its own, which they outlive."""
    command = [sys.executable, "-m", "headrace.cli.main", "cluster", *words, "--home", str(home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def told(home: Path, *words: str) -> Any:
    return json.loads(done("cluster", *words, "--json", "--home", home))


def stores(folder: Path) -> set[str]:
    """The folders of tasks with stores that are on a disk."""
    return {path.name for path in folder.glob("shuffling/*") if path.is_dir()}


def test_a_job_meets_hosts_that_come_and_go(home: Path) -> None:
    found = told(home, "ls")
    assert [one["is_up"] for one in found["hosts"]] == [True, True]
    assert "runs in" in refused("cluster", "up", "--home", home)

    world = world_on(found["master"], home, "placement.wait_s=0", "job.slots=2")
    world.open_gate("draw")
    world.feed(20)
    with Driver("shuffling", world) as driver:
        until(lambda: world.count("kept") == 40, "the first records", driver)
        disks = [stores(Path(one["state"])) for one in found["hosts"]]
        assert all(disks)
        assert not disks[0] & disks[1]
        assert namespace_command() is None or not stores(home / "state")

        assert told(home, "kill", "0")["killed"] >= 3
        assert not told(home, "ls")["hosts"][0]["is_up"]
        world.feed(20)
        until(lambda: world.count("kept") == 80, "the records after the loss", driver)
        assert stores(Path(found["hosts"][1]["state"])) == disks[0] | disks[1]

        apart(home, "start", "0")
        assert told(home, "ls")["hosts"][0]["is_up"]
        world.feed(20)
        until(lambda: world.count("kept") == 120, "the records after the return", driver)
        driver.terminate()
        driver.wait()
    assert sum(world.store("shuffling", "n").values()) == 120
