"""How long a job stands still when its driver is killed: who follows it decides.

    python bench/driver_failover.py --times 5

A job that counts by key, in ``local[2]``, with 20 rows a second. Its driver is killed with kill -9,
over and over, and ``next_commit_s`` is from then to the next committed epoch:

``cold``       somebody sees it at once, and starts ``headrace run`` again
``supervise``  the parent of ``headrace run --supervise`` does
``standby``    a driver of ``headrace run --standby`` waits, warm; another takes its place

The three take turns, so that what else runs on the machine disturbs all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.clock import SystemClock
from headrace.coordinator.driver_standby import standby_drivers
from headrace.files import is_alive
from headrace.testing.servers import end_group

JOB = """
import headrace as hr

@hr.job("counts")
def counts(g: hr.Graph) -> None:
    by = g.input("orders").partition_by("customer")
    by.aggregate(n=hr.agg.count()).send_to(g.output("counts"))
"""
EVERY_S, PATIENCE_S = 0.05, 240.0
WAYS = ("cold", "supervise", "standby")


def until(condition: Callable[[], Any], what: str) -> Any:
    began = time.monotonic()
    while not (found := condition()):
        if time.monotonic() - began > PATIENCE_S:
            raise TimeoutError(what)
        time.sleep(0.02)
    return found


class Rig:
    """A home with a stream that rows come to, and the drivers of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / ".headrace"
        (folder / "job.py").write_text(JOB)
        self._bus = open_bus(self.home / "bus")
        schema = pa.schema([("customer", pa.int64())])
        self._stream = self._bus.create(StreamSpec("orders", 2, schema))
        self._over, self._drivers = threading.Event(), list[subprocess.Popen[bytes]]()
        self._thread = threading.Thread(target=self._trickle, daemon=True)
        self._thread.start()

    def _trickle(self) -> None:
        count = 0
        while not self._over.wait(EVERY_S):
            count += 1
            batch = pa.RecordBatch.from_arrays([pa.array([count % 50])], names=["customer"])
            self._stream.append(count % 2, batch)

    @property
    def _job(self) -> Path:
        return self.home / "jobs" / "counts"

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        words = ["run", "job.py:counts", "--master", "local[2]", "--json", *options]
        words += ["--set", "supervise.first_wait_s=0"]
        with open(self.folder / f"log-{len(self._drivers)}", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._drivers.append(process)
        return process

    def commits(self) -> list[float]:
        names = sorted((self._job / "manifests").glob("[0-9]*.json"))
        return [path.stat().st_mtime for path in names[-3:]]

    def await_commit(self, since: float) -> float:
        """Return the time of the first commit after a moment, from then on."""
        return until(lambda: next((t for t in self.commits() if t > since), 0.0), "a commit")

    def driver(self) -> int:
        return until(self._driver, "a driver")

    def _driver(self) -> int:
        lock = self._job / "driver.lock"
        text = lock.read_text().strip() if lock.exists() else ""
        return int(text) if text and is_alive(int(text)) else 0

    def await_warm(self) -> None:
        until(lambda: any(one.warm for one in standby_drivers(self._job, SystemClock())), "warmth")

    def settle(self) -> None:
        """Wait until some epochs are committed by the driver that is there."""
        now = time.time()
        self.await_commit(now)
        time.sleep(2)

    def kill(self) -> float:
        """Kill the driver; return when."""
        process = self.driver()
        now = time.time()
        os.kill(process, signal.SIGKILL)
        until(lambda: not is_alive(process), "the end of the driver")
        return now

    def end_all(self) -> None:
        for process in self._drivers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._drivers:
            process.wait(60)
            end_group(process)
        self._drivers.clear()

    def close(self) -> None:
        self.end_all()
        self._over.set()
        self._thread.join()
        self._bus.close()


@contextmanager
def running(rig: Rig, *options: str) -> Iterator[None]:
    """Have a driver, which has committed epochs, for a block."""
    rig.start(*options)
    try:
        rig.driver()
        rig.settle()
        yield
    finally:
        rig.end_all()


def measured(rig: Rig, way: str) -> float:
    if way == "supervise":
        with running(rig, "--supervise"):
            killed = rig.kill()
            return rig.await_commit(killed) - killed
    with running(rig):
        if way == "standby":
            rig.start("--standby")
            rig.await_warm()
            time.sleep(2)
            killed = rig.kill()
        else:
            killed = rig.kill()
            rig.start()
        return rig.await_commit(killed) - killed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # drivers end, too
    found: dict[str, list[float]] = {way: [] for way in options.ways}
    with tempfile.TemporaryDirectory(prefix="driver-") as name:
        rig = Rig(Path(name))
        try:
            for _ in range(options.times):
                for way in options.ways:
                    found[way].append(round(measured(rig, way), 2))
                    print(way, found[way][-1], file=sys.stderr, flush=True)
        except TimeoutError:
            for log in sorted(Path(name).glob("log-*")):
                print(log.read_text()[-1500:], file=sys.stderr)
            raise
        finally:
            rig.close()
    middle = {way: round(statistics.median(times), 2) for way, times in found.items()}
    print(json.dumps({"next_commit_s": found, "median": middle}))


if __name__ == "__main__":
    main()
