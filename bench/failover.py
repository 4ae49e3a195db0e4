"""How long a job stands still when a host is lost, with standbys and without; Figure 11's question.

    python bench/failover.py [--mb 100 400] [--times 3] [--wait 1]

Three hosts of one core each (a Spark standalone cluster on this machine). The stores are filled
with values of a kilobyte; then one message comes every 20 ms, and a host is killed: its worker,
its executor and all Python processes. ``out_s`` is from the kill to the commit of a message that
came after it. Two more ways: the executor alone is killed, whose
host starts another one (``affinity``), and a host is lost without standbys (``none``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.bench.large import PARTITIONS, SCHEMA, STREAM, feed, ids_of, keeping_job
from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.clock import SystemClock
from headrace.config import Settings, load_settings
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.manifest import JobState
from headrace.files import Files
from headrace.spark.run import run_job
from headrace.testing.cluster import SparkCluster
from headrace.testing.processes import end_group, kill

HOSTS, TASKS, PATIENCE_S = 3, 6, 300.0
EVERY_S = 0.02
WAYS = {"standby": 1, "affinity": 0, "none": 0}


def settings_of(home: Path, url: str, copies: int, wait_s: float) -> Settings:
    sets = {
        "home": home,
        "spark.master": url,
        "spark.conf.spark.executor.memory": "512m",
        "job.tasks": TASKS,
        "placement.wait_s": wait_s,
        "standby.enabled": str(copies > 0).lower(),
        "standby.copies": max(1, copies),
        "standby.share": 1.0,
    }
    return load_settings(None, [f"{name}={value}" for name, value in sets.items()], {})


def drive(home: Path, url: str, copies: int, wait_s: float) -> None:
    run_job(keeping_job("rocksdb"), settings_of(home, url, copies, wait_s))


def committed(home: Path) -> JobState | None:
    root = home / "jobs" / "large"
    if not (root / "manifests").is_dir():
        return None
    return load_state(FileCommitLog(root, Files(sync=False), SystemClock()))


def read_rows(home: Path) -> int:
    state = committed(home)
    return 0 if state is None else state.counts.get("in", 0)


def is_covered(home: Path) -> bool:
    """Say whether the standbys hold all but a tail."""
    state = committed(home)
    if state is None or len(state.standbys) < TASKS:
        return False
    return all(s.epoch >= state.epoch - 20 for held in state.standbys.values() for s in held)


def until(condition: Any, what: str) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            raise TimeoutError(what)
        time.sleep(0.02)
    return time.monotonic() - began


class Trickle:
    """One message every few milliseconds, until it is told to stop; counts those of all time."""

    def __init__(self, bus: Bus, rows: int, ids: int) -> None:
        self._stream, self._ids = bus.stream(STREAM), ids
        self.rows, self._over = rows, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            feed(self._stream, np.array([self.rows % self._ids]), "rocksdb")
            self.rows += 1

    def __enter__(self) -> Trickle:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def measured(way: str, mb: int, times: int, wait_s: float) -> dict[str, Any]:
    outs = []
    with tempfile.TemporaryDirectory(prefix="failover-") as name:
        home = Path(name)
        with SparkCluster(home / "cluster", HOSTS, 1024) as cluster, open_bus(home / "bus") as bus:
            ids = ids_of("rocksdb", mb)
            stream = bus.create(StreamSpec(STREAM, PARTITIONS, SCHEMA))
            feed(stream, np.arange(ids), "rocksdb")
            given = ["--drive", str(home), cluster.url, str(WAYS[way]), str(wait_s)]
            driver = subprocess.Popen(
                [sys.executable, __file__, *given],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            try:
                until(lambda: read_rows(home) >= ids, "the stores to be filled")
                with Trickle(bus, ids, ids) as trickle:
                    for turn in range(times):
                        if way == "standby":
                            until(lambda: is_covered(home), "the standbys")
                        time.sleep(2)
                        outs.append(one_kill(way, home, cluster, trickle, turn % HOSTS))
            finally:
                end_group(driver)
        counts = getattr(committed(home), "counts", {})
    return {
        "way": way,
        "mb": mb,
        "out_s": [round(out, 2) for out in outs],
        "median_s": round(statistics.median(outs), 2),
        "failovers": counts.get("standby.failover", 0),
        "without": counts.get("standby.no_failover", 0),
    }


def one_kill(way: str, home: Path, cluster: SparkCluster, trickle: Trickle, host: int) -> float:
    """Kill, and return how long it was until a message was committed that came afterwards."""
    if way == "affinity":
        for pid in cluster.executors(host):
            kill(pid)
    else:
        cluster.kill_worker(host)
    wanted = trickle.rows + PARTITIONS
    out = until(lambda: read_rows(home) >= wanted, "a commit after the kill")
    if way != "affinity":
        cluster.start_worker(host)
        cluster.await_worker(host)
    until(lambda: read_rows(home) >= trickle.rows - 50, "the job to be level again")
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--wait", type=float, default=1.0)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--drive", nargs=4)
    options = parser.parse_args()
    if options.drive is not None:
        home, url, copies, wait_s = options.drive
        drive(Path(home), url, int(copies), float(wait_s))
        return
    for mb in options.mb:
        for way in options.ways:
            print(json.dumps(measured(way, mb, options.times, options.wait)), flush=True)


if __name__ == "__main__":
    main()
