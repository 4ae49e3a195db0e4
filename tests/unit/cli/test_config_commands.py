"""``headrace config``, ``headrace doctor``, and what a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import done, headrace, health, refused, stream_names

HEALTHY = {
    "python",
    "packages",
    "spark",
    "ports",
    "memory",
    "limits",
    "home",
    "settings",
    "bus",
    "jobs",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def findings(*words: object) -> dict[str, Any]:
    out = headrace("doctor", "--json", *words).out
    return {one["check"]: one for one in map(json.loads, out.splitlines())}


def test_explain_tells_value_and_source(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("[epoch]\nmax_rows = 7\n")
    told = done("config", "explain", "epoch.max_rows", "--config", file)
    assert "epoch.max_rows: most input rows of an epoch" in told
    assert "default  8000000" in told
    assert f"source   {file}:2" in told
    found = json.loads(done("config", "explain", "epoch.max_rows", "--json"))
    assert (found["value"], found["source"]) == ("8000000", "default")


def explained(key: str, *words: object) -> tuple[str, str]:
    found = json.loads(done("config", "explain", key, "--json", *words))
    return found["value"], found["source"]


def test_the_nearest_file_of_settings_is_read_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "project" / "jobs"
    inner.mkdir(parents=True)
    far, near, named = (
        tmp_path / "headrace.toml",
        inner.parent / "headrace.toml",
        tmp_path / "n.toml",
    )
    far.write_text("[job]\ntasks = 2\n[epoch]\nmax_rows = 2\n")
    near.write_text("[job]\ntasks = 3\nslots = 3\nthreads = 3\n")
    named.write_text("[job]\ntasks = 4\n")
    monkeypatch.chdir(inner)
    monkeypatch.setenv("HEADRACE__JOB__SLOTS", "5")
    assert explained("job.tasks") == ("3", f"{near}:2")
    assert explained("epoch.max_rows")[1] == "default", "of one file, the nearest"
    assert explained("job.slots") == ("5", "environment HEADRACE__JOB__SLOTS")
    assert explained("job.threads", "--set", "job.threads=6")[0] == "6"
    assert explained("job.tasks", "--config", named) == ("4", f"{named}:2")
    assert explained("job.threads", "--config", named)[1] == "default"
    assert f"{near}:2" in done("config", "ls", "--changed")
    near.write_text("[job]\ntask = 3\n")
    assert f"{near}:2: unknown setting job.task" in refused("config", "ls")


def test_folders_of_a_project_start_at_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "project" / "jobs"
    inner.mkdir(parents=True)
    (inner.parent / "headrace.toml").write_text('home = "data"\n[state]\ndir = "/fast"\n')
    monkeypatch.delenv("HEADRACE_HOME")
    monkeypatch.chdir(inner)
    assert explained("home")[0] == str(inner.parent / "data")
    assert explained("state.dir")[0] == "/fast"
    assert explained("home", "--home", "mine") == (str(inner / "mine"), "--home")
    assert explained("home", "--set", "home=mine")[1] == "--set home=mine"
    monkeypatch.setenv("HEADRACE_HOME", "theirs")
    assert explained("home")[1] == "environment HEADRACE_HOME"
    assert "--home" in done("config", "ls", "--changed", "--home", "mine")
    monkeypatch.delenv("HEADRACE_HOME")
    done("bus", "create", "orders", "--schema", "n:int64")
    assert stream_names("o") == ["orders"], "as a shell completes it"


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    assert "did you mean epoch.max_rows?" in refused("config", "explain", "epoch.max_row")


def test_ls_tells_all_or_what_is_changed() -> None:
    assert "bus.fsync" in done("config", "ls")
    changed = done("config", "ls", "--changed", "--set", "spark.conf.a.b=c", "--json")
    assert [json.loads(line)["key"] for line in changed.splitlines()] == ["home", "spark.conf.a.b"]


def test_doctor_looks_at_everything(home: Path) -> None:
    done("bus", "create", "orders", "--schema", "n:int64")
    found = findings()
    assert set(found) == HEALTHY | {"java"}
    assert {one["verdict"] for name, one in found.items() if name in HEALTHY} <= {"ok", "warn"}
    assert found["bus"]["found"] == f"{home}/bus: 1 stream"
    assert "home differ" in found["settings"]["found"]


def test_doctor_archives_classes_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Java that works it takes half a minute: `make test` makes one in the same way."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran = headrace("doctor", "--archive-classes")
    assert ran.code == 3
    assert "Java made no archive of Spark's classes" in " ".join(ran.err.split())


def test_doctor_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    ran = headrace("doctor")
    assert ran.code == 1
    assert f"JAVA_HOME is {tmp_path / 'none'}, without bin/java" in ran.out
    assert "→ install Java 17" in ran.out


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert health.check_java().verdict == "fail"
    java.write_text("#!/bin/sh\necho nonsense\n")
    assert "says: nonsense" in health.check_java().found


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1, 1, 5 << 20))
    found = health.check_disk("home", tmp_path / "not" / "there")
    assert (found.verdict, found.found) == ("fail", f"{tmp_path}/not/there: 5.0 MiB free")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_job_is_told(home: Path) -> None:
    manifests = home / "jobs" / "shop" / "manifests"
    manifests.mkdir(parents=True)
    (manifests / "000000000000.json").write_bytes(b"no manifest")
    found = findings()["jobs"]
    assert found["verdict"] == "fail"
    assert "shop: manifest" in found["found"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("headrace bus tail o", "orders"),
        ("headrace config explain epoch.t", "epoch.timeout_s"),
        ("headrace jobs re", "rewind"),
    ],
)
def test_a_shell_completes_names(words: str, expected: str) -> None:
    done("bus", "create", "orders", "--schema", "n:int64")
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main"],
        env={
            **os.environ,
            "_HEADRACE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
            "PYTHONPATH": str(Path(__file__).parents[3] / "src"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert expected in ran.stdout.split()
