"""Jobs by ``headrace submit --master yarn`` on a real YARN, in both modes, while parts die."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.cli import headrace
from tests.support.processes import end_group, kill, until
from tests.support.runs import World
from tests.support.servers import YarnServer

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.soak(share=50)]

JOB = """
import headrace as hr

@hr.job("counts")
def counts(g):
    ids = g.input("events").partition_by("id")
    ids.aggregate(n=hr.agg.count()).send_to(g.output("counts"))
"""
EXECUTOR = "YarnCoarseGrainedExecutorBackend"
MASTERS = {"client": "ExecutorLauncher", "cluster": "yarn.ApplicationMaster"}
START_S = 240.0
"""A job on YARN takes so long to start on two cores that others use at most."""


@pytest.fixture
def yarn(tmp_path: Path) -> Iterator[YarnServer]:
    with YarnServer(tmp_path / "yarn") as server:
        yield server


class Submitted:
    """A job on YARN, and the command that has submitted it."""

    def __init__(self, world: World, yarn: YarnServer, mode: str, folder: Path) -> None:
        self._world, self._yarn, self._mode = world, yarn, mode
        folder.mkdir()
        (folder / "job.py").write_text(JOB)
        small = os.environ["SPARK_DAEMON_JAVA_OPTS"]
        jars = Path(sysconfig.get_path("purelib"), "pyspark", "jars")
        conf = {
            "spark.yarn.jars": f"local:{jars}/*",
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": small,
            "spark.driver.memory": "512m",
            "spark.yarn.am.memory": "512m",
            "spark.yarn.maxAppAttempts": "10",
        }
        words = ["submit", "job.py:counts", "--master", "yarn", "--deploy-mode", mode]
        words += ["--environment", "none", "--home", str(world.home), "--set", "job.tasks=4"]
        words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", *words],
                cwd=folder,
                env={**os.environ, **yarn.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def feed(self, count: int) -> None:
        """Append rows, and wait until they are committed."""
        self._world.feed(count)
        rows = sum(map(len, self._world.log))
        until(lambda: self._world.read_so_far("counts") == rows, f"{rows} rows", START_S)

    def end(self) -> None:
        """Stop the job as a user does, and wait for the command."""
        if self._mode == "client":
            stopped = headrace("jobs", "stop", "counts", "--home", self._world.home)
            assert stopped.code == 0, stopped.err
        else:
            self._yarn.end(self._yarn.applications()[0]["id"])
        self.process.wait(START_S)


@contextmanager
def submitted(world: World, yarn: YarnServer, mode: str, folder: Path) -> Iterator[Submitted]:
    made = Submitted(world, yarn, mode, folder)
    try:
        yield made
    except BaseException:
        print((folder / "log").read_text(errors="replace")[-4000:])
        raise
    finally:
        end_group(made.process)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MASTERS)
def test_a_job_survives_a_container_and_the_application_master(
    tmp_path: Path, yarn: YarnServer, mode: str
) -> None:
    """Each row is counted once, and YARN starts again what was killed."""
    world = World(tmp_path / "home")
    with submitted(world, yarn, mode, tmp_path / "project") as job:
        job.feed(40)
        executors = yarn.containers(EXECUTOR)
        assert executors
        kill(executors[0])
        job.feed(40)
        (master,) = yarn.containers(MASTERS[mode])
        kill(master)
        job.feed(40)
        until(lambda: yarn.containers(MASTERS[mode]), "another application master", START_S)
        job.feed(40)
        job.end()
    expected = Counter(row["id"] for rows in world.log for row in rows)
    found: Counter[int] = Counter()
    for row in world.rows("counts"):
        found[row["id"]] = max(found[row["id"]], row["n"])
    assert expected == found
