"""The archive of Spark's classes: where it is, when Java gets it, and a Java that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import UnavailableError
from headrace.spark.class_archive import archive_file, java_option, make_archive


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return {**kept, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_java_is_called_with_an_archive_that_is_there(environ: dict[str, str]) -> None:
    file = archive_file(environ)
    assert file.is_relative_to(environ["XDG_CACHE_HOME"])
    assert java_option(environ) == ""
    file.parent.mkdir(parents=True)
    file.touch()
    assert f'"-XX:SharedArchiveFile={file}"' in java_option(environ)


def test_another_java_or_spark_has_another_archive(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "java").mkdir()
    other = {**environ, "JAVA_HOME": str(tmp_path / "java")}
    before = archive_file(other)
    assert before != archive_file(environ)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="21.0.1"')
    assert archive_file(other) not in (before, archive_file(environ))
    assert archive_file({**environ, "SPARK_HOME": "/opt/spark"}) != archive_file(environ)


def test_an_archive_that_the_user_names_stays(environ: dict[str, str]) -> None:
    archive_file(environ).parent.mkdir(parents=True)
    archive_file(environ).touch()
    own = {**environ, "SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/own.jsa"}
    assert java_option(own) == ""


def test_a_java_that_fails_leaves_the_archive_that_was_there(
    environ: dict[str, str], tmp_path: Path
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho this Java is broken >&2\nexit 1\n")
    java.chmod(0o755)
    broken = {**environ, "JAVA_HOME": str(tmp_path / "java")}
    file = archive_file(broken)
    file.parent.mkdir(parents=True)
    file.write_text("before")
    with pytest.raises(UnavailableError, match="Java made no archive of Spark's classes"):
        make_archive(broken)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_text() == "before"


@pytest.mark.slow
@pytest.mark.soak
def test_a_driver_starts_java_with_it(environ: dict[str, str], tmp_path: Path) -> None:
    """With the archive of the tests, where tools/spark_classes.sh has made it in the same way."""
    made, file = Path(sys.prefix) / "spark.jsa", archive_file(environ)
    if made.exists():
        file.parent.mkdir(parents=True)
        file.symlink_to(made)
    else:
        make_archive(environ)
    code = (
        "from pathlib import Path\n"
        "from headrace.spark.sessions import build_context\n"
        f"sc = build_context('local[1]', 'archived', Path({str(tmp_path / 'spark.log')!r}))\n"
        "beans = sc._jvm.java.lang.management.ManagementFactory\n"
        "print(*beans.getRuntimeMXBean().getInputArguments(), sep='\\n')\n"
        "sc.stop()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert f"-XX:SharedArchiveFile={file}" in ran.stdout.splitlines()
