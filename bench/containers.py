"""Throughput and latency against the number of containers: the question of the paper's Figure 14.

    python bench/containers.py > docs/benchmarks/containers.jsonl    # about six minutes, as root
    python bench/containers.py --figure      # draws docs/images/containers.svg from that file

One to sixteen Spark executors of one core on this machine. Each, with its Python processes, is held
to the same share of a core (``--share``) by the CPU controller of a cgroup, so that sixteen of them
need less than two cores have: what is measured is how the work spreads, not how fast a machine is.
The limit is set when the job is warm. ``rate`` is that of a backlog, in a count per id on RocksDB
with a Python call for each message; then half of it comes in steadily, and the latency is from the
arrival of a message to the commit of its epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib import pyplot

import headrace as hr
from headrace.bus.address import open_bus
from headrace.bus.bus import Stream
from headrace.bus.spec import StreamSpec
from headrace.config import load_settings
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.spark.run import run_job
from headrace.testing.cluster import SparkCluster
from headrace.testing.servers import parents

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, IMAGE = DOCS / "benchmarks" / "containers.jsonl", DOCS / "images" / "containers.svg"
CGROUP, PERIOD_US = Path("/sys/fs/cgroup/cpu"), 20_000
TASKS, PARTITIONS, IDS = 16, 16, 100_000
ROWS, WARM_EPOCHS, PHASE_S = 20_000, 10, 20.0
SCHEMA = pa.schema([("id", pa.int64())])


class Count:
    """Counts the messages of each id."""

    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


@hr.job("containers")
def counting(g: hr.Graph) -> None:
    g.input("messages").partition_by("id").process(Count, [hr.store("n", int, "rocksdb")])


class Containers:
    """Executors with their Python processes, each in a cgroup of its own."""

    def __init__(self, cluster: SparkCluster, name: str, share: float) -> None:
        self._cluster, self._share = cluster, share
        self._root = CGROUP / name
        self._root.mkdir()

    def limit(self) -> int:
        """Hold every executor to its share; return how many there are."""
        executors = self._cluster.executors(0)
        for executor in executors:
            group = self._root / f"{executor}"
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
            (group / "cpu.cfs_quota_us").write_text(f"{int(PERIOD_US * self._share)}")
        for pid in self._cluster.of("worker-0"):
            with contextlib.suppress(OSError):
                own = next((e for e in (pid, *parents(pid)) if e in executors), None)
                if own is not None:
                    (self._root / f"{own}" / "cgroup.procs").write_text(f"{pid}")
        return len(executors)

    def remove(self) -> None:
        groups = [path for path in self._root.iterdir() if path.is_dir()]
        for group in groups:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (CGROUP / "cgroup.procs").write_text(pid)
            group.rmdir()
        self._root.rmdir()


@dataclass
class Course:
    """What the epochs of a run tell, and what is done when: warm, backlog, steady."""

    stream: Stream
    containers: Containers
    count: int
    control: JobControl
    warm: int = 0
    began: float = 0.0
    rows: int = 0
    rate: float = 0.0
    before: float = 0.0
    latencies: list[tuple[float, float]] = field(default_factory=list)

    def epoch(self, told: EpochSummary) -> None:
        now = time.monotonic()
        start = now - told.took_ms / 1000
        if not self.began:
            self.warm += 1
            if self.warm >= WARM_EPOCHS:
                found = self.containers.limit()
                assert found == self.count, f"{found} executors, not {self.count}"
                self.began = time.monotonic()
        elif not self.rate:
            self.rows += told.rows
            if now - self.began >= PHASE_S:
                self.rate = self.rows / (now - self.began)
        elif told.lag < self.rate / 4:
            self.latencies.append((start, now))
            if now - self.latencies[0][0] >= PHASE_S:
                self.control.stop.set()

    def result(self) -> dict[str, Any]:
        waits = [
            end - before
            for (before, _), (_, end) in zip(self.latencies, self.latencies[1:], strict=False)
        ]
        starts = [start for start, _ in self.latencies]
        means = [
            end - (one + start) / 2
            for one, start, (_, end) in zip(starts, starts[1:], self.latencies[1:], strict=False)
        ]
        return {
            "containers": self.count,
            "rate": round(self.rate),
            "mean_s": round(float(np.mean(means)), 3),
            "p99_s": round(float(np.percentile(waits, 99)), 3),
            "epochs": len(waits),
        }


def feeding(course: Course, over: threading.Event) -> None:
    """Keep a backlog until the rate is known, then append half of it."""
    draw, sent, turn = np.random.default_rng(3), 0, 0

    def send(rows: int) -> None:
        nonlocal turn
        ids = pa.array(draw.integers(0, IDS, rows))
        course.stream.append(turn % PARTITIONS, pa.record_batch([ids], schema=SCHEMA))
        turn += 1

    while not over.is_set() and not course.rate:
        if sent < course.rows + (course.warm + 4) * ROWS * course.count:
            send(ROWS // 2)
            sent += ROWS // 2
        else:
            over.wait(0.02)
    while not over.wait(0.02):
        send(max(1, int(course.rate * 0.01)))


def measured(count: int, share: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="containers-") as name:
        home = Path(name)
        with (
            SparkCluster(home / "cluster", 1, 640 * count, count) as cluster,
            open_bus(home / "bus") as bus,
        ):
            stream = bus.create(StreamSpec("messages", PARTITIONS, SCHEMA))
            sets = {
                "home": home,
                "spark.master": cluster.url,
                "spark.conf.spark.executor.memory": "512m",
                "spark.conf.spark.executor.cores": 1,
                "job.tasks": TASKS,
                "job.slots": count,
                "job.slot_silence_s": 60,
                "epoch.max_rows": ROWS * count,
            }
            settings = load_settings(None, [f"{key}={value}" for key, value in sets.items()], {})
            control, over = JobControl(), threading.Event()
            containers = Containers(cluster, f"headrace-{os.getpid()}", share)
            course = Course(stream, containers, count, control)
            feeder = threading.Thread(target=feeding, args=(course, over), daemon=True)
            feeder.start()
            try:
                run_job(counting, settings, bus=bus, control=control, on_epoch=course.epoch)
            finally:
                over.set()
                feeder.join()
                containers.remove()
            return {**course.result(), "share": share}


def draw(results: Path, image: Path) -> None:
    found = [json.loads(line) for line in results.read_text().splitlines()]
    counts = [one["containers"] for one in found]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.4))
    left.plot(counts, [one["rate"] / 1000 for one in found], "-o", markersize=4)
    first = found[0]["rate"] / 1000
    left.plot(counts, [first * n for n in counts], ":", color="grey", label="linear")
    left.set(xlabel="containers", ylabel="messages/s, thousands")
    left.legend(fontsize=8)
    right.plot(counts, [one["mean_s"] for one in found], "-o", markersize=4, label="mean")
    right.plot(counts, [one["p99_s"] for one in found], "--s", markersize=4, label="p99")
    right.set(xlabel="containers", ylabel="until committed, s", ylim=(0, None))
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.set_xticks(counts)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(image, metadata={"Date": None})


def one_by_one(script: str, counts: list[int], share: float) -> Iterator[str]:
    """Run a script for each in a process of its own: a Spark session cannot be started again."""
    for count in counts:
        words = [sys.executable, script, "--one", str(count), "--share", str(share)]
        said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        yield said.stdout.splitlines()[-1]


def main() -> None:
    """Measure here, or each count in a process of its own, or draw."""
    run(__file__, __doc__, 0.1, [1, 2, 4, 8, 16], measured, lambda: draw(RESULTS, IMAGE))


def run(
    script: str,
    about: str | None,
    share: float,
    counts: list[int],
    measure: Callable[[int, float], dict[str, Any]],
    figure: Callable[[], None],
) -> None:
    """Do what the command line of a script says that measures by containers."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--containers", type=int, nargs="+", default=counts)
    parser.add_argument("--share", type=float, default=share, help="of a core, for each container")
    parser.add_argument("--one", type=int)
    parser.add_argument("--figure", action="store_true")
    options = parser.parse_args()
    if options.figure:
        figure()
    elif options.one:
        print(json.dumps(measure(options.one, options.share)), flush=True)
    else:
        for line in one_by_one(script, options.containers, options.share):
            print(line, flush=True)


if __name__ == "__main__":
    main()
