"""What ``headrace submit`` packs, and the call of ``spark-submit`` that it makes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.homes import unpack
from tests.support.soak import more

from headrace.clock import Deadline, SystemClock
from headrace.config import load_settings
from headrace.errors import InvalidInputError
from headrace.spark import submission as packing
from headrace.spark.submission import (
    IMAGE,
    UPLOADS,
    Packed,
    Submission,
    checked_master,
    find_spark_submit,
    pack_environment,
    pack_project,
    settings_toml,
)
from headrace.testing.servers import wait_until

HADOOP = {"HADOOP_CONF_DIR": "/etc/hadoop"}


def submission(
    folder: Path, master: str, mode: str = "client", *sets: str, **conf: str
) -> Submission:
    given = {name.replace("__", "."): value for name, value in conf.items()}
    settings = load_settings(None, [f"home={folder / 'home'}", *sets], {})
    return Submission(
        job="radar",
        target="jobs.radar:radar",
        master=checked_master(master, mode, given, HADOOP),
        settings=settings,
        conf=given,
        packed=Packed(folder / "project.zip", folder / "environment.tar.gz"),
        folder=folder / "submitted",
        log_file=folder / "spark.log",
        options=["--bounded"],
    )


@pytest.mark.parametrize(
    ("master", "mode", "said"),
    [
        ("local[2]", "client", "run the job with headrace run"),
        ("sc://host:15002", "client", "Spark Connect does not have"),
        ("spark://host", "client", "which Spark does not know"),
        ("mesos://host:5050", "client", "which Spark does not know"),
        ("spark://host:7077", "cluster", "runs no Python drivers"),
        ("yarn", "cluster", "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"),
        ("k8s://https://host:6443", "client", f"--conf {IMAGE}=registry/image:tag"),
    ],
)
def test_a_master_that_cannot_be_is_refused(master: str, mode: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=r".") as refused:
        checked_master(master, mode, {}, {})
    assert said in refused.value.message


def test_a_driver_in_kubernetes_needs_a_place_for_its_files() -> None:
    with pytest.raises(InvalidInputError, match=UPLOADS):
        checked_master("k8s://https://host:6443", "cluster", {IMAGE: "spark"}, {})
    both = {IMAGE: "spark", UPLOADS: "s3a://bucket/folder"}
    assert not checked_master("k8s://https://host:6443", "cluster", both, {}).is_here


def test_nothing_of_settings_is_on_the_command_line(tmp_path: Path) -> None:
    made = submission(
        tmp_path, "yarn", "cluster", "remote.url=redis://:pass1@h:1", spark__ssl__key="pass2"
    )
    made.write()
    command = made.command("spark-submit")
    assert "pass" not in " ".join(command)
    properties, settings = made.folder / "radar.properties", made.folder / "radar.toml"
    assert "spark.ssl.key pass2" in properties.read_text().splitlines()
    assert "pass1" in settings.read_text()
    for path in (properties, settings):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_driver_on_the_cluster_gets_its_settings_and_python_with_it(tmp_path: Path) -> None:
    made = submission(tmp_path, "yarn", "cluster")
    command, conf = made.command("spark-submit"), made.spark_conf()
    assert command[1:5] == ["--master", "yarn", "--deploy-mode", "cluster"]
    assert command[command.index("--files") + 1] == str(made.folder / "radar.toml")
    assert command[command.index("--archives") + 1].endswith("environment.tar.gz#environment")
    assert command[-5:] == ["run", "jobs.radar:radar", "--config", "radar.toml", "--bounded"]
    assert conf["spark.pyspark.python"] == conf["spark.pyspark.driver.python"]
    assert conf["spark.pyspark.python"] == "./environment/bin/python"
    assert "spark.driver.host" not in conf
    assert conf["spark.python.unix.domain.socket.enabled"] == "false"


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_no_pod_of_kubernetes_declares_port_0(tmp_path: Path, mode: str) -> None:
    """The API server refuses such a driver."""
    conf = {IMAGE: "spark", UPLOADS: "s3a://bucket/folder"}
    made = replace(
        submission(tmp_path, "yarn"),
        master=checked_master("k8s://https://host:6443", mode, conf, {}),
        conf=conf,
    )
    assert not [name for name, value in made.spark_conf().items() if value == "0"]


def test_a_driver_here_keeps_its_python_and_reads_settings_in_place(tmp_path: Path) -> None:
    made = submission(tmp_path, "spark://host:7077")
    command, conf = made.command("spark-submit"), made.spark_conf()
    assert "--files" not in command
    assert str(made.folder / "radar.toml") in command
    assert conf["spark.pyspark.driver.python"] == sys.executable
    assert "spark.driver.bindAddress" not in conf, "executors could not reach the driver"
    assert submission(tmp_path, "spark://127.0.0.1:7077").spark_conf()["spark.driver.host"]


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_without_an_archive_all_hosts_run_the_python_of_this_command(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(submission(tmp_path, "yarn", mode), packed=Packed(None, None))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert made.spark_conf()["spark.pyspark.python"] == sys.executable
    assert made.spark_conf()["spark.pyspark.driver.python"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert made.spark_conf()["spark.pyspark.python"] == "/opt/python"


def test_what_the_user_says_of_spark_wins(tmp_path: Path) -> None:
    sets = ["spark.conf.spark.executor.memory=2g", "spark.conf.spark.task.maxFailures=9"]
    conf = submission(
        tmp_path, "spark://h:1", "client", *sets, spark__executor__memory="3g"
    ).spark_conf()
    assert (conf["spark.executor.memory"], conf["spark.task.maxFailures"]) == ("3g", "9")


def test_settings_are_read_back_as_they_were(tmp_path: Path) -> None:
    sets = [
        f"home={tmp_path / 'a b'}",
        "job.tasks=7",
        "standby.enabled=true",
        'job.dead_letters=say "é" \\ twice',
        "spark.conf.spark.executor.memory=2g",
        "state.overlay_bytes=4096",
    ]
    before = load_settings(None, sets, {})
    file = tmp_path / "settings.toml"
    file.write_text(settings_toml(before, "yarn"))
    after = load_settings(file, [], {})
    assert after.spark.master == "yarn"
    assert after == replace(before, spark=replace(before.spark, master="yarn", conf={}))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("radar.py", "shared/__init__.py", "shared/words.py", "shared/names.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")
    for name in (".venv/lib/a.py", "data/big.py", "shared/__pycache__/a.pyc", "notes.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("y = 2\n")
    return root


def test_modules_and_packages_go_along_and_nothing_else(project: Path, tmp_path: Path) -> None:
    packed = pack_project(project, tmp_path)
    assert zipfile.ZipFile(packed).namelist() == [
        "radar.py",
        "shared/__init__.py",
        "shared/names.csv",
        "shared/words.py",
    ]
    assert pack_project(project, tmp_path) == packed
    (project / "radar.py").write_text("x = 22\n")
    assert pack_project(project, tmp_path) != packed


def test_a_project_as_large_as_data_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_PROJECT_BYTES", 10)
    with pytest.raises(InvalidInputError, match="keep data out of its packages"):
        pack_project(project, tmp_path)


@pytest.fixture
def site(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with a package, Spark, tools, and the project installed in place."""
    root = tmp_path / "site-packages"
    for name in ("lib/__init__.py", "one.py", "pyspark/__init__.py", "pyspark/jars/a.jar"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("z = 3\n")
    (root / "pip").mkdir()
    (root / "pip" / "__init__.py").touch()
    (root / "project.pth").write_text(f"{project}\n")
    monkeypatch.setattr(packing, "_roots", lambda: (str(root),))
    return root


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        inside = opened.getnames()
    return {name.partition("site-packages/")[2] for name in inside if "headrace/" not in name}


def test_an_environment_has_packages_also_those_in_place_and_no_jars(
    site: Path, tmp_path: Path
) -> None:
    found = names(pack_environment(tmp_path))
    assert {"lib/__init__.py", "one.py", "pyspark/__init__.py", "radar.py"} <= found
    assert not {"pyspark/jars/a.jar", "pip/__init__.py", "project.pth"} & found
    assert "one.py" not in names(pack_environment(tmp_path, without=["one.py"]))
    with pytest.raises(InvalidInputError, match="--exclude two: no such package"):
        pack_environment(tmp_path, without=["two"])


def test_a_packed_environment_runs_where_it_is_unpacked(site: Path, tmp_path: Path) -> None:
    archive = pack_environment(tmp_path)
    place = tmp_path / "elsewhere"
    unpack(archive, place)
    said = subprocess.run(
        ["bin/python", "-c", "import lib, headrace, sys; print(sys.prefix, headrace.__file__)"],
        cwd=place,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    prefix, _, file = said.stdout.strip().partition(" ")
    assert prefix == str(place), said.stderr
    assert file.startswith(str(place))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"where there is no bin/spark-submit"):
        find_spark_submit({"SPARK_HOME": str(tmp_path)})
    with pytest.raises(InvalidInputError, match="found no java"):
        find_spark_submit({"PATH": str(tmp_path)})
    assert find_spark_submit({"PATH": "", "JAVA_HOME": "/java"}).endswith("bin/spark-submit")


DRIVER = """
import os, pathlib, signal, sys
lock = pathlib.Path(sys.argv[1]) / "driver.lock"
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
lock.with_suffix(".new").write_text(f"{os.getpid()}\\n")
lock.with_suffix(".new").rename(lock)
signal.pause()
"""
LAUNCH = """
import pathlib, sys
from headrace.spark.submission import launch
folder = sys.argv[1]
sys.exit(launch([sys.executable, "-c", sys.argv[2], folder], pathlib.Path(folder)))
"""


SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", more(SIGNALS[1:], SIGNALS))
def test_a_signal_goes_to_the_driver_alone(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-c", LAUNCH, str(tmp_path), DRIVER]
    with subprocess.Popen(words, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}) as ran:
        deadline = Deadline(SystemClock(), 30.0)
        wait_until((tmp_path / "driver.lock").exists, deadline, "the driver to hold its lock")
        ran.send_signal(number)
        assert ran.wait(30) == 3
