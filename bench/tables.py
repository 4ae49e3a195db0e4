"""Joins of a stream with a table: rows a second in one process, or through the engine on Spark.

python bench/tables.py [--rows 8000000] [--epoch-rows 2000000] [--keys 1000000] [--only NAME]
python bench/tables.py --spark [--rows 40000000] [--epoch-rows 8000000] [--only NAME]

The table has a row for each key, with a text of some ten bytes and two numbers. Rows of uniform
keys come from two partitions of a file bus, and are appended to the bus with a column of the
table. Reading the table first is not counted, and its rows are not. Where the table changes, one
row of it comes to ten of the stream, and both are counted. That all rows are there is checked.
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

PARTITIONS = 2
APPEND_ROWS = 100_000
NUMBER, TEXT = pa.int64(), pa.string()


class Kind(NamedTuple):
    """One join: kind and number of keys, whether the table changes, as of when it is asked."""

    text: bool = False
    keys: float = 1.0
    changes: bool = False
    as_of: str = "now"


KINDS = {
    "a million keys": Kind(),
    "ten thousand keys": Kind(keys=0.01),
    "a million keys, text": Kind(text=True),
    "a million keys, changing": Kind(changes=True),
    "a million keys, as of event time": Kind(as_of="event"),
    "a million keys, changing, as of event time": Kind(changes=True, as_of="event"),
}


def job(kind: Kind) -> Any:
    @hr.job("bench")
    def bench(g: hr.Graph) -> None:
        is_now = kind.as_of == "now"
        times: dict[str, Any] = {} if is_now else {"time": "at"}
        profiles = g.table("profiles", "k", history=None if is_now else "1m", **times)
        clicks = g.input("clicks", time="at").partition_by("k")
        joined = clicks.join(profiles, columns=["name"], as_of=kind.as_of)
        joined.send_to(g.output("out"))

    return bench


def append(bus: Bus, name: str, keys: Any, at: Any, kind: Kind) -> None:
    """Append rows of a stream, in turn to its partitions; a key's rows of a table to one."""
    stream = bus.stream(name)
    for partition in range(PARTITIONS):
        chosen = keys % PARTITIONS == partition
        own, then = keys[chosen], at[chosen]
        for begin in range(0, len(own), APPEND_ROWS):
            some = pa.array(own[begin : begin + APPEND_ROWS])
            moments = pa.array(then[begin : begin + APPEND_ROWS])
            columns = [some.cast(TEXT) if kind.text else some, moments]
            if name == "profiles":
                columns += [pa.array([f"name-{n:06}" for n in range(len(some))]), some, some]
            schema = stream.spec.schema
            stream.append(partition, pa.RecordBatch.from_arrays(columns, schema=schema))


def fill(bus: Bus, kind: Kind, keys: int) -> None:
    """Make both streams, and fill that of the table."""
    heads = [("k", TEXT if kind.text else NUMBER), ("at", NUMBER)]
    more = [("name", TEXT), ("age", NUMBER), ("seen", NUMBER)]
    bus.create(StreamSpec("clicks", PARTITIONS, pa.schema(heads)))
    bus.create(StreamSpec("profiles", PARTITIONS, pa.schema([*heads, *more])))
    append(bus, "profiles", np.arange(keys), np.zeros(keys, np.int64), kind)


def feed(bus: Bus, kind: Kind, rows: int, keys: int) -> int:
    """Append what is measured; returns how many rows of the stream there are."""
    draw = np.random.default_rng(1)
    clicks = rows * 10 // 11 if kind.changes else rows
    if kind.changes:
        at = 1 + np.arange(rows - clicks) // 10
        append(bus, "profiles", draw.integers(0, keys, rows - clicks), at, kind)
    elif kind.as_of == "event":  # or the table's watermark would stay where it is
        append(bus, "profiles", np.arange(PARTITIONS), np.full(PARTITIONS, rows), kind)
    append(bus, "clicks", draw.integers(0, keys, clicks), 1 + np.arange(clicks) // 100, kind)
    return clicks


def measure(kind: Kind, rows: int, epoch_rows: int, keys: int) -> dict[str, Any]:
    """Run one kind in this process, and return its figures."""
    home = Path(tempfile.mkdtemp(prefix="tables-"))
    try:
        with TestDriver(
            job(kind), tasks=2, slots=1, max_rows=epoch_rows, home=home, memory_bus=False
        ) as driver:
            fill(driver.bus, kind, keys)
            driver.run()
            wanted = feed(driver.bus, kind, rows, keys)
            measured = 0
            began, processor = time.perf_counter(), time.process_time()
            while (epoch := driver.advance()) is not None:
                measured += epoch.rows
            took, used = time.perf_counter() - began, time.process_time() - processor
            held = sum(task.state_bytes for task in driver.coordinator.state.tasks.values())
            driver.finish()
            found = joined(driver.bus)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return {
        "rows_per_s": round(measured / took),
        "rows_per_core_s": round(measured / used),
        "state_mb": round(held / 1e6),
        "is_right": found == wanted,
    }


def measure_spark(kind: Kind, rows: int, epoch_rows: int, keys: int) -> dict[str, Any]:
    """Run one kind on Spark's local[2], and return its figures; the first epoch is not counted."""
    home = Path(tempfile.mkdtemp(prefix="tables-"))
    settings = bench_settings(home, tasks=2, max_rows=epoch_rows, bounded=True)
    ends: list[tuple[float, EpochSummary]] = []

    def note(epoch: EpochSummary) -> None:
        if epoch.rows:
            ends.append((time.perf_counter(), epoch))

    try:
        with open_bus(settings.bus_dir) as bus:
            fill(bus, kind, keys)
            wanted = feed(bus, kind, rows, keys)
            run_job(job(kind), settings, bus=bus, on_epoch=note)
            found = joined(bus)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    first = 1  # the table, and what Spark does once
    measured = sum(epoch.rows for _, epoch in ends[first:])
    return {
        "rows_per_s": round(measured / (ends[-1][0] - ends[first - 1][0])),
        "epochs": len(ends),
        "is_right": found == wanted,
    }


def joined(bus: Bus) -> int:
    """Return how many rows with a name there are."""
    out = bus.stream("out")
    parts = [part.batch for p, at in enumerate(out.begins()) for part in out.read(p, at)]
    return sum(batch.num_rows - batch.column("name").null_count for batch in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--epoch-rows", type=int)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="a name, or a part of several")
    parser.add_argument("--spark", action="store_true", help="through the whole engine")
    given = parser.parse_args()
    epoch_rows = given.epoch_rows or (8_000_000 if given.spark else 2_000_000)
    run = measure_spark if given.spark else measure
    chosen = [name for name in KINDS if given.only in name]
    for name in [given.only] if given.only in KINDS else chosen:
        kind = KINDS[name]
        keys = max(PARTITIONS, int(given.keys * kind.keys))
        found = run(kind, given.rows or 4 * epoch_rows, epoch_rows, keys)
        print(json.dumps({"join": name, **found}), flush=True)


if __name__ == "__main__":
    main()
