"""The page from nothing to a running job, typed as it stands into a shell."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, suppress
from pathlib import Path

import pytest
from tests.docs.pages import GUIDE, blocks, commands
from tests.docs.shapes import is_shown
from tests.support import wheels
from tests.support.cli import Ran, headrace, write_project
from tests.support.processes import SOON_S, until

PAGE = GUIDE / "ten-minutes.md"


class Terminals:
    """Runs commands in a folder; one that follows its inputs has a terminal of its own.

    They are those of the wheel, in an environment that has nothing of the repository.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "work"
        installed = wheels.install_alone(wheels.made(home), wheels.built(home))
        where = installed.done("python", "-c", "import headrace; print(headrace.__file__)")
        assert Path(where).is_relative_to(installed.site)
        tests = installed.programs / "pytest"
        tests.write_text('#!/bin/sh\nexec python -m pytest "$@"\n')
        tests.chmod(0o755)
        self._env = installed.variables()
        self.drivers: list[subprocess.Popen[bytes]] = []

    def type(self, words: str) -> str:
        """Run a command; one that needs the job's first epoch, or its driver, is tried until then.

        Returns:
            What it prints.
        """
        if words.startswith("cd "):
            self._folder /= words.removeprefix("cd ")
            return ""
        if words.startswith("headrace run") and "--bounded" not in words:
            with open(self._folder / "run.log", "ab") as log:
                self.drivers.append(self._start(words, log))
            return ""
        tried: list[Ran] = []

        def is_done() -> bool:
            tried.append(self._run(words))
            said = tried[-1].out + tried[-1].err
            return tried[-1].code == 0 and "its driver does not answer" not in said

        with suppress(TimeoutError):
            until(is_done, words)
        assert tried[-1].code == 0, f"{words}: {tried[-1]}{self._log()}"
        return tried[-1].out + tried[-1].err

    def _run(self, words: str) -> Ran:
        """Run a command: in this process where it is but one of ours that runs no job."""
        program, *arguments = shlex.split(words)
        is_plain = program == "headrace" and arguments[0] not in ("init", "dev", "run")
        if is_plain:
            with chdir(self._folder):
                return headrace(*arguments)
        with self._start(words, subprocess.PIPE) as ran:
            out, _ = ran.communicate(timeout=SOON_S)
        return Ran(ran.returncode, out.decode(), "")

    def _start(self, words: str, out: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            shell=True,
            executable="/bin/bash",
            cwd=self._folder,
            env=self._env,
            stdout=out,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _log(self) -> str:
        log = self._folder / "run.log"
        return log.read_text() if log.exists() else ""

    def close(self) -> None:
        """End what still runs."""
        for driver in self.drivers:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


@pytest.fixture
def terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminals]:
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = Terminals(tmp_path)
    yield made
    made.close()
    sys.modules.pop("shop_job", None)


def test_the_job_on_the_page_is_that_of_a_new_project(tmp_path: Path) -> None:
    write_project(tmp_path / "shop")
    (block,) = blocks(PAGE, "python")
    assert block.text == (tmp_path / "shop" / "shop_job.py").read_text()


@pytest.mark.spark
def test_every_command_prints_what_the_page_shows(terminals: Terminals) -> None:
    """Times, sizes and numbers of processes differ; all results are compared to the digit."""
    for block in blocks(PAGE, "console"):
        for words, shown in commands(block):
            out = terminals.type(words)
            assert is_shown(out, shown), f"{words}\n{out}"
            results = [line for line in shown.splitlines() if "cents=" in line]
            assert [line for line in out.splitlines() if "cents=" in line] == results
    assert len(terminals.drivers) == 2
