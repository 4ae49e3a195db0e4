"""What a standby costs the cores of its host, for each kind of store, beside the work itself.

    python bench/standby.py [--rows 400000] [--epochs 12] [--times 3]

The same job runs with and without a standby of each task, in turn, in one process that has all
slots; a standby follows at once, in the thread of the slot, so that its work is in the time of the
epoch. The ratio is what standbys add to the CPU seconds of the job, the rate what a core follows.
A table on columns and a store in memory have no standby: the one is committed files, which any host
maps, the other ends with its process.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.testing.driver import TestDriver

KEYS = 200_000
COLUMNS = {"id": pa.int64(), "v": pa.int64()}


def totals(store: str) -> hr.Job:
    @hr.job("totals")
    def job(g: hr.Graph) -> None:
        by_id = g.input("events").partition_by("id")
        by_id.aggregate(name="totals", store=store, n=hr.agg.sum("v"))

    return job


class _Write:
    """Puts a value of some bytes under the id of each message."""

    size = 8

    def process(self, message: Any, context: Any) -> None:
        context.store("kept").put(message.id, b"x" * self.size)


class _WriteLarge(_Write):
    size = 1_000


def kept(kind: str, process: type[_Write]) -> hr.Job:
    @hr.job("kept")
    def job(g: hr.Graph) -> None:
        stores = [hr.store("kept", bytes, kind=kind)]
        g.input("events").partition_by("id").process(process, stores=stores, name="write")

    return job


CASES: dict[str, Callable[[], hr.Job]] = {
    "rocksdb, 8 B values": lambda: kept("rocksdb", _Write),
    "rocksdb, 1,000 B values": lambda: kept("rocksdb", _WriteLarge),
    "memory, 8 B values": lambda: kept("memory", _Write),
    "columnar aggregate": lambda: totals("columnar"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="of all epochs together")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--times", type=int, default=3)
    wanted = parser.parse_args()
    for name, make in CASES.items():
        runs = [
            (run(make(), 0, wanted), run(make(), 1, wanted))  # in turn, so that noise meets both
            for _ in range(wanted.times)
        ]
        print(json.dumps({"store": name, **summed(runs)}), flush=True)


def run(job: hr.Job, copies: int, wanted: argparse.Namespace) -> dict[str, float]:
    """CPU seconds of the epochs, and what was followed."""
    rng = random.Random(7)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as home,
        TestDriver(
            job, tasks=4, slots=2, hosts=2, standby_copies=copies, home=Path(home)
        ) as driver,
    ):
        driver.create("events", COLUMNS)
        size, spent = wanted.rows // wanted.epochs, 0.0
        for _ in range(wanted.epochs):
            ids = [rng.randrange(KEYS) for _ in range(size)]
            driver.feed("events", pa.table({"id": ids, "v": [1] * size}, pa.schema(COLUMNS)))
            began = time.process_time()
            driver.advance()
            spent += time.process_time() - began
        counts = driver.coordinator.state.counts
        followed = sum(n for name, n in counts.items() if name.startswith("follow.bytes."))
    return {"cpu_s": spent, "followed": followed}


def summed(runs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, Any]:
    ratios = [on["cpu_s"] / off["cpu_s"] for off, on in runs]
    extra = statistics.median(on["cpu_s"] - off["cpu_s"] for off, on in runs)
    followed = statistics.median(on["followed"] for _, on in runs)
    return {
        "cpu_s": round(statistics.median(off["cpu_s"] for off, _ in runs), 2),
        "with_standbys": round(statistics.median(ratios), 3),
        "followed_mb": round(followed / 1e6, 1),
        "mb_per_core_second": round(followed / 1e6 / extra, 1) if followed and extra > 0 else None,
    }


if __name__ == "__main__":
    main()
