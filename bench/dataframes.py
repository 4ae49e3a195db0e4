"""What ``g.input_dataframe`` costs: one bounded job, three kinds of input.

    python bench/dataframes.py [--rows 10000000 30000000] [--times 5] [--out FILE]

Totals of a number for each of 1,000 keys, in one session on local[2]; the job has two tasks, and
reads two partitions of

stream     a stream that has the rows already
files      the same rows in Parquet files, as ``inputs.in.files`` names them: read by its tasks
dataframe  the same files as a DataFrame: read by Spark, written to files of the run, and read

Beside these is what Spark alone needs for the two columns of the job: ``noop`` reads them as rows,
and drops them; ``count`` hands them to Python workers, which count them; ``parquet`` writes them.

Seconds are those of the clock, from before the run is planned until it has ended; ``starting_s`` is
the part of it before the first epoch, in which Spark reads the DataFrame; ``cpu_s`` is processor
time of the driver, the JVM and all workers. Of ``--times`` runs the best one counts, so the session
is warm: Java has compiled what they use. ``first_s`` is the first run of each kind in the session.
Of each number of rows after the first, ``further_rows_per_s`` is what they are more by, over what
they take longer. With ``--out`` the result goes to a file for bench/page.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
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


def best(rows: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return the best run of each kind, and of each way of Spark."""
    totals = {one["total"] for kind in KINDS for one in runs[kind]}
    if len(totals) > 1:
        raise SystemExit(f"ways differ: {runs}")
    kinds = {}
    for kind in KINDS:
        found = min(runs[kind], key=lambda one: one["seconds"])
        kinds[kind] = {
            "rows_per_s": round(rows / found["seconds"]),
            "seconds": round(found["seconds"], 3),
            "starting_s": round(found["starting"], 3),
            "cpu_s": round(found["cpu_s"], 2),
        }
    of_spark = {
        way: {name: round(min(one[name] for one in runs[way]), 2) for name in ("seconds", "cpu_s")}
        for way in ALONE
    }
    return {"rows": rows, "kinds": kinds, "spark": of_spark}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000, 30_000_000])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-dataframes-"))
    spark = build_session("local[2]", "headrace bench", home / "spark.log", {})
    runs: dict[int, dict[str, list[dict[str, float]]]] = {}
    try:
        for rows in given.rows:
            runs[rows] = {kind: [] for kind in (*KINDS, *ALONE)}
            (home / str(rows)).mkdir()
            write_rows(rows, home / str(rows))
        for turn in range(given.times):
            for rows, found in runs.items():
                for kind in KINDS:
                    found[kind].append(run(kind, home / str(rows), f"{kind}-{turn}"))
                for way in ALONE:
                    found[way].append(alone(way, home / str(rows)))
    finally:
        spark.stop()
        shutil.rmtree(home, ignore_errors=True)
    sizes = [best(rows, found) for rows, found in runs.items()]
    for kind in KINDS:
        sizes[0]["kinds"][kind]["first_s"] = round(runs[given.rows[0]][kind][0]["seconds"], 2)
    for less, more in pairwise(sizes):
        for kind, one in more["kinds"].items():
            longer = one["seconds"] - less["kinds"][kind]["seconds"]
            one["further_rows_per_s"] = round((more["rows"] - less["rows"]) / longer)
    line = json.dumps({"sizes": sizes})
    print(line, flush=True)
    if given.out is not None:
        given.out.write_text(line + "\n")


if __name__ == "__main__":
    main()
