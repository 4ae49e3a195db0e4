"""Standalone against Spark local mode: start, small epochs, throughput by kind of slot.

    PYTHONPATH=src python bench/standalone.py [--rows N] [--spark]

Each start is of a new interpreter, imports and all: from its begin to its first committed epoch,
and to its end. Small epochs run every task on no input. The steady rate leaves out the first epoch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.bench.readwrite import bench_settings, counting_job, create_stream, feed, random_ids
from headrace.bus.address import open_bus
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_run import RunListeners

EPOCHS = 50
WAYS = {
    "1 thread": ("threads", 1),
    "2 threads": ("threads", 2),
    "1 process": ("processes", 1),
    "2 processes": ("processes", 2),
}


def settings_of(home: Path, way: str, **how: Any) -> Any:
    made = bench_settings(home, **how)
    if way == "spark":
        return made
    kind, slots = WAYS[way]
    job = replace(made.job, slots=slots)
    standalone = replace(made.standalone, workers=kind)
    return replace(made, job=job, standalone=standalone)


def run(way: str, job: Any, settings: Any, **told: Any) -> None:
    control = told.pop("control", None) or JobControl()
    if way == "spark":
        from headrace.spark.run import run_job  # noqa: PLC0415 - what is not measured is not loaded

        run_job(job, settings, control=control, **told)
        return
    from headrace.standalone.running import Running  # noqa: PLC0415 - the same

    Running(job, settings, control=control, listeners=RunListeners(**told)).wait()


def start(way: str, home: Path) -> None:
    """In a process of its own: run a small job, and tell when its first epoch was there."""
    firsts: list[float] = []
    settings = settings_of(home, way, max_rows=1000, bounded=True)
    run(
        way,
        counting_job("message", "rocksdb"),
        settings,
        on_epoch=lambda s: firsts.append(time.time()),
    )
    print(firsts[0])


def starts(way: str, times: int) -> dict[str, float]:
    first, whole = [], []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            with open_bus(home / "bus") as bus:
                feed(create_stream(bus), random_ids(1000, 100))
            began = time.time()
            words = [sys.executable, __file__, "--start", way, "--home", str(home)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            whole.append(time.time() - began)
            first.append(float(done.stdout.split()[-1]) - began)
    return {
        "first epoch s": round(statistics.median(first), 2),
        "whole run s": round(statistics.median(whole), 2),
    }


def small_epochs(way: str) -> dict[str, float]:
    took: list[float] = []
    control = JobControl()

    def spin(part: Coordinator) -> None:
        part.advance()
        for number in range(EPOCHS + 5):
            summary = part.advance(force=True)
            assert summary is not None
            if number >= 5:
                took.append(summary.took_ms)
        control.stop.set()

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with open_bus(home / "bus") as bus:
            feed(create_stream(bus), random_ids(1000, 100))
        settings = settings_of(home, way, max_rows=10_000, bounded=False)
        run(way, counting_job("message", "rocksdb"), settings, control=control, on_start=spin)
    return {
        "epoch ms p50": round(statistics.median(took), 1),
        "epoch ms p95": round(statistics.quantiles(took, n=20)[-1], 1),
    }


def rate(way: str, path: str, rows: int) -> int:
    ends: list[tuple[float, int]] = []

    def note(summary: Any) -> None:
        if summary.rows:
            ends.append((time.monotonic(), summary.rows))

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with open_bus(home / "bus") as bus:
            feed(create_stream(bus), random_ids(rows, rows // 4))
        settings = settings_of(home, way, max_rows=rows // 4, bounded=True)
        store = "columnar" if path == "batch" else "rocksdb"
        run(way, counting_job(path, store), settings, on_epoch=note)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
    return round(sum(n for _, n in ends[1:]) / (ends[-1][0] - ends[0][0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="measure Spark local[2] as well")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start:
        start(given.start, given.home)
        return
    for way in [*WAYS, *(["spark"] if given.spark else [])]:
        found: dict[str, Any] = {"way": way}
        found |= starts(way, given.times)
        found |= small_epochs(way)
        found["message rows/s"] = rate(way, "message", given.rows)
        found["batch rows/s"] = rate(way, "batch", 4 * given.rows)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
