"""Java is started for servers of tests with the archive of their classes, where there is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.errors import InvalidInputError
from headrace.testing.java import archive_file, java_command


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/opt/java")


def test_java_gets_an_archive_that_is_there(tmp_path: Path) -> None:
    file = archive_file("broker")
    assert file.is_relative_to(tmp_path)
    option = f"-XX:SharedArchiveFile={file}"
    command = java_command("broker", 256, "-cp", "a.jar", "Main")
    assert command[:2] == ["/opt/java/bin/java", "-Xmx256m"]
    assert command[-3:] == ["-cp", "a.jar", "Main"]
    assert option not in command
    file.parent.mkdir()
    file.touch()
    assert option in java_command("broker", 256, "Main")
    assert option not in java_command("other", 256, "Main")


def test_java_makes_an_archive_where_it_is_told_to(tmp_path: Path) -> None:
    archive_file("broker").parent.mkdir()
    archive_file("broker").touch()
    command = java_command("broker", 256, "Main", archive_in=tmp_path / "new")
    assert f"-XX:ArchiveClassesAtExit={tmp_path / 'new' / 'broker.jsa'}" in command
    assert not [word for word in command if "SharedArchiveFile" in word]


def test_without_java_the_error_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidInputError, match="no Java is installed"):
        java_command("broker", 256, "Main")
