"""Joins of two streams: rows a second in one process, or through the whole engine on Spark.

python bench/joins.py [--rows 10000000] [--epoch-rows 2000000] [--keys 1000000] [--only NAME]
python bench/joins.py --spark [--rows 40000000] [--epoch-rows 8000000] [--only NAME]

Rows of uniform keys come at 100,000 a second of event time in each stream, up to two seconds out
of order, from two partitions of a file bus each; pairs are appended to the bus. Rows of both
streams are counted. Within 5 seconds a row of a million keys has one partner on average; within 60
seconds (of ten million keys) 12 million rows wait in the tables. The first epochs, in which these
fill, are left out. How many pairs there have to be is counted another way, and checked.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bench.readwrite import bench_settings
from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.coordinator.epoch_records import EpochSummary
from headrace.spark.run import run_job
from headrace.testing import TestDriver

STREAMS = ("clicks", "views")
PARTITIONS = 2
APPEND_ROWS = 50_000
A_SECOND = 100_000
OUT_OF_ORDER_MS = 2000


class Kind(NamedTuple):
    """One join: its arguments, how many times the keys, and the epochs before it is measured."""

    seconds: int
    how: str = "inner"
    text: bool = False
    times_keys: int = 1
    before: int = 1


KINDS = {
    "within 5s": Kind(5),
    "within 5s, full": Kind(5, "full"),
    "within 5s, text keys": Kind(5, text=True),
    "within 60s": Kind(60, times_keys=10, before=7),
}


class Drawn(NamedTuple):
    """Rows of one stream."""

    keys: Any
    times: Any


def job(kind: Kind) -> Any:
    @hr.job("bench")
    def bench(g: hr.Graph) -> None:
        clicks, views = (
            g.input(name, time="at", out_of_orderness=f"{OUT_OF_ORDER_MS}ms").partition_by("k")
            for name in STREAMS
        )
        within = f"{kind.seconds}s"
        joined = clicks.join(views, within=within, how=kind.how, columns={"seen": "v"})
        joined.map("k", "v", "seen").send_to(g.output("out"))

    return bench


def drawn(stream: int, rows: int, keys: int) -> Drawn:
    """Return the rows of one of the streams."""
    draw = np.random.default_rng(stream)
    at = np.arange(rows) * 1000 // A_SECOND + draw.integers(0, OUT_OF_ORDER_MS, rows)
    return Drawn(draw.integers(0, keys, rows), at)


def fill(bus: Bus, kind: Kind, rows: int, keys: int) -> int:
    """Append rows to both streams, in turn to partitions; returns how many pairs they make."""
    sides = []
    for number, name in enumerate(STREAMS):
        side = drawn(number, rows // 2, keys)
        sides.append(side)
        of_key = pa.string() if kind.text else pa.int64()
        schema = pa.schema([("k", of_key), ("v", pa.int64()), ("at", pa.int64())])
        stream = bus.create(StreamSpec(name, PARTITIONS, schema, time="at"))
        for turn, begin in enumerate(range(0, rows // 2, APPEND_ROWS)):
            own = slice(begin, begin + APPEND_ROWS)
            found = pa.array(side.keys[own])
            columns = [found.cast(of_key), pa.array(side.times[own]), pa.array(side.times[own])]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            stream.append(turn % PARTITIONS, batch)
    return pairs_of(*sides, kind.seconds * 1000)


def pairs_of(left: Drawn, right: Drawn, within: int) -> int:
    """Count pairs by sorting both sides as one number each."""
    width = int(max(left.times.max(), right.times.max())) + 2 * within + 1
    places = np.sort(right.keys * width + right.times + within)
    own = left.keys * width + left.times + within
    first = np.searchsorted(places, np.sort(own - within))
    last = np.searchsorted(places, np.sort(own + within), side="right")
    return int(last.sum() - first.sum())


def measure(kind: Kind, rows: int, epoch_rows: int, keys: int) -> dict[str, Any]:
    """Run one kind in this process, and return its figures."""
    home = Path(tempfile.mkdtemp(prefix="joins-"))
    try:
        with TestDriver(
            job(kind), tasks=2, slots=1, max_rows=epoch_rows, home=home, memory_bus=False
        ) as driver:
            wanted = fill(driver.bus, kind, rows, keys)
            for _ in range(kind.before):
                driver.advance()
            began, processor = time.perf_counter(), time.process_time()
            measured = 0
            while (epoch := driver.advance()) is not None:
                measured += epoch.rows
            took, used = time.perf_counter() - began, time.process_time() - processor
            held = sum(task.state_bytes for task in driver.coordinator.state.tasks.values())
            driver.finish()
            found = told(driver.bus)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return {
        "rows_per_s": round(measured / took),
        "rows_per_core_s": round(measured / used),
        "state_mb": round(held / 1e6),
        "is_right": found["pairs"] == wanted,
        **found,
    }


def measure_spark(kind: Kind, rows: int, epoch_rows: int, keys: int) -> dict[str, Any]:
    """Run one kind on Spark's local[2], and return its figures."""
    home = Path(tempfile.mkdtemp(prefix="joins-"))
    settings = bench_settings(home, tasks=2, max_rows=epoch_rows, bounded=True)
    ends: list[tuple[float, EpochSummary]] = []

    def note(epoch: EpochSummary) -> None:
        if epoch.rows:
            ends.append((time.perf_counter(), epoch))

    try:
        with open_bus(settings.bus_dir) as bus:
            wanted = fill(bus, kind, rows, keys)
            run_job(job(kind), settings, bus=bus, on_epoch=note)
            found = told(bus)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    measured = sum(epoch.rows for _, epoch in ends[kind.before :])
    return {
        "rows_per_s": round(measured / (ends[-1][0] - ends[kind.before - 1][0])),
        "epochs": len(ends),
        "is_right": found["pairs"] == wanted,
        **found,
    }


def told(bus: Bus) -> dict[str, int]:
    """Return how many pairs there are, and rows without a partner."""
    out = bus.stream("out")
    parts = [part.batch for p, at in enumerate(out.begins()) for part in out.read(p, at)]
    rows = sum(batch.num_rows for batch in parts)
    alone = sum(b.column("v").null_count + b.column("seen").null_count for b in parts)
    return {"pairs": rows - alone, "alone": alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--epoch-rows", type=int)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="a part of a name")
    parser.add_argument("--spark", action="store_true", help="through the whole engine")
    given = parser.parse_args()
    epoch_rows = given.epoch_rows or (8_000_000 if given.spark else 2_000_000)
    run = measure_spark if given.spark else measure
    for name, kind in KINDS.items():
        if given.only in name:
            rows = given.rows or (kind.before + 4) * epoch_rows
            found = run(kind, rows, epoch_rows, given.keys * kind.times_keys)
            print(json.dumps({"join": name, **found}), flush=True)


if __name__ == "__main__":
    main()
