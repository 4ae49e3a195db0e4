"""Commands of Headrace in processes of their own, in a folder with a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.runs import ROOT

from headrace.testing.processes import end_group


class Started:
    """Starts commands, and keeps what they say.

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
        environment |= {"HEADRACE_HOME": str(self.home), "PYTHONPATH": str(ROOT / "src")}
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
        """What the command of this number has said so far."""
        return (self.folder / f"out-{number}").read_text()

    def end(self) -> None:
        """End all that run."""
        for process in self.started:
            end_group(process)
