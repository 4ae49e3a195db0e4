"""Bounded runs that begin when Spark first plans a read of their results.

A Python source is planned in a process of its own beside the driver, which can run no job. So it
asks the process that made the DataFrame, by a named pipe, and finds the answer in a file: where the
rows of the run are in each output. The run is done once; all reads of its results share it. One
that failed is tried again by the next plan that Spark makes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.bus import open_bus
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.job_storage import job_storages
from headrace.files import Files
from headrace.graph.builder import Job
from headrace.spark.run import output_ends, ranges_sent, run_job
from headrace.spark.source_options import DONE, PIPE, RUN_FAILED, Ranges


class _Begun(msgspec.Struct, frozen=True):
    """A run that was begun: its number, and where the outputs ended before it."""

    run: int
    ends: dict[str, list[int]]


def run_whole(job: Job, settings: Settings, outputs: Sequence[str]) -> Ranges:
    """Run a bounded job to its end, and return where the rows of its run are in each output.

    A run that failed is continued; then its rows from before count as well.

    Args:
        job: to run.
        settings: of the run.
        outputs: the streams that it sends to.

    Raises:
        HeadraceError: what the job fails with.
    """
    files, note = Files(), settings.home / "spark" / "results" / f"{job.name}.json"
    root = job_storages(settings, job.name).readable
    state = load_state(FileCommitLog(root, files)) if files.exists(root / "manifests") else None
    number = 1 if state is None else state.run + state.ended
    with open_bus(settings.bus_dir) as bus:
        begun = msgspec.json.decode(files.read(note), type=_Begun) if files.exists(note) else None
        if begun is None or begun.run != number:
            begun = _Begun(number, output_ends(bus, outputs))
            note.parent.mkdir(parents=True, exist_ok=True)
            files.replace(note, msgspec.json.encode(begun))
        run_job(job, settings)
        files.remove(note)
        return ranges_sent(begun.ends, output_ends(bus, outputs))


@dataclass
class _Run:
    job: Job
    run: Callable[[], Ranges]
    lock: threading.Lock = field(default_factory=threading.Lock)


class LazyRuns:
    """The runs of this process that wait for a first read; it ends with the process."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-runs-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        self._files, self._clock = Files(sync=False), SystemClock()
        self._runs: dict[str, _Run] = {}
        os.mkfifo(self._folder / PIPE, 0o600)
        # Open for both, so that it never ends; nobody asking costs nothing.
        self._pipe = os.fdopen(os.open(self._folder / PIPE, os.O_RDWR), "r")
        threading.Thread(target=self._serve, name="headrace lazy runs", daemon=True).start()

    def add(self, job: Job, run: Callable[[], Ranges]) -> Path:
        """Let reads start a run.

        Args:
            job: that is run, for errors.
            run: called in a thread of its own by the first read, and by later ones if it raised.

        Returns:
            What ``wait_for_run`` takes, in any process of this host.
        """
        name = self._clock.new_id()
        self._runs[name] = _Run(job, run)
        return self._folder / name

    def _serve(self) -> None:
        for line in self._pipe:
            name, asked = line.split()
            # A run can read results of another one, which asks meanwhile.
            threading.Thread(
                target=self._answer, args=(name, asked), name=f"headrace run {name}", daemon=True
            ).start()

    def _answer(self, name: str, asked: str) -> None:
        one, done = self._runs[name], self._folder / f"{name}.{DONE}"
        with one.lock:
            if self._files.exists(done):
                return
            try:
                self._files.replace(done, msgspec.json.encode(one.run()))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                text = f"job {one.job.name!r} failed: {error}"
                path = self._folder / f"{name}.{asked}.{RUN_FAILED}"
                self._files.replace(path, text.encode())
