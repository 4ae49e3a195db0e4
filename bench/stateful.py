"""A running count for each key over a streaming DataFrame: ``stateful`` beside PySpark's own ways.

python bench/stateful.py [--rows 1000000] [--keys 100000] [--files 5] [--only NAME,...]

All ways read the same Parquet files, one a batch, in one session on local[2], with results to
``noop``; PySpark's with the RocksDB state store. The first file warms a way up and is left out.
PySpark's rates are those of the triggers, by the query's own progress. Ours are of the whole: from
the moment when the other files are there until a query over the results, with
``trigger(availableNow=True)``, has ended: Spark's reading, the internal stream, state with its
changelog, the results' stream, and reading that. PySpark's ways give one result a key and batch,
ours one a row.
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
from pyspark.sql import SparkSession

import headrace as hr
from headrace import spark as headrace_spark
from headrace.spark.sessions import build_session
from headrace.spark.ways import WAYS, rate

OURS = ("stateful, process", "stateful, aggregate")
SCHEMA = "id bigint, padding binary"


class Count(hr.StatefulProcessor[int]):
    """Counts the rows of a key."""

    def begin(self) -> int:
        return 0

    def process(self, event: Any, state: int) -> tuple[list[dict[str, Any]], int]:
        return [{"id": event.id, "n": state + 1}], state + 1


def write_file(folder: Path, number: int, rows: int, keys: int) -> None:
    ids = np.random.default_rng(number).integers(0, keys, rows)
    table = pa.table(
        {"id": ids, "padding": pa.array([bytes(20)]).take(pa.array(np.zeros(rows, int)))}
    )
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / f"{number:03}.parquet")


def ours(spark: SparkSession, way: str, given: Any, folder: Path) -> float:
    files, rows = folder / "files", given.rows // given.files
    how: dict[str, Any] = {"process": Count, "returns": {"id": int, "n": int}}
    if way == "stateful, aggregate":
        how = {"aggregate": {"n": hr.agg.count()}}
    write_file(files, 0, rows, given.keys)
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    name = way.replace(", ", "-")
    home = folder / "home"
    found = headrace_spark.stateful(frame.select("id"), "id", name=name, home=home, **how)

    def taken() -> float:
        began = time.perf_counter()
        query = (
            found.writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return time.perf_counter() - began

    taken()
    for number in range(1, given.files):
        write_file(folder / "more", number, rows, given.keys)
    for path in sorted((folder / "more").iterdir()):
        path.rename(files / path.name)
    seconds = taken()
    headrace_spark.stop(name)
    return (given.files - 1) * rows / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--only", default=";".join((*OURS, *WAYS)))
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-stateful-bench-"))
    spark = build_session("local[2]", "headrace bench", home / "spark.log", {})
    try:
        for number in range(given.files):
            write_file(home / "files", number, given.rows // given.files, given.keys)
        rates = {}
        for at, way in enumerate(given.only.split(";")):
            folder = home / str(at)
            folder.mkdir()
            if way in OURS:
                rates[way] = round(ours(spark, way, given, folder))
            else:
                rates[way] = round(rate("local[2]", way, home / "files", folder))
            print(json.dumps({"way": way, "rows_per_s": rates[way]}), flush=True)
    finally:
        spark.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
