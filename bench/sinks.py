"""Sinks: rows a second that one slot prepares and one driver commits, by epochs of one size.

python bench/sinks.py [--rows 1000000] [--epochs 5] [--postgres]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.clock import SystemClock
from headrace.files import Files
from headrace.testing.servers import PostgresServer

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.float64()})


def batch(rows: int, seed: int) -> pa.RecordBatch:
    numbers = np.random.default_rng(seed)
    ids = numbers.integers(0, rows, rows)
    names = pa.array([f"name {number % 1000}" for number in range(rows)])
    return pa.record_batch([pa.array(ids), names, pa.array(numbers.random(rows))], schema=SCHEMA)


def measure(name: str, sink: hr.sinks.Sink, home: Path, rows: int, epochs: int) -> None:
    files = Files()
    site = hr.sinks.SinkSite("bench", name, SCHEMA, SystemClock(), files)
    receiver = sink.open(site)
    prepared, committed, size = 0.0, 0.0, 0
    for epoch in range(1, epochs + 1):
        made = batch(rows, epoch)
        began = time.perf_counter()
        path = home / f"{name.replace(' ', '-')}-{epoch}"
        size += files.write_new(path, sink.prepare([made], SCHEMA))
        prepared += time.perf_counter() - began
        began = time.perf_counter()
        file = hr.sinks.Prepared(path, rows)
        receiver.commit(hr.sinks.SinkEpoch("lineage", epoch, (file,)))
        committed += time.perf_counter() - began
    receiver.close()
    total = rows * epochs
    print(
        f"{name:18} prepare {total / prepared:12,.0f} rows/s   commit {total / committed:12,.0f} "
        f"rows/s, {committed / epochs * 1000:8.1f} ms an epoch   {size / total:5.1f} bytes/row",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--postgres", action="store_true", help="a server of its own, fsync off")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    sizes = (home, given.rows, given.epochs)
    try:
        measure("parquet", hr.sinks.parquet(home / "parquet"), *sizes)
        measure("json lines", hr.sinks.json_lines(home / "lines"), *sizes)
        measure("csv", hr.sinks.csv(home / "csv"), *sizes)
        if given.postgres:
            with PostgresServer() as server:
                url = server.url
                measure("postgres insert", hr.sinks.postgres(url, "a"), *sizes)
                upsert = hr.sinks.postgres(url, "b", mode="upsert", key="id")
                measure("postgres upsert", upsert, *sizes)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
