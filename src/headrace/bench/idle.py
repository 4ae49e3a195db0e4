"""Small epochs: what one costs when there is nothing, or next to nothing, to do.

``direct``: an epoch of both levels with every task and no input, by the driver's clock, from
its planning to its committed manifest and the cleaning up after it. ``query``: one record is
appended to a bus at rest under a Structured Streaming query, and the time runs from before
the append until its epoch is committed and cleaned up after.
"""

from __future__ import annotations

import shutil
import statistics
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from headrace.bench.readwrite import MASTER, bench_settings, measure
from headrace.bench.workload import counting_job, create_stream, feed, random_ids
from headrace.bus.address import open_bus
from headrace.clock import SystemClock
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.loop import Control
from headrace.coordinator.summary import EpochSummary
from headrace.spark.run import run_job

WARM_UP = 5
KEYS = 10_000


def main(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure small epochs.

    Args:
        options: ``loop`` (``direct`` or ``query``), ``epochs``, ``tasks`` and ``home``; those
            left out have the defaults of the command.

    Returns:
        ``epoch_ms_p50``, ``epoch_ms_p95``, ``timings_ms`` (medians of an epoch's steps), and
        what was run.
    """
    home = Path(options.get("home") or ".headrace").absolute() / "bench"
    loop, tasks = options.get("loop") or "direct", int(options.get("tasks") or 4)
    count = int(options.get("epochs") or 50)
    run = {"direct": _direct, "query": _query}[loop]
    shutil.rmtree(home, ignore_errors=True)
    try:
        took_ms, epochs = run(home / "idle", tasks, count)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    steps = epochs[-1].timings_ms
    return {
        "epoch_ms_p50": round(statistics.median(took_ms), 1),
        "epoch_ms_p95": round(statistics.quantiles(took_ms, n=20)[-1], 1),
        "timings_ms": {
            step: round(statistics.median(e.timings_ms.get(step, 0.0) for e in epochs), 2)
            for step in steps
        },
        "loop": loop,
        "tasks": tasks,
        "epochs": len(took_ms),
        "master": MASTER,
    }


def _direct(home: Path, tasks: int, count: int) -> tuple[list[float], list[EpochSummary]]:
    settings = bench_settings(home, tasks=tasks, max_rows=KEYS, bounded=False)
    control = Control()
    epochs: list[EpochSummary] = []

    def spin(coordinator: Coordinator) -> None:
        coordinator.advance()
        for _ in range(WARM_UP + count):
            summary = coordinator.advance(force=True)
            assert summary is not None
            epochs.append(summary)
        control.stop.set()

    with open_bus(settings.bus_dir) as bus:
        feed(create_stream(bus), random_ids(KEYS, KEYS))
        run_job(
            counting_job("message", "rocksdb"), settings, bus=bus, control=control, on_start=spin
        )
    kept = epochs[WARM_UP:]
    return [epoch.took_ms for epoch in kept], kept


def _query(home: Path, tasks: int, count: int) -> tuple[list[float], list[EpochSummary]]:
    settings = bench_settings(home, tasks=tasks, loop="query", max_rows=KEYS, bounded=False)
    control, clock = Control(), SystemClock()
    done: SimpleQueue[EpochSummary] = SimpleQueue()
    took_ms: list[float] = []
    epochs: list[EpochSummary] = []
    with open_bus(settings.bus_dir) as bus:
        stream = create_stream(bus)
        feed(stream, random_ids(KEYS, KEYS))

        def append_one_by_one() -> None:
            done.get()
            for _ in range(WARM_UP + count):
                began = clock.monotonic()
                feed(stream, np.array([1], np.int64))
                epochs.append(done.get())
                took_ms.append((clock.monotonic() - began) * 1000)
            control.stop.set()

        feeder = threading.Thread(target=append_one_by_one, daemon=True)
        feeder.start()
        work = counting_job("message", "rocksdb")
        run_job(work, settings, bus=bus, control=control, on_epoch=done.put)
        feeder.join()
    return took_ms[WARM_UP:], epochs[WARM_UP:]


def compare_tasks(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure what many tasks cost: the same messages with few and with many.

    Args:
        options: ``rows``, ``ids``, ``path``, ``few``, ``many`` and ``home``; those left out
            have the defaults of the command.

    Returns:
        ``epoch_ms_p50`` by number of tasks, their ``ratio``, and what was run.
    """
    home = Path(options.get("home") or ".headrace").absolute() / "bench"
    messages = random_ids(int(options.get("rows") or 4_000_000), int(options.get("ids") or 10**6))
    few, many = int(options.get("few") or 4), int(options.get("many") or 64)
    path = options.get("path") or "message"
    shutil.rmtree(home, ignore_errors=True)
    try:
        found = {
            tasks: measure(
                home / str(tasks), messages, path=path, store="rocksdb", tasks=tasks, loop="direct"
            )
            for tasks in (few, many)
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)
    p50 = {tasks: run.epoch_ms_p50 for tasks, run in found.items()}
    return {
        "epoch_ms_p50": {str(tasks): round(ms, 1) for tasks, ms in p50.items()},
        "ratio": round(p50[many] / p50[few], 2),
        "rows_per_s": {str(tasks): round(run.rows_per_s) for tasks, run in found.items()},
        "rows": len(messages),
        "path": path,
        "master": MASTER,
    }
