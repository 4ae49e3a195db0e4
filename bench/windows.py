"""Windows of each kind side by side: rows a second in one process, or through the whole engine.

python bench/windows.py [--rows 6000000] [--epoch-rows 1000000] [--keys 100000] [--only NAME]
python bench/windows.py --spark [--rows 60000000] [--epoch-rows 6000000] [--keys 100000]

Rows of uniform keys come at 100,000 a second of event time, up to two seconds out of order, from
four partitions of a bus in memory; state goes through segments on disk as ever. The first epoch
warms up and is left out. What every kind counts is checked at the end.

With ``--spark`` rows are read from a file bus, windows kept in segments, and results appended to
the bus, on Spark's local[2]: tumbling windows of a minute on columns, and sessions with a function
over their messages, for a tenth of the rows. Rates are of the epochs after the first; those by
second of processor time count all processes: workers, JVM and driver.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.bench.readwrite import bench_settings
from headrace.bench.store_rates import Snapshot, snapshot
from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.coordinator.epoch_records import EpochSummary
from headrace.spark.run import run_job
from headrace.testing import TestDriver

PARTITIONS = 4
APPEND_ROWS = 100_000
A_SECOND = 100_000
COLUMNS = {"k": pa.int64(), "v": pa.int64(), "at": pa.int64()}
Windowed = Callable[[Any], Any]


def visit(key: int, window: Any, messages: list[Any]) -> list[dict[str, int]]:
    """Look at each message of a session."""
    return [{"n": len(messages), "s": sum(message.v for message in messages)}]


def add(state: dict[str, int], message: Any) -> dict[str, int]:
    """Count and add up, message by message."""
    return {"n": state["n"] + 1, "s": state["s"] + message.v}


def totals(window: Any, **more: Any) -> Windowed:
    """Count and add up each window."""
    return lambda keyed: keyed.window(window, n=hr.agg.count(), s=hr.agg.sum("v"), **more)


KINDS: dict[str, Windowed] = {
    "tumbling 1m": totals(hr.tumbling("1m")),
    "tumbling 10s": totals(hr.tumbling("10s")),
    "hopping 10s every 2s": totals(hr.hopping("10s", "2s")),
    "hopping 60s every 1s": totals(hr.hopping("60s", "1s")),
    "sliding 5s": totals(hr.sliding("5s")),
    "session, gap 2s": totals(hr.session("2s")),
    "session, gap 2s, process_window": lambda keyed: keyed.process_window(
        hr.session("2s"), visit, {"n": int, "s": int}
    ),
    "session, gap 2s, fold": lambda keyed: keyed.fold(
        hr.session("2s"), {"n": 0, "s": 0}, add, {"n": int, "s": int}
    ),
    "tumbling 10s, early every 2s": totals(hr.tumbling("10s", early="2s")),
    "tumbling 10s, early every 3 messages": totals(hr.tumbling("10s", early_rows=3)),
    "tumbling 10s, early when idle for 2s": totals(hr.tumbling("10s", early_idle="2s")),
    "hopping 10s every 2s, changed by late rows": totals(
        hr.hopping("10s", "2s", "10s", late="update")
    ),
    "sliding 5s, changed by late rows": totals(hr.sliding("5s", "5s", late="update")),
    "session, gap 2s, early every 1s": totals(hr.session("2s", early="1s")),
    "session, gap 2s, changed by late rows": totals(hr.session("2s", "10s", late="update")),
    "100 messages": totals(hr.count_window(100)),
    "all messages": totals(hr.global_window()),
}


WHOLE = [("tumbling 1m", 1), ("session, gap 2s, process_window", 10)]
"""What is measured on Spark, and which part of the rows for it."""


def job(windowed: Windowed) -> Any:
    @hr.job("bench")
    def bench(g: hr.Graph) -> None:
        keyed = g.input("in", time="at", out_of_orderness="2s").partition_by("k")
        windowed(keyed).send_to(g.output("out"))

    return bench


def drawn(rows: int, begin: int, keys: int) -> pa.Table:
    """Return so many rows, whose event times go on from those before."""
    draw = np.random.default_rng(begin)
    at = np.arange(begin, begin + rows) * 1000 // A_SECOND + draw.integers(0, 2000, rows)
    return pa.table({"k": draw.integers(0, keys, rows), "v": np.ones(rows, np.int64), "at": at})


def feed(driver: TestDriver, rows: int, begin: int, keys: int) -> None:
    """Append rows to all partitions."""
    table = drawn(rows, begin, keys)
    share = -(-rows // PARTITIONS)
    for partition in range(PARTITIONS):
        driver.feed("in", table.slice(partition * share, share), partition=partition)


def measure(windowed: Windowed, rows: int, epoch_rows: int, keys: int) -> dict[str, Any]:
    """Run one kind and return its figures."""
    epochs = max(2, rows // epoch_rows)
    with TestDriver(job(windowed), tasks=2, slots=1, max_rows=epoch_rows) as driver:
        driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")
        feed(driver, epochs * epoch_rows, 0, keys)
        driver.advance()
        began, processor = time.perf_counter(), time.process_time()
        for _ in range(epochs - 1):
            driver.advance()
        took, used = time.perf_counter() - began, time.process_time() - processor
        driver.finish()
        results, counted = told(driver.bus)
    measured = (epochs - 1) * epoch_rows
    return {
        "rows_per_s": round(measured / took),
        "rows_per_core_s": round(measured / used),
        "results": results,
        "counted": counted,
    }


def fill(bus: Bus, rows: int, keys: int) -> None:
    """Append rows to a file bus, in turn to its partitions, so that epochs have all times alike."""
    schema = pa.schema(list(COLUMNS.items()))
    stream = bus.create(StreamSpec("in", PARTITIONS, schema, time="at"))
    for turn, begin in enumerate(range(0, rows, APPEND_ROWS)):
        table = drawn(min(APPEND_ROWS, rows - begin), begin, keys)
        stream.append(turn % PARTITIONS, table.combine_chunks().to_batches()[0])


def measure_spark(windowed: Windowed, rows: int, epoch_rows: int, keys: int) -> dict[str, Any]:
    """Run one kind from the file bus to the file bus on Spark, and return its figures."""
    home = Path(tempfile.mkdtemp(prefix="windows-"))
    settings = bench_settings(home, tasks=2, max_rows=epoch_rows, bounded=True)
    ends: list[tuple[float, EpochSummary, Snapshot]] = []

    def note(epoch: EpochSummary) -> None:
        if epoch.rows:
            ends.append((time.perf_counter(), epoch, snapshot()))

    try:
        with open_bus(settings.bus_dir) as bus:
            fill(bus, rows, keys)
            run_job(job(windowed), settings, bus=bus, on_epoch=note)
            results, counted = told(bus)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    measured = sum(epoch.rows for _, epoch, _ in ends[1:])
    used = {part: use.cpu_s for part, use in ends[-1][2].since(ends[0][2]).items()}
    return {
        "rows_per_s": round(measured / (ends[-1][0] - ends[0][0])),
        "rows_per_core_s": round(measured / sum(used.values())),
        "epochs": len(ends),
        "results": results,
        "counted": counted,
    }


def told(bus: Bus) -> tuple[int, int]:
    """Return how many results there are, and the sum of what they count."""
    out = bus.stream("out")
    parts = [part.batch for p, at in enumerate(out.begins()) for part in out.read(p, at)]
    return (
        sum(batch.num_rows for batch in parts),
        sum(pc.sum(batch.column("n")).as_py() for batch in parts),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--epoch-rows", type=int)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--only", default="", help="a part of a name")
    parser.add_argument("--spark", action="store_true", help="through the whole engine")
    given = parser.parse_args()
    kinds = WHOLE if given.spark else [(name, 1) for name in KINDS]
    rows = given.rows or (60_000_000 if given.spark else 6_000_000)
    epoch_rows = given.epoch_rows or (6_000_000 if given.spark else 1_000_000)
    run = measure_spark if given.spark else measure
    for name, share in kinds:
        if given.only in name:
            found = run(KINDS[name], rows // share, epoch_rows // share, given.keys)
            print(json.dumps({"window": name, **found}), flush=True)


if __name__ == "__main__":
    main()
