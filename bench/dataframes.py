"""What ``g.input_dataframe`` costs: one bounded job, three kinds of input.

    python bench/dataframes.py [--rows 10000000] [--times 2] [--out FILE]

Totals of a number for each of 1,000 keys, in one session on local[2], the best of ``--times``; the
job has two tasks, and reads two partitions of

stream     a stream that has the rows already
files      the same rows in Parquet files, as ``inputs.in.files`` names them: read by its tasks
dataframe  the same files as a DataFrame: read by Spark, written to files of the run, and read

Beside these is what Spark alone needs for the two columns of the job: ``noop`` reads them as rows,
and drops them; ``count`` hands them to Python workers, which count them; ``parquet`` writes them.

Seconds are those of the clock, from before the run is planned until it has ended; ``starting_s`` is
the part of it before the first epoch, in which Spark reads the DataFrame; ``cpu_s`` is processor
time of the driver, the JVM and all workers. With ``--out`` the result goes to a file for
bench/page.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import headrace as hr
from headrace.bench.readwrite import bench_settings
from headrace.bench.store_rates import snapshot
from headrace.bus.file import FileBus
from headrace.bus.spec import StreamSpec
from headrace.config.inputs import read_inputs
from headrace.spark.run import run_job
from headrace.spark.sessions import build_session

PARTITIONS, CHUNK, KEYS = 2, 500_000, 1000
KINDS = ("stream", "files", "dataframe")
ALONE = ("noop", "count", "parquet")


def write_rows(rows: int, home: Path) -> None:
    """Write the same rows as a stream and as Parquet files."""
    folder = home / "parquet"
    folder.mkdir()
    with FileBus(home / "bus") as bus:
        stream = None
        for at, first in enumerate(range(0, rows, CHUNK)):
            draw, count = np.random.default_rng(first), min(CHUNK, rows - first)
            columns = {"key": draw.integers(0, KEYS, count), "value": draw.integers(0, 100, count)}
            table = pa.table(
                {**columns, "text": pa.array(draw.integers(0, KEYS, count).astype(str))}
            )
            pq.write_table(table, folder / f"{at:04}.parquet")
            stream = stream or bus.create(StreamSpec("in", PARTITIONS, table.schema))
            stream.append(at % PARTITIONS, table.to_batches()[0])


def run(kind: str, home: Path, name: str) -> dict[str, float]:
    """Run the job over one kind of input, and return what it took, and the sum of its totals."""
    files = str(home / "parquet")
    begun: list[float] = []

    @hr.job(name)
    def job(g: hr.Graph) -> None:
        if kind == "dataframe":
            rows = g.input_dataframe("in", lambda spark: spark.read.parquet(files))
        else:
            rows = g.input("in")
        totals = rows.partition_by("key").window(hr.global_window(), s=hr.agg.sum("value"))
        totals.send_to(g.output(f"{name}.out"))

    settings = bench_settings(home, tasks=PARTITIONS, max_rows=1 << 40, bounded=True)
    if kind == "files":
        found = {"in": {"files": f"{files}/*.parquet", "partitions": PARTITIONS}}
        settings = replace(settings, inputs=read_inputs(found))
    before, start = snapshot(), time.perf_counter()
    run_job(job, settings, on_start=lambda driver: begun.append(time.perf_counter()))
    seconds = time.perf_counter() - start
    used = sum(part.cpu_s for part in snapshot().since(before).values())
    with FileBus(home / "bus") as bus:
        out = bus.stream(f"{name}.out")
        parts = [b.batch for p in range(out.spec.partitions) for b in out.read(p, 0)]
    total = pc.sum(pa.Table.from_batches(parts).column("s")).as_py()
    return {"seconds": seconds, "cpu_s": used, "starting": begun[0] - start, "total": total}


def alone(way: str, home: Path) -> dict[str, float]:
    """Let Spark do without Headrace what a job over a DataFrame cannot do without Spark."""
    frame = SparkSession.builder.getOrCreate().read.parquet(str(home / "parquet"))
    rows = frame.select("key", "value")
    before, start = snapshot(), time.perf_counter()
    if way == "noop":
        rows.write.format("noop").mode("overwrite").save()
    elif way == "parquet":
        rows.write.mode("overwrite").parquet(str(home / "written"))
    else:
        rows.mapInArrow(count_rows, "rows bigint").collect()
    seconds = time.perf_counter() - start
    used = sum(part.cpu_s for part in snapshot().since(before).values())
    return {"seconds": seconds, "cpu_s": used}


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Only count, in a Python worker."""
    yield pa.RecordBatch.from_pydict({"rows": [sum(one.num_rows for one in batches)]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-dataframes-"))
    spark = build_session("local[2]", "headrace bench", home / "spark.log", {})
    best: dict[str, dict[str, Any]] = {}
    spark_alone: dict[str, dict[str, float]] = {}
    try:
        write_rows(given.rows, home)
        for turn in range(given.times):
            for kind in KINDS:
                took = run(kind, home, f"{kind}-{turn}")
                if kind not in best or took["seconds"] < best[kind]["seconds"]:
                    best[kind] = took
            for way in ALONE:
                spent = alone(way, home)
                if way not in spark_alone or spent["cpu_s"] < spark_alone[way]["cpu_s"]:
                    spark_alone[way] = spent
    finally:
        spark.stop()
        shutil.rmtree(home, ignore_errors=True)
    if len({one["total"] for one in best.values()}) > 1:
        raise SystemExit(f"ways differ: {best}")
    kinds = {
        kind: {
            "rows_per_s": round(given.rows / took["seconds"]),
            "seconds": round(took["seconds"], 2),
            "starting_s": round(took["starting"], 2),
            "cpu_s": round(took["cpu_s"], 2),
        }
        for kind, took in best.items()
    }
    of_spark = {
        way: {name: round(value, 2) for name, value in took.items()}
        for way, took in spark_alone.items()
    }
    line = json.dumps({"rows": given.rows, "kinds": kinds, "spark": of_spark})
    print(line, flush=True)
    if given.out is not None:
        given.out.write_text(line + "\n")


if __name__ == "__main__":
    main()
