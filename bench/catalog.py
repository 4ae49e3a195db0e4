"""What pushing columns and conditions down saves a query of Spark over a stream.

    python bench/catalog.py [--rows 5000000] [--times 5] [--out FILE]

A stream of two numbers and eight texts, on local[2]. Two queries, each in three ways:

one column  sum(value)
few rows    sum(value) where key = 7, which a thousandth of the rows has

format      ``spark.read.format("headrace")``: Spark hands nothing to a Python source
options     the same, with the options ``columns`` and ``where``
catalog     ``headrace.streams.in``: the query alone, whose columns and conditions reach the reader

``parquet`` is the same rows in Parquet files, read by Spark. Seconds and ``cpu_s``, processor time
of the JVM and all workers, are from the first call, planning included; the least of ``--times``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from headrace import spark as headrace_spark
from headrace.bench.store_rates import snapshot
from headrace.bus.file import FileBus
from headrace.bus.spec import StreamSpec

PARTITIONS, CHUNK, KEYS, TEXTS = 2, 250_000, 1000, 8
CONDITION = "key = 7"
QUERIES = ("one column", "few rows")
WAYS = ("format", "options", "catalog", "parquet")


def write_rows(rows: int, home: Path) -> None:
    """Write the same rows as a stream and as Parquet files."""
    folder = home / "parquet"
    folder.mkdir()
    with FileBus(home / "bus") as bus:
        stream = None
        for at, first in enumerate(range(0, rows, CHUNK)):
            draw, count = np.random.default_rng(first), min(CHUNK, rows - first)
            columns = {"key": draw.integers(0, KEYS, count), "value": draw.integers(0, 100, count)}
            texts = {f"text{n}": draw.integers(0, 1 << 40, count).astype(str) for n in range(TEXTS)}
            table = pa.table({**columns, **{name: pa.array(one) for name, one in texts.items()}})
            pq.write_table(table, folder / f"{at:04}.parquet")
            stream = stream or bus.create(StreamSpec("in", PARTITIONS, table.schema))
            stream.append(at % PARTITIONS, table.combine_chunks().to_batches()[0])


def rows_of(spark: SparkSession, way: str, query: str, home: Path) -> DataFrame:
    """Return what one way reads, before the query."""
    if way == "catalog":
        return spark.table("headrace.streams.in")
    if way == "parquet":
        return spark.read.parquet(str(home / "parquet"))
    read = spark.read.format("headrace").option("home", str(home))
    if way == "options":
        read = read.option("columns", "value" if query == "one column" else "key,value")
        if query == "few rows":
            read = read.option("where", CONDITION)
    return read.load("in")


def run(spark: SparkSession, way: str, query: str, home: Path) -> dict[str, Any]:
    """Run one query one way; return what it took, and its result."""
    before, start = snapshot(), time.perf_counter()
    rows = rows_of(spark, way, query, home)
    if query == "few rows":
        rows = rows.where(CONDITION)
    total = rows.groupBy().sum("value").collect()[0][0]
    seconds = time.perf_counter() - start
    used = sum(part.cpu_s for part in snapshot().since(before).values())
    return {"seconds": seconds, "cpu_s": used, "total": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-catalog-"))
    found: dict[str, dict[str, dict[str, float]]] = {}
    try:
        write_rows(given.rows, home)
        spark = headrace_spark.session("local[2]", home=home)
        for query in QUERIES:
            ran = {way: [run(spark, way, query, home) for _ in range(given.times)] for way in WAYS}
            if len({one["total"] for every in ran.values() for one in every}) > 1:
                raise SystemExit(f"ways differ: {ran}")
            found[query] = {
                way: {n: round(min(one[n] for one in every), 2) for n in ("seconds", "cpu_s")}
                for way, every in ran.items()
            }
        spark.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    line = json.dumps({"rows": given.rows, "queries": found})
    print(line, flush=True)
    if given.out is not None:
        given.out.write_text(line + "\n")


if __name__ == "__main__":
    main()
