"""SQL apps beside the same jobs by hand: rows a second of one core, and the ratio of the two.

python bench/sql_app.py [--rows 3000000] [--epoch-rows 500000] [--keys 100000] [--runs 3]

A window with a condition and an expression, running totals, and a filter. Both jobs of a kind run
in turn over the same rows from a bus in memory, in one process; the first epoch of each warms up
and is left out. Of each the run that took least processor time counts. Their results are compared.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import headrace as hr
from headrace.sql import SqlText, load_app
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "v": pa.int64(), "at": pa.int64()}
PARTITIONS, A_SECOND = 4, 100_000
HEAD = """CREATE APPLICATION bench;
CREATE INPUT TABLE rows(k, v, at) FROM SCRIBE("in") TIME at LATENESS '2 seconds';
"""
QUERIES = {
    "window": """CREATE TABLE out AS SELECT k, count(*) AS n, sum(v * 2) AS s FROM rows [1 minute]
        WHERE v > 10 GROUP BY k""",
    "totals": "CREATE TABLE out AS SELECT k, count(*) AS n, max(v) AS m FROM rows GROUP BY k",
    "filter": "CREATE STREAM out AS SELECT k, v * 2 AS twice FROM rows WHERE v % 3 = 0",
}


def by_hand(kind: str) -> hr.Job:
    """Return the job that somebody would write for a query."""

    @hr.job("bench")
    def bench(g: hr.Graph) -> None:
        rows = g.input("in", time="at", out_of_orderness="2s")
        if kind == "window":
            some = rows.filter(hr.col("v") > 10).select("k", (hr.col("v") * 2).alias("twice"))
            made = some.partition_by("k").window(
                hr.tumbling("1m"), n=hr.agg.count(), s=hr.agg.sum("twice")
            )
        elif kind == "totals":
            made = rows.partition_by("k").aggregate(n=hr.agg.count(), m=hr.agg.max("v"))
        else:
            made = rows.filter(hr.col("v") % 3 == 0).select("k", (hr.col("v") * 2).alias("twice"))
        made.send_to(g.output("out"))

    return bench


def in_sql(kind: str) -> tuple[hr.Job, str]:
    """Return the job of a query, and the stream of its results."""
    app = load_app(SqlText(HEAD + QUERIES[kind], "bench.sql"))
    return app.job, app.tables["out"]


def measure(
    job: hr.Job, out: str, rows: int, epoch_rows: int, keys: int
) -> tuple[float, float, Any]:
    """Run a job; return rows a second, those of a second of processor time, and its results."""
    epochs = max(2, rows // epoch_rows)
    draw = np.random.default_rng(7)
    total = epochs * epoch_rows
    at = np.arange(total) * 1000 // A_SECOND + draw.integers(0, 2000, total)
    columns = [draw.integers(0, keys, total), draw.integers(0, 100, total), at]
    table = pa.table(dict(zip(COLUMNS, map(pa.array, columns), strict=True)))
    with TestDriver(job, tasks=2, slots=1, max_rows=epoch_rows) as driver:
        driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")
        share = -(-total // PARTITIONS)
        for partition in range(PARTITIONS):
            driver.feed("in", table.slice(partition * share, share), partition=partition)
        driver.advance()
        began, processor = time.perf_counter(), time.process_time()
        for _ in range(epochs - 1):
            driver.advance()
        took, used = time.perf_counter() - began, time.process_time() - processor
        driver.finish()
        stream = driver.bus.stream(out)
        parts = [p.batch for n, at in enumerate(stream.begins()) for p in stream.read(n, at)]
    frame = pl.DataFrame(pa.Table.from_batches(parts))
    found = (frame.height, frame.select(pl.col(pl.Int64).sum()).row(0))
    return (total - epoch_rows) / took, (total - epoch_rows) / used, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--epoch-rows", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    print(
        "| query | by hand, rows/s of a core | SQL, rows/s of a core | ratio |\n|---|---|---|---|"
    )
    sizes = (given.rows, given.epoch_rows, given.keys)
    for kind in QUERIES:
        hand, sql = 0.0, 0.0
        for _ in range(given.runs):
            _, one, expected = measure(by_hand(kind), "out", *sizes)
            _, other, found = measure(*in_sql(kind), *sizes)
            if found != expected:
                raise SystemExit(f"{kind}: the app has {found}, the job by hand {expected}")
            hand, sql = max(hand, one), max(sql, other)
        print(f"| {kind} | {hand:,.0f} | {sql:,.0f} | {hand / sql:.2f} |", flush=True)


if __name__ == "__main__":
    main()
