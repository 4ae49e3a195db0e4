"""How quickly a running app answers queries for one key, as JSON; docs/guide/sql.md.

    python bench/sql_queries.py [--rate 2000] [--keys 1000] [--windows 60] [--seconds 30] [--served]

Runs an app standalone, in processes of its own, which counts by key in windows of ten seconds.
First it takes in so many past windows at once; then rows come at a rate, and this process asks for
one key and one window, again and again over one connection: past windows, current ones, and both.
The driver answers, or with ``--served`` a process of `headrace sql serve` beside it.
Beside them the route /v1/job, which reads nothing: what the machine adds to each answer.
Reports latencies in ms, how many rows the table had, and how far the app was behind in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import pyarrow as pa

from headrace.bus import FileBus, StreamSpec
from headrace.control.client import API_FILE

SIZE_MS, BEGIN_MS = 10_000, 1_700_000_000_000
APP = """
CREATE APPLICATION counting;
CREATE INPUT TABLE clicks(at BIGINT, page VARCHAR, ms BIGINT) FROM SCRIBE("clicks") TIME at;
CREATE TABLE pages AS SELECT page, count(*) AS n, avg(ms) AS mean FROM clicks [10 seconds]
    GROUP BY page;
"""
SCHEMA = pa.schema([("at", pa.int64()), ("page", pa.string()), ("ms", pa.int64())])


def rows(begin_ms: float, end_ms: float, count: int, keys: int, seed: int) -> pa.RecordBatch:
    """Return rows of random keys, in order of time."""
    dice = np.random.default_rng(seed)
    at = np.sort(dice.integers(int(begin_ms), int(end_ms), count))
    page = [f"page-{key}" for key in dice.integers(0, keys, count)]
    return pa.record_batch([at, pa.array(page), dice.integers(0, 900, count)], schema=SCHEMA)


class Feeder(threading.Thread):
    """Appends rows at a rate; event time goes with the clock."""

    def __init__(self, bus: FileBus, rate: int, keys: int, begin_ms: int) -> None:
        super().__init__(daemon=True)
        self._stream, self._rate, self._keys = bus.stream("clicks"), rate, keys
        self._begin_ms, self._began = begin_ms, time.monotonic()
        self.over = threading.Event()

    @property
    def now_ms(self) -> float:
        return self._begin_ms + (time.monotonic() - self._began) * 1000

    def run(self) -> None:
        last, seed = self.now_ms, 1
        while not self.over.wait(0.2):
            now, seed = self.now_ms, seed + 1
            count = int((now - last) / 1000 * self._rate)
            self._stream.append(0, rows(last, now, count, self._keys, seed))
            last = now


class Asking:
    """One connection to a driver, or to another server of the app.

    Args:
        below: a folder; the process leaves word in it, or in one below.
    """

    def __init__(self, below: Path) -> None:
        deadline = time.monotonic() + 60
        while not (found := [*below.glob(API_FILE), *below.glob(f"*/{API_FILE}")]):
            assert time.monotonic() < deadline, f"nobody answers below {below}"
            time.sleep(0.1)
        place = json.loads(found[0].read_text())
        url = urlsplit(place["url"])
        self._headers = {"Authorization": f"Bearer {place['token']}"}
        self._connection = HTTPConnection(url.hostname or "", url.port, timeout=120)

    def get(self, path: str) -> Any:
        self._connection.request("GET", path, None, self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return json.loads(data)

    def query(self, sql: str, windows: str) -> list[dict[str, Any]]:
        words = urlencode({"query": sql, "windows": windows})
        found: list[dict[str, Any]] = self.get(f"/v1/sql?{words}")["rows"]
        return found


def started(*words: str) -> subprocess.Popen[bytes]:
    """Return a process of a command."""
    command = [sys.executable, "-m", "headrace.cli.main", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def until(what: str, seconds: float, is_so: Any) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def measured(asking: Asking, feeder: Feeder, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the latencies of each kind of query."""
    dice, found = random.Random(1), {}
    for windows in ("past", "current", "all"):
        took, hits = [], 0
        until_s = time.monotonic() + chosen.seconds / 3
        while time.monotonic() < until_s or len(took) < 100:
            back = dice.randrange(2, chosen.windows) if windows == "past" else dice.randrange(2)
            start = (int(feeder.now_ms) // SIZE_MS - back) * SIZE_MS
            moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start / 1000))
            key = f"page-{dice.randrange(chosen.keys)}"
            sql = f"SELECT * FROM pages WHERE page = '{key}' AND window_start = '{moment}'"
            began = time.perf_counter()
            hits += len(asking.query(sql, windows))
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(chosen.pause_ms / 1000)
        found[windows] = {"rows": hits, **summary(took)}
    return found


def summary(took: list[float]) -> dict[str, float]:
    """Return percentiles of latencies, without the first ones."""
    p50, p90, p99 = np.percentile(took[10:], [50, 90, 99]).round(1).tolist()
    return {"queries": len(took), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99}


def other_route(asking: Asking, pause_ms: int) -> dict[str, float]:
    """Return the latencies of a route that reads nothing: what the machine adds to each answer."""
    took = []
    for _ in range(500):
        began = time.perf_counter()
        asking.get("/v1/job")
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(pause_ms / 1000)
    return summary(took)


def main() -> None:
    """Run the app, ask it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=2_000, help="rows a second")
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--windows", type=int, default=60, help="past windows to begin with")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--served", action="store_true", help="ask headrace sql serve")
    parser.add_argument("--pause-ms", type=int, default=5, help="between two queries")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-queries-") as folder:
        home, file = Path(folder) / "home", Path(folder) / "counting.sql"
        file.write_text(APP)
        with FileBus(home / "bus") as bus:
            bus.create(StreamSpec("clicks", 1, SCHEMA, time="at"))
            span = chosen.windows * SIZE_MS
            past = rows(BEGIN_MS, BEGIN_MS + span, 5 * chosen.windows * chosen.keys, chosen.keys, 0)
            bus.stream("clicks").append(0, past)
            own = ["--home", str(home)]
            processes = [started("run", str(file), "--standalone", *own)]
            try:
                place = home / "jobs" / "counting"
                asking = driver = Asking(place)
                until("no epoch", 120, lambda: asking.get("/v1/job")["epoch"] > 0)
                feeder = Feeder(bus, chosen.rate, chosen.keys, BEGIN_MS + span)
                feeder.start()
                count = "SELECT count(*) AS n FROM pages"
                until("it is behind", 120, lambda: asking.query(count, "past")[0]["n"] > 0)
                if chosen.served:
                    processes.append(started("sql", "serve", str(file), *own))
                    asking = Asking(home / "sql" / "counting" / "servers")
                    until("it is behind", 120, lambda: asking.query(count, "past")[0]["n"] > 0)
                found = {"job_route": other_route(driver, chosen.pause_ms)}
                found |= measured(asking, feeder, chosen)
                feeder.over.set()
                rows_there = asking.query(count, "all")[0]["n"]
                job = Asking(place).get("/v1/job")  # a server closes what is silent for seconds
            finally:
                for process in reversed(processes):
                    process.send_signal(signal.SIGINT)
                    process.wait(60)
    load = round(os.getloadavg()[0], 1)
    sizes = {"keys": chosen.keys, "rate": chosen.rate, "table_rows": rows_there}
    print(json.dumps({**sizes, "epochs": job["epoch"], "lag": job["lag"], "load": load, **found}))


if __name__ == "__main__":
    main()
