"""Homes with streams in them, runs in this process and in others, and what they left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from tests.spark.jobs import SCHEMA, Rows, rows_of

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.clock import Deadline, SystemClock
from headrace.config import Settings, load_settings
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.inspection.inspection import committed_entries
from headrace.coordinator.manifest import JobState
from headrace.coordinator.story import StoryLog
from headrace.files import Files
from headrace.records.keys import decode_key
from headrace.testing.processes import end_group, wait_until

FILES = Files(sync=False)
ROOT = Path(__file__).parents[2]
SOON_S = 90.0


def read_stream(home: Path, stream: str) -> Rows:
    """Return all records of a stream in a home, partition after partition."""
    with open_bus(home / "bus") as bus:
        return _records(bus, stream)


def _records(bus: Bus, stream: str) -> Rows:
    target = bus.stream(stream)
    return [
        row
        for partition, begin in enumerate(target.begins())
        for part in target.read(partition, begin)
        for row in part.batch.to_pylist()
    ]


class World:
    """A home with the stream ``events`` in it, and a memory of all that was fed."""

    def __init__(self, home: Path, partitions: int = 2, *, sets: Iterable[str] = ()) -> None:
        self.home = home
        self.gates = home.parent / "gates"
        self.gates.mkdir(parents=True, exist_ok=True)
        self.sets = [f"home={home}", "spark.master=local[2]", "job.tasks=3", *sets]
        self.log: list[Rows] = [[] for _ in range(partitions)]
        self.bus = open_bus(home / "bus")
        self.bus.create(StreamSpec("events", partitions, SCHEMA, "at"))

    def settings(self, *sets: str) -> Settings:
        return load_settings(None, [*self.sets, *sets], {})

    def feed(self, count: int) -> None:
        """Append records to every partition, later than those before."""
        for partition, known in enumerate(self.log):
            self.append(partition, rows_of(count, partition, len(known)))

    def append(self, partition: int, rows: Rows) -> None:
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        self.bus.stream("events").append(partition, batch)
        self.log[partition] += rows

    def open_gate(self, name: str) -> None:
        (self.gates / f"{name}.open").touch()

    def close_gate(self, name: str) -> None:
        """Close a gate again, and forget who came to it."""
        for path in self.gates.glob(f"{name}.*"):
            path.unlink()

    def at_gate(self, name: str) -> list[int]:
        """Processes that have come to a gate."""
        return [int(path.name.rpartition("-")[2]) for path in self.gates.glob(f"{name}.at-*")]

    def rows(self, stream: str) -> Rows:
        """All records of a stream, partition after partition."""
        return _records(self.bus, stream) if stream in self.bus.names() else []

    def job_dir(self, job: str) -> Path:
        return self.home / "jobs" / job

    def state(self, job: str) -> JobState:
        """The job's state as the manifests on disk tell it."""
        state = load_state(FileCommitLog(self.job_dir(job), FILES, SystemClock()))
        assert state is not None
        return state

    def read_so_far(self, job: str) -> int:
        """Rows of input that the job has committed; 0 before it was created."""
        state = load_state(FileCommitLog(self.job_dir(job), FILES, SystemClock()))
        return 0 if state is None else state.counts.get("in", 0)

    def events(self, job: str) -> list[str]:
        """What the story of a job tells."""
        return [event.text for event in StoryLog(self.job_dir(job)).read()]

    def store(self, job: str, name: str) -> dict[Any, Any]:
        """A processor's store as committed."""
        entries: dict[bytes, bytes] = {}
        for folder in (self.job_dir(job), *sorted((self.home / "jobs").glob(f"{job}@*"))):
            state = load_state(FileCommitLog(folder, FILES, SystemClock()))
            assert state is not None
            entries |= committed_entries(state, folder, name, FILES)
        return {
            decode_key(key[2:])[0]: msgspec.msgpack.decode(value) for key, value in entries.items()
        }

    def found(self) -> dict[str, Any]:
        """What the job ``counting`` has come to, in the form of its model."""
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
        """What was emitted for each id, in order."""
        counts: defaultdict[int, list[int]] = defaultdict(list)
        for row in self.rows("counts"):
            counts[row["id"]].append(row["n"])
        return dict(counts)

    def leftovers(self, job: str) -> list[str]:
        """Files of finished epochs that no epoch that is kept names."""
        newest = self.state(job)
        log = FileCommitLog(self.job_dir(job), FILES, SystemClock())
        kept = [load_state(log, epoch) for epoch in range(newest.kept_from, newest.epoch + 1)]
        named = {path for state in kept if state is not None for path in state.files()}
        return [
            name
            for folder in ("orders", "exchange", "segment", "snapshot", "output")
            for path in sorted((self.job_dir(job) / folder).iterdir())
            if (name := f"{folder}/{path.name}") not in named
        ]


def _ms(value: Any) -> int:
    return value if isinstance(value, int) else round(value.timestamp() * 1000)


class Driver:
    """A driver in a process of its own, in a process group of its own.

    Args:
        job: a name in ``jobs.MAKERS``.
        world: where it runs.
        sets: settings beside those of the world.
        die_at: a fault point and the number of the pass at which it kills itself.
        unlocked: leave out the lock that keeps two drivers of one host apart.
        takes_over: fence the driver that runs the job.
        command: put before the interpreter.
        module: what runs; ``tests.standalone.drive`` shares the job with others, without Spark.
    """

    def __init__(
        self,
        job: str,
        world: World,
        *sets: str,
        die_at: tuple[str, int] | None = None,
        unlocked: bool = False,
        takes_over: bool = False,
        command: Iterable[str] = (),
        module: str = "tests.spark.drive",
    ) -> None:
        order = {
            "job": job,
            "gates": str(world.gates),
            "sets": [*world.sets, *sets],
            "die_at": die_at,
            "unlocked": unlocked,
            "takes_over": takes_over,
        }
        self._log = world.gates / f"driver-{SystemClock().new_id()}.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        environment["SPARK_LOCAL_DIRS"] = str(world.home.parent / "scratch")
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-m", module, json.dumps(order)],
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

    wait_until(met, Deadline(SystemClock(), SOON_S), what)
