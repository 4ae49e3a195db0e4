"""The first row of each id: rows a second of one task, and of a whole job in one process.

python bench/deduplicate.py [--ids 10000000] [--batch 1000000] [--epochs 10] [--copies 0.5]
    [--key int|string] [--kept event|good] [--job]

A task keeps ``ids`` ids. Each epoch brings ``batch`` rows, of which a part are copies of ids that
it keeps and the others are new; as many as come are forgotten, but with ``--kept good``. Figures
are nanoseconds of processor time a row; files are merged by four, as tiers do. With ``--job`` the
same rows go through a job: file bus, exchange, two tasks, output, commit, all in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from columnar import TableBench

import headrace as hr
from headrace.graph.operators import Deduplicate
from headrace.records.schema import TableLayout
from headrace.runtime.chunk import Chunk
from headrace.runtime.deduplicate import DeduplicateNode
from headrace.state.columnar_table import ColumnarTable
from headrace.testing import TestDriver

STEP_MS = 1000
"""Event time goes on by so much in an epoch."""


class IdBench(TableBench):
    """One task's ids over its epochs."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        super().__init__(folder, given, time.process_time)
        self.fresh = int(given.batch * (1 - given.copies))
        self.within = STEP_MS * max(1, given.keys // self.fresh)
        by_event = given.kept == "event"
        ttl_ms = self.within if by_event else None
        self.layout = TableLayout(self.schema, pa.schema([]), ttl_ms=ttl_ms, by_event=by_event)
        self.table = ColumnarTable(self.layout)
        operator = Deduplicate("ids", columns=("id",), within_ms=ttl_ms)
        self.node = DeduplicateNode(operator, self.table, ["id"], 0)
        self.draw = np.random.default_rng(1)
        self.made = self.epoch = 0

    def rows(self, fresh: int, copies: int) -> Chunk:
        """New ids and copies of those that are kept, mixed."""
        before, self.made = self.made, self.made + fresh
        old = self.draw.integers(max(0, before - self.keys + self.fresh), max(1, before), copies)
        ids = self.draw.permutation(np.concatenate([np.arange(before, self.made), old]))
        batch = pa.RecordBatch.from_arrays([self.array(ids)], schema=self.schema)
        times = np.full(len(ids), self.epoch * STEP_MS)
        return Chunk(batch, times, times - STEP_MS)

    def run_ids(self, fresh: int, copies: int) -> None:
        """Push one epoch's rows, write what it changed, merge."""
        chunk = self.rows(fresh, copies)
        self.now_ms = (self.epoch - 1) * STEP_MS if self.layout.by_event else 0
        self.node.begin(self.epoch, 0, (self.epoch - 1) * STEP_MS)
        self.table.begin(self.now_ms)
        began = time.perf_counter()
        self.timed("push", chunk.rows, lambda: self.node.push(chunk))
        changes = self.timed("seal", chunk.rows, self.table.seal)
        self.runs.append(self.timed("write", chunk.rows, lambda: self.write("", *changes)))
        self.timed("merges", chunk.rows, self.merge)
        self.table.attach(self.runs)
        self.figures["wall"].append((time.perf_counter() - began) / chunk.rows * 1e9)
        self.figures["runs"].append(len(self.runs))
        self.epoch += 1

    def measure(self) -> dict[str, Any]:
        """Fill the table, run the epochs, return the figures."""
        while self.made < self.keys:
            self.run_ids(min(self.batch, self.keys - self.made), 0)
        self.figures.clear()
        self.node.counts.clear()
        for _ in range(self.epochs):
            self.run_ids(self.fresh, self.batch - self.fresh)
        steps = ("push", "seal", "write", "merges", "wall", "runs")
        figures = {name: round(statistics.mean(self.figures[name]), 1) for name in steps}
        spent = sum(figures[name] for name in ("push", "seal", "write", "merges"))
        rate = round(1e9 / spent)
        duplicates = self.node.counts["duplicates"]
        return {**figures, "rows_per_s_of_one_core": rate, "duplicates": duplicates}


def run_job(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Return rows a second of a job in this process."""

    @hr.job("once")
    def once(g: hr.Graph) -> None:
        rows = g.input("in", time="at").partition_by("id")
        within = {"within": "1h"} if given.kept == "event" else {}
        rows.deduplicate(**within).send_to(g.output("out"))

    numbers = np.random.default_rng(1)
    bench = IdBench(home, given)
    with TestDriver(once, tasks=2, slots=1, home=home, memory_bus=False) as driver:
        kind = bench.schema.field("id").type
        driver.create("in", {"id": kind, "at": pa.int64(), "v": pa.int64()}, time="at")
        spent, wall = [], []
        for epoch in range(given.epochs + 1):
            fresh = np.arange(epoch * bench.fresh, (epoch + 1) * bench.fresh)
            old = numbers.integers(0, max(1, epoch * bench.fresh), given.batch - bench.fresh)
            ids = numbers.permutation(np.concatenate([fresh, old]))
            at = pa.array(np.full(len(ids), epoch * STEP_MS))
            table = pa.table({"id": bench.array(ids), "at": at, "v": at})
            driver.feed("in", table, partition=0)
            began = time.process_time(), time.perf_counter()
            driver.run()
            spent.append(time.process_time() - began[0])
            wall.append(time.perf_counter() - began[1])
        rate = given.batch / statistics.median(spent[1:])
        passed = driver.coordinator.state.counts["out"]
    return {
        "rows_per_s_of_one_core": round(rate),
        "rows_per_s": round(given.batch / statistics.median(wall[1:])),
        "passed_on": passed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", dest="keys", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--copies", type=float, default=0.5, help="part of the rows")
    parser.add_argument("--key", choices=("int", "string"), default="int")
    parser.add_argument("--kept", choices=("event", "good"), default="event")
    parser.add_argument("--job", action="store_true")
    given = parser.parse_args()
    given.windows = 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        if given.job:
            print(json.dumps(run_job(given, Path(folder))))
            return
        print(json.dumps(IdBench(Path(folder), given).measure()))


if __name__ == "__main__":
    main()
