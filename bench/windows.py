"""Windows of each kind side by side: rows a second in one process, without Spark.

python bench/windows.py [--rows 6000000] [--epoch-rows 1000000] [--keys 100000] [--only NAME]

Rows of uniform keys come at 100,000 a second of event time, up to two seconds out of order, from
four partitions of a bus in memory; state goes through segments on disk as ever. The first epoch
warms up and is left out. What every kind counts is checked at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.testing import TestDriver

PARTITIONS = 4
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
    "100 messages": totals(hr.count_window(100)),
    "all messages": totals(hr.global_window()),
}


def job(windowed: Windowed) -> Any:
    @hr.job("bench")
    def bench(g: hr.Graph) -> None:
        keyed = g.input("in", time="at", lateness="2s").partition_by("k")
        windowed(keyed).send_to(g.output("out"))

    return bench


def feed(driver: TestDriver, rows: int, begin: int, keys: int) -> None:
    """Append so many rows, whose event times go on from those before."""
    draw = np.random.default_rng(begin)
    at = np.arange(begin, begin + rows) * 1000 // A_SECOND + draw.integers(0, 2000, rows)
    table = pa.table({"k": draw.integers(0, keys, rows), "v": np.ones(rows, np.int64), "at": at})
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
        out = driver.bus.stream("out")
        parts = [part.batch for p, at in enumerate(out.begins()) for part in out.read(p, at)]
        results = sum(batch.num_rows for batch in parts)
        counted = sum(pc.sum(batch.column("n")).as_py() for batch in parts)
    measured = (epochs - 1) * epoch_rows
    return {
        "rows_per_s": round(measured / took),
        "rows_per_core_s": round(measured / used),
        "results": results,
        "counted": counted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--epoch-rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--only", default="", help="a part of a name")
    arguments = parser.parse_args()
    for name, windowed in KINDS.items():
        if arguments.only in name:
            found = measure(windowed, arguments.rows, arguments.epoch_rows, arguments.keys)
            print(json.dumps({"window": name, **found}), flush=True)


if __name__ == "__main__":
    main()
