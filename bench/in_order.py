"""Rows a second of ``in_order``, and messages a second of classes with timers, as JSON.

    python bench/in_order.py [--rows 2000000] [--keys 100000] [--epochs 8]

One process without Spark: rows of uniform keys, up to two seconds out of order, from four
partitions of a bus in memory, state in segments on disk. ``per_core`` is by processor time, of all
epochs but the first. ``passed`` is ``in_order`` before a filter that drops all; ``counted`` a class
that counts, ``timed`` the same with a timer after each hundredth message or so, ``three`` that of
three streams, ``three in order`` with ``in_order`` before each.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.testing import TestDriver

PARTITIONS, A_SECOND, LATENESS_MS = 4, 100_000, 2_000
COLUMNS = {"k": pa.int64(), "at": pa.int64()}
QUIET_MS = 30_000


class Count:
    """Counts messages of a key."""

    def open(self, context: hr.Context) -> None:
        """Take the store."""
        self._n: hr.Store[int] = context.store("n")

    def process(self, message: Any, context: hr.Context) -> None:
        """Count one."""
        self._n.put(message.k, self._n.get(message.k, 0) + 1)


class Timed(Count):
    """Sets a timer after each hundredth message or so, and tells the count."""

    def process(self, message: Any, context: hr.Context) -> None:
        """Count one."""
        super().process(message, context)
        if message.at % 100 == 0:
            context.set_timer(message.at + QUIET_MS)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        """Tell the count."""
        context.emit({"k": timer.key, "n": self._n.get(timer.key)})


def job_of(kind: str) -> Any:
    """Return a job of a kind."""
    names = ["a", "b", "c"] if kind.startswith("three") else ["a"]

    @hr.job("measured")
    def measured(g: hr.Graph) -> None:
        def rows(name: str) -> Any:
            source = g.input(name, time="at", out_of_orderness=f"{LATENESS_MS}ms").partition_by("k")
            return source.in_order() if kind in ("passed", "three in order") else source

        streams = {name: rows(name) for name in names}
        out = g.output("out")
        if kind == "passed":
            streams["a"].filter(hr.col("k") < 0).send_to(out)
            return
        returns = {"k": int, "n": int}
        if len(streams) == 1:
            counts = Count if kind == "counted" else Timed
            made = streams["a"].process(counts, {"n": int}, returns)
        else:
            made = g.process(streams, Timed, {"n": int}, returns)
        made.send_to(out)

    return measured


def measure(kind: str, rows: int, keys: int, epochs: int) -> dict[str, Any]:
    """Feed and run epochs of the same size."""
    names = ["a", "b", "c"] if kind.startswith("three") else ["a"]
    rng, size = np.random.default_rng(1), rows // epochs
    spent = 0.0
    with TestDriver(job_of(kind), tasks=2, key_groups=512) as driver:
        for name in names:
            driver.create(name, COLUMNS, partitions=PARTITIONS)
        for epoch in range(epochs):
            for at, name in enumerate(names):
                count = size // len(names) // PARTITIONS
                for partition in range(PARTITIONS):
                    now = 1_000_000 + epoch * size * 1000 // A_SECOND
                    times = now + np.arange(count) * PARTITIONS * len(names) * 1000 // A_SECOND
                    late = rng.integers(0, LATENESS_MS, count)
                    columns = {"k": rng.integers(0, keys, count), "at": times + at - late}
                    driver.feed(name, pa.table(columns), partition)
            driver.coordinator  # noqa: B018 - started outside of what is measured
            began = time.process_time()
            driver.run()
            spent += time.process_time() - began if epoch else 0.0
    return {"kind": kind, "per_core": round(size * (epochs - 1) / spent)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=8)
    given = parser.parse_args()
    for kind in ("passed", "counted", "timed", "three", "three in order"):
        rows = given.rows * (4 if kind == "passed" else 1)
        print(json.dumps(measure(kind, rows, given.keys, given.epochs)), flush=True)


if __name__ == "__main__":
    main()
