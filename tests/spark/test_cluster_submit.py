"""``headrace submit`` on a cluster whose hosts have neither the project nor Headrace's source."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.spark.hosts import small_executors
from tests.support.homes import load_settings
from tests.support.processes import LEAN
from tests.support.runs import ROOT, World
from tests.support.soak import crossed

from headrace.spark.submission import (
    IMAGE,
    UPLOADS,
    Packed,
    Submission,
    checked_master,
    find_spark_submit,
)
from headrace.testing.cluster import SparkCluster, namespace_command

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SITE = Path(sysconfig.get_path("purelib"))
JOB = """
import headrace as hr
from shared.words import told

@hr.job("told")
def told_job(g):
    rows = g.input("events").map(told, returns={"id": int, "prefix": str, "files": str})
    rows.send_to(g.output("told"))
"""
WORDS = """
import sys
import headrace
import rocksdict

def told(message):
    files = f"{headrace.__file__} {rocksdict.__file__}"
    return {"id": message.id, "prefix": sys.prefix, "files": files}
"""
ON_HOSTS = {"numpy", "numpy.libs", "pyarrow", "polars", "_polars_runtime_32"}
"""What hosts have by themselves: 424 MB, which would be packed, sent and unpacked twice."""
NEEDED = {"rocksdict", "xxhash"}
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def not_needed() -> list[str]:
    """The large packages that the job does without, or that hosts have: the archive is small."""
    return [path.name for path in SITE.iterdir() if path.name not in NEEDED and _mib(path)]


def _mib(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size >> 20
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) >> 20


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "shared").mkdir(parents=True)
    (folder / "told_job.py").write_text(JOB)
    (folder / "shared" / "__init__.py").touch()
    (folder / "shared" / "words.py").write_text(WORDS)
    return folder


@pytest.fixture
def cluster(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkCluster]:
    """A host that finds the project and Headrace's source empty, where it can have such a view.

    Of the packages here it has a few large ones.
    """
    hidden = [project, ROOT / "src"] if namespace_command() is not None else []
    large = tmp_path / "large"
    large.mkdir()
    for name in ON_HOSTS:
        (large / name).symlink_to(SITE / name)
    places = [str(large) if Path(place) == SITE else place for place in sys.path]
    state = tmp_path / "home" / "state"
    with ExitStack() as held:
        with monkeypatch.context() as patch:  # hosts have the path of this process
            patch.setattr(sys, "path", places)
            made = SparkCluster(tmp_path / "cluster", 1, 1024, state_dir=state, without=hidden)
            running = held.enter_context(made)
        yield running
    assert running.processes() == []


def submitted(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), LEAN])}
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "submit", *words],
        cwd=project.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(900)  # packing is work
def test_what_runs_is_what_was_packed(tmp_path: Path, project: Path, cluster: SparkCluster) -> None:
    world = World(tmp_path / "home")
    world.feed(20)
    words = ["project/told_job.py", "--master", cluster.url, "--home", str(world.home)]
    words += [word for name in not_needed() for word in ("--exclude", name)]
    small = [one.removeprefix("spark.conf.") for one in small_executors()]
    small.append("spark.ui.enabled=false")
    conf = [word for one in small for word in ("--conf", one)]
    ran = submitted(project, *words, "--bounded", *conf)
    assert ran.returncode == 0, ran.stderr
    rows = world.rows("told")
    assert len(rows) == 40
    (prefix,) = {row["prefix"] for row in rows}
    (files,) = {row["files"] for row in rows}
    assert Path(prefix).name == "environment"
    assert Path(prefix).is_relative_to(cluster.home)
    assert all(file.startswith(prefix) for file in files.split()), files


@pytest.mark.parametrize(
    ("url", "mode"), crossed(["yarn", "k8s://https://127.0.0.1:6443"], ["client", "cluster"])
)
def test_sparks_own_parser_takes_the_command(tmp_path: Path, url: str, mode: str) -> None:
    """Not run: there is no such cluster here."""
    conf = {IMAGE: "spark:4", UPLOADS: "s3a://bucket/folder"} if url != "yarn" else {}
    made = Submission(
        job="told",
        target="told_job",
        master=checked_master(url, mode, conf, {"HADOOP_CONF_DIR": str(tmp_path)}),
        settings=load_settings(None, [f"home={tmp_path}"], {}),
        conf=conf,
        packed=Packed(tmp_path / "project.zip", tmp_path / "environment.tar.gz"),
        folder=tmp_path / "submitted",
        log_file=tmp_path / "spark.log",
        options=["--bounded"],
    )
    made.write()
    submit, *arguments = made.command(find_spark_submit(os.environ))
    jars = Path(submit).parents[1] / "jars"
    main = ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"]
    ran = subprocess.run(
        ["java", *QUICK, "-cp", f"{jars}/*", *main, *arguments],
        env={**os.environ, "SPARK_HOME": str(jars.parent), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    parsed = [word for word in ran.stdout.split("\0") if word]
    assert "org.apache.spark.deploy.SparkSubmit" in parsed
    for word in ("--archives", f"{tmp_path / 'environment.tar.gz'}#environment", "told_job"):
        assert word in parsed
