"""Processes of tests: waiting for what they do, starting commands, leaving none behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.clock import Deadline, SystemClock
from headrace.files import is_alive
from headrace.testing.servers import command, end_group, kill, wait_until

__all__ = [
    "LEAN",
    "MODULES",
    "REAL_CLOCK",
    "ROOT",
    "SOON_S",
    "Deadline",
    "Started",
    "SystemClock",
    "command",
]
__all__ += ["WITH_FRAMES", "end_group", "is_alive", "kill", "until", "wait_until"]

ROOT = Path(__file__).parents[2]
SOON_S = 90.0
REAL_CLOCK = SystemClock()
LEAN = str(Path(__file__).with_name("without_pandas"))
MODULES = os.pathsep.join([str(ROOT / "src"), str(ROOT), LEAN])
"""The ``PYTHONPATH`` of processes that run jobs of tests; few of these jobs need pandas."""
WITH_FRAMES = {"PYTHONPATH": MODULES, "TESTS_WITH_FRAMES": "yes"}
"""The environment of those that do."""


def until(condition: Callable[[], object], what: str, within_s: float = SOON_S) -> None:
    """Return as soon as a condition holds, which is asked again and again."""
    wait_until(condition, Deadline(REAL_CLOCK, within_s), what, REAL_CLOCK)


class Started:
    """Starts commands of Headrace in processes of their own, and keeps what they print.

    Args:
        folder: where they run.
        home: of streams and jobs.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home = folder, home
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Run a command in a process of its own."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        environment |= {"HEADRACE_HOME": str(self.home), "PYTHONPATH": MODULES}
        with open(self.folder / f"out-{len(self.started)}", "w") as out:
            process = subprocess.Popen(
                (sys.executable, "-m", "headrace.cli.main", *words),
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=self.folder,
                env=environment,
                text=True,
            )
        self.started.append(process)
        return process

    def said(self, number: int) -> str:
        """What the command of this number has printed so far."""
        return (self.folder / f"out-{number}").read_text()

    def end(self) -> None:
        """End all that run."""
        for process in self.started:
            end_group(process)
