"""Runs of jobs: in this process, standalone or on Spark, and drivers in processes of their own.

``World`` is a home with a stream that the jobs of ``tests.support.jobs`` read, and a memory of what
was fed, for comparison with their models.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tests.support.homes import FILES, Home, Rows, read_stream
from tests.support.jobs import SCHEMA, rows_of
from tests.support.processes import (
    MODULES,
    REAL_CLOCK,
    ROOT,
    SOON_S,
    WITH_FRAMES,
    end_group,
    is_alive,
)
from tests.support.processes import until as wait_for

import headrace as hr
from headrace.bus import FileBus
from headrace.control.job_handle import RunningHandle
from headrace.coordinator.commands import Drain, Restart
from headrace.coordinator.driver_loop import JobControl, RetryPolicy
from headrace.coordinator.driver_loop import run_epochs as _drive
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_run import JobRun
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.leader_lease import MemberInfo, driver_of, read_members
from headrace.standalone.running import Running
from headrace.testing import TestDriver

__all__ = [
    "CODEGEN",
    "ROOT",
    "SOON_S",
    "WITHOUT_PAGES",
    "Drain",
    "Driver",
    "EpochSummary",
    "Epochs",
    "JobControl",
    "MemberInfo",
    "Restart",
    "RetryPolicy",
    "Rows",
    "Running",
    "RunningHandle",
    "World",
    "deployed",
    "drive",
    "drive_part",
    "driver_of",
    "is_alive",
    "on_spark",
    "read_members",
    "read_stream",
    "run_driver",
    "run_job",
    "spark_session",
    "until",
]


def run_job(job: hr.Job, settings: Any, **more: Any) -> Any:
    """Run a job on Spark as ``headrace run`` does, with arguments of that; see ``on_spark``."""
    from headrace.spark import run

    return run.run_job(job, settings, **more)


CODEGEN = "spark.sql.codegen.factoryMode"
INTERPRETED = {CODEGEN: "NO_CODEGEN"}
"""Spark makes no Java of queries: to compile it takes longer than queries of so few rows save."""


def spark_session(master: str, log: Path) -> Any:
    """Start a session as ``headrace run`` does, whose JVM writes to a log.

    Its workers import ``tests`` from the folder that the JVM begins in, wherever the test is.
    """
    from headrace.spark.sessions import build_session

    with contextlib.chdir(Path(__file__).parents[2]):
        return build_session(master, "headrace tests", log, INTERPRETED)


WITHOUT_PAGES = ("spark.progress=off", "spark.conf.spark.ui.enabled=false")
LEAN = ("control.enabled=false", *WITHOUT_PAGES)
"""What a driver on Spark does without, of which few tests ask anything: an API, and pages."""


class World(Home):
    """A home with the stream ``events`` in it, and a memory of all that was fed."""

    def __init__(self, home: Path, partitions: int = 2, *, sets: Iterable[str] = ()) -> None:
        super().__init__(home, "spark.master=local[2]", "job.tasks=3", *sets)
        self.gates = home.parent / "gates"
        self.gates.mkdir(parents=True, exist_ok=True)
        self.log: list[Rows] = [[] for _ in range(partitions)]
        self.create("events", SCHEMA, partitions=partitions, time="at")

    def feed(self, count: int) -> None:
        """Append records to every partition, later than those before."""
        for partition, known in enumerate(self.log):
            self.append(partition, rows_of(count, partition, len(known)))

    def append(self, partition: int, rows: Rows) -> None:
        """Append these records to a partition."""
        self.send("events", rows, partition)
        self.log[partition] += rows

    def open_gate(self, name: str) -> None:
        (self.gates / f"{name}.open").touch()

    def close_gate(self, name: str) -> None:
        """Close a gate again, and forget who came to it."""
        for path in self.gates.glob(f"{name}.*"):
            path.unlink()

    def at_gate(self, name: str) -> list[int]:
        """Return the processes that have come to a gate."""
        return [int(path.name.rpartition("-")[2]) for path in self.gates.glob(f"{name}.at-*")]

    def found(self) -> dict[str, Any]:
        """Return what the job ``counting`` has come to, in the form of its model."""
        windows = [
            (row["id"], _ms(row["window_start"]), row["c"], row["total"])
            for row in self.rows("windows")
        ]
        totals = [(r["kind"], _ms(r["at"]), r["total"], r["c"]) for r in self.rows("totals")]
        return {
            "store": self.store("counting", "n"),
            "counts": self.counts(),
            "windows": sorted(windows),
            "totals": sorted(totals),
        }

    def counts(self) -> dict[int, list[int]]:
        """Return what was emitted for each id, in order."""
        counts: defaultdict[int, list[int]] = defaultdict(list)
        for row in self.rows("counts"):
            counts[row["id"]].append(row["n"])
        return dict(counts)


def _ms(value: Any) -> int:
    return value if isinstance(value, int) else round(value.timestamp() * 1000)


def deployed(job: hr.Job, settings: Any) -> Any:
    """Go through the start of a run up to its first epoch, and return what would be run."""
    with FileBus(settings.bus_dir) as bus:
        context = JobContext(settings, job.name, bus, FILES, REAL_CLOCK)
        return JobRun(context, JobControl()).deployed(job)


class Epochs(list[EpochSummary]):
    """What each epoch of a run did, in order; ``stop`` ends the run after the one under way."""

    def __init__(self) -> None:
        super().__init__()
        self.control = JobControl()

    def stop(self) -> None:
        self.control.stop.set()

    def finish(self) -> None:
        """Let the inputs end where they do now, and with them the job."""
        self.control.finish.set()

    @property
    def rows(self) -> list[int]:
        """How many rows each epoch read."""
        return [summary.rows for summary in self]


def drive_part(part: Any, bus: Any, control: JobControl, on_epoch: Any, **more: Any) -> None:
    """Let the loop of a driver advance one part by the real clock, as its control says."""
    _drive(part, bus, REAL_CLOCK, control, on_epoch, **more)


def drive(
    driver: TestDriver,
    epochs: Epochs,
    each: Callable[[Epochs], object] = lambda epochs: None,
    **more: Any,
) -> None:
    """Let the loop of a driver advance the first part of a job until it ends or is stopped.

    Args:
        driver: of the job.
        epochs: where each epoch is noted.
        each: called after each epoch.
        more: arguments of the loop, such as ``interval_ms``.
    """

    def on_epoch(summary: EpochSummary) -> None:
        epochs.append(summary)
        each(epochs)

    _drive(driver.coordinator, driver.bus, driver.clock, epochs.control, on_epoch, **more)


def on_spark(
    job: hr.Job,
    settings: Any,
    each: Callable[[Epochs], object] | None = None,
    **more: Any,
) -> tuple[Any, Epochs]:
    """Run a job on Spark, with the session that is active, until it ends or is stopped.

    Args:
        job: that is run.
        settings: as ``Home.settings`` gives them.
        each: called after each epoch with all that were run; stops the run by ``epochs.stop()``.
            A run that has such a function is stopped after ``SOON_S`` at the latest.
        more: arguments of ``headrace.spark``'s run, such as ``on_notice``.

    Returns:
        The result, and the epochs.
    """
    epochs = Epochs()

    def on_epoch(summary: EpochSummary) -> None:
        epochs.append(summary)
        if each is not None:
            each(epochs)

    giving_up = threading.Timer(SOON_S, epochs.stop)
    if each is not None:
        giving_up.start()
    try:
        return run_job(job, settings, control=epochs.control, on_epoch=on_epoch, **more), epochs
    finally:
        if each is not None:
            giving_up.cancel()
            giving_up.join()


class Driver:
    """A driver in a process of its own, in a process group of its own.

    Args:
        job: a name in ``tests.support.jobs.MAKERS``.
        world: where it runs.
        sets: settings beside those of the world.
        die_at: a fault point and the number of the pass at which it kills itself.
        way: ``spark``, ``standalone``, or ``shared`` with other such processes.
        command: put before the interpreter.
        limits: bounds that it makes small, by their names in ``tests.support.limits``.
        frames: it reads DataFrames of Spark, for which PySpark needs pandas.
    """

    def __init__(
        self,
        job: str,
        world: World,
        *sets: str,
        die_at: tuple[str, int] | None = None,
        way: Literal["spark", "standalone", "shared"] = "spark",
        command: Iterable[str] = (),
        limits: Mapping[str, float] = MappingProxyType({}),
        frames: bool = False,
    ) -> None:
        order = {
            "job": job,
            "gates": str(world.gates),
            "sets": [*(LEAN if way == "spark" else ()), *world.sets, *sets],
            "die_at": die_at,
            "way": way,
            "limits": dict(limits),
        }
        self._log = world.gates / f"driver-{REAL_CLOCK.new_id()}.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        environment["SPARK_LOCAL_DIRS"] = str(world.home.parent / "scratch")
        environment |= WITH_FRAMES if frames else {"PYTHONPATH": MODULES}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-m", "tests.support.drive", json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> Mapping[str, Any]:
        """Wait for the end and return what the driver says, with its exit code as ``code``."""
        try:
            output, _ = self.process.communicate(timeout=SOON_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end in {SOON_S} s: {self.story}") from None
        said = json.loads(output.splitlines()[-1]) if output else {}
        return {"code": self.process.returncode, **said}

    @property
    def story(self) -> str:
        """What the driver wrote to stderr."""
        return self._log.read_text(errors="replace")[-4000:]

    def running(self) -> bool:
        return self.process.poll() is None

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exception: object) -> None:
        end_group(self.process)


def run_driver(job: str, world: World, *sets: str, **how: Any) -> Mapping[str, Any]:
    """Run a driver in a process of its own to its end."""
    with Driver(job, world, *sets, **how) as driver:
        said = driver.wait()
        return {**said, "story": driver.story}


def until(condition: Callable[[], object], what: str, driver: Driver | None = None) -> None:
    """Wait for a condition; fail early when the driver that has to bring it about is gone."""

    def met() -> bool:
        if condition():
            return True
        if driver is not None and not driver.running():
            raise AssertionError(f"the driver ended before {what}: {driver.wait()} {driver.story}")
        return False

    wait_for(met, what)
