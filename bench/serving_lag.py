"""How far `headrace serve` is behind a job that runs: `python bench/serving_lag.py` prints JSON.

A job counts by key, standalone, after a row of each key, while rows come at a rate; `headrace
serve` follows its store in a process of its own. A client asks for the table's version all the
time: `commit_ms` is from the wall clock of an epoch's commit, as the job notes it, until an answer
is of that epoch. Once in `--probe` seconds a row has a key of its own: `row_ms` is from its append
until its key is found, which should be at most `epoch_ms`, the longest time from a commit to the
next, and 100 ms. With `--totals` the job aggregates, and its totals are served.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from headrace.bus import FileBus, StreamSpec

SCHEMA = pa.schema([("user", pa.string())])
JOB = """
import headrace as hr

class Counting:
    def process(self, click, context):
        counts = context.store("counts")
        counts.put(click.user, counts.get(click.user, 0) + 1)

@hr.job("clicks")
def clicks(g: hr.Graph) -> None:
    g.input("clicks").partition_by("user").process(Counting, [hr.store("counts", int)])
"""
TOTALS = """
import headrace as hr

@hr.job("clicks")
def clicks(g: hr.Graph) -> None:
    counts = g.input("clicks").partition_by("user").aggregate(n=hr.agg.count())
    counts.send_to(g.output("counts"))
"""
PAUSE_S = 0.002


class Feeder(threading.Thread):
    """Appends rows at a rate, and rows that are waited for."""

    def __init__(self, bus: FileBus, rate: int, keys: int, probe_s: float) -> None:
        super().__init__(daemon=True)
        self._stream, self._rate, self._keys = bus.stream("clicks"), rate, keys
        self._probe_s, self._dice = probe_s, np.random.default_rng(1)
        self.probes: list[tuple[str, float]] = []
        self._numbers = itertools.count()
        self.over = threading.Event()

    def run(self) -> None:
        due, step_s = time.monotonic(), 0.05
        while not self.over.wait(step_s):
            users = [f"u{n}" for n in self._dice.integers(0, self._keys, int(self._rate * step_s))]
            now_s = time.monotonic()
            if now_s >= due:
                due = now_s + self._probe_s
                users.append(f"probe{next(self._numbers)}")
                self.probes.append((users[-1], now_s))
            self._stream.append(0, pa.RecordBatch.from_pydict({"user": users}, SCHEMA))


def spread(waits: list[float]) -> dict[str, float]:
    """Return the median, a high percentile and the most of some times, in ms."""
    cuts = statistics.quantiles(waits, n=100)
    found = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "most": max(waits)}
    return {name: round(value, 1) for name, value in found.items()}


def measured(client: redis.Redis, feeder: Feeder, seconds: float) -> dict[str, Any]:
    """Watch the table, and return how late things were seen."""
    lags, waits, commits, seen = list[float](), list[float](), list[int](), 0
    shown = client.execute_command("HR.VERSION", "counts")[0]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number, at_ms, _ = client.execute_command("HR.VERSION", "counts")
        if number != shown:
            lags.append(time.time() * 1000 - at_ms)
            shown = number
            commits.append(at_ms)
        while seen < len(feeder.probes) and client.exists(f"counts:{feeder.probes[seen][0]}"):
            waits.append((time.monotonic() - feeder.probes[seen][1]) * 1000)
            seen += 1
        time.sleep(PAUSE_S)
    steps = [b - a for a, b in itertools.pairwise(commits)]
    return {
        "epochs": len(commits),
        "epoch_ms": spread(list(map(float, steps))),
        "commit_ms": spread(lags),
        "row_ms": spread(waits),
    }


def main() -> None:
    """Measure, and print."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rate", type=int, default=2000)
    words.add_argument("--keys", type=int, default=10_000)
    words.add_argument("--probe", type=float, default=0.3)
    words.add_argument("--seconds", type=float, default=30.0)
    words.add_argument("--totals", action="store_true")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home, file = Path(name) / "home", Path(name) / "clicks.py"
        file.write_text(TOTALS if given.totals else JOB)
        headrace = [sys.executable, "-m", "headrace.cli.main"]
        with FileBus(home / "bus") as bus:
            bus.create(StreamSpec("clicks", 1, SCHEMA))
            users = [f"u{n}" for n in range(given.keys)]
            bus.stream("clicks").append(0, pa.RecordBatch.from_pydict({"user": users}, SCHEMA))
            feeder = Feeder(bus, given.rate, given.keys, given.probe)
            feeder.start()
            run = [*headrace, "run", str(file), "--standalone", "--home", str(home)]
            source = "clicks:aggregate=counts" if given.totals else "clicks:counts"
            serve = [*headrace, "serve", "--job", source, "--home", str(home)]
            with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
                try:
                    found = _watched([*serve, "--port", "0", "--json"], feeder, given.seconds)
                finally:
                    feeder.over.set()
                    job.send_signal(signal.SIGINT)
    print(json.dumps({"rate": given.rate, "keys": given.keys, **found}, indent=2))


def _watched(serve: list[str], feeder: Feeder, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while True:  # a job that has not committed yet has no store to serve
        with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                assert time.monotonic() < deadline, "the job does not begin"
                time.sleep(0.5)
                continue
            try:
                server.stdout.readline()  # the table is loaded
                port = int(json.loads(line)["address"].rpartition(":")[2])
                with redis.Redis(port=port) as client:
                    while client.execute_command("HR.VERSION", "counts")[0] < 5:
                        time.sleep(0.1)
                    behind = len(feeder.probes)
                    feeder.probes[:] = feeder.probes[behind:]
                    return measured(client, feeder, seconds)
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
