"""A running count for each key over a streaming DataFrame: ``stateful`` beside PySpark's own ways.

    python bench/stateful.py [--rows 1000000] [--keys 100000] [--files 5] [--few 50000] [--out FILE]

Each way reads Parquet files, one a batch, in one session on local[2], with results to ``noop``;
PySpark's with the RocksDB state store. The first file warms a way up and is left out. PySpark's
ways that call Python for each key would take minutes for all rows: they get ``--few``, and so many
fewer keys, so that a key has as many rows in a batch. PySpark's rates are those of the triggers, by
the query's own progress. Ours are of the whole: from the moment when the other files are there
until a query over the results, with ``trigger(availableNow=True)``, has ended: Spark's reading, the
internal stream, state with its changelog, the results' stream, and reading that. PySpark's ways
give one result a key and batch, ours one a row. ``cpu_us`` is processor time of all processes a
row, of PySpark's ways with the first file. With ``--out`` the lines go to a file for bench/page.py.
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
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import headrace as hr
from headrace import spark as headrace_spark
from headrace.bench.store_rates import snapshot
from headrace.spark.native_state import NATIVE, NATIVE_QUERIES, rate
from headrace.spark.sessions import build_session

OURS = ("stateful, process", "stateful, aggregate")
DROPPED_IN = {f"stateful, {way}": way for way in NATIVE_QUERIES if way != NATIVE}
"""Functions of PySpark that ``stateful`` runs as they are, and the ways that these are there."""

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


class Load(NamedTuple):
    """What a way gets: rows of so many keys, in files."""

    rows: int
    keys: int
    files: int

    @property
    def share(self) -> int:
        """Rows of a file."""
        return self.rows // self.files

    def write(self, folder: Path, numbers: range) -> None:
        for number in numbers:
            write_file(folder, number, self.share, self.keys)


def ours(spark: SparkSession, way: str, load: Load, folder: Path) -> tuple[float, float]:
    """Return rows a second, and processor time of a row in microseconds."""
    files = folder / "files"
    how: dict[str, Any] = {"process": Count, "returns": {"id": int, "n": int}}
    if way == "stateful, aggregate":
        how = {"aggregate": {"n": hr.agg.count()}}
    load.write(files, range(1))
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    name = way.replace(", ", "-")
    home = folder / "home"
    rows = frame.select("id")
    if way in DROPPED_IN:
        grouped = headrace_spark.stateful(rows.groupBy("id"), name=name, home=home)
        found = NATIVE_QUERIES[DROPPED_IN[way]](grouped)
    else:
        found = headrace_spark.stateful(rows, "id", name=name, home=home, **how)

    def taken() -> tuple[float, float]:
        before, began = snapshot(), time.perf_counter()
        query = (
            found.writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        used = sum(part.cpu_s for part in snapshot().since(before).values())
        return time.perf_counter() - began, used

    taken()
    load.write(folder / "more", range(1, load.files))
    for path in sorted((folder / "more").iterdir()):
        path.rename(files / path.name)
    seconds, used = taken()
    headrace_spark.stop(name)
    rows = (load.files - 1) * load.share
    return rows / seconds, used / rows * 1e6


def theirs(way: str, load: Load, folder: Path) -> tuple[float, float]:
    """Return the same of one of PySpark's ways; the processor time is that of all batches."""
    load.write(folder / "files", range(load.files))
    before = snapshot()
    found = rate("local[2]", way, folder / "files", folder)
    used = sum(part.cpu_s for part in snapshot().since(before).values())
    return found, used / load.rows * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--few", type=int, default=50_000)
    parser.add_argument("--only", default=";".join((*OURS, *DROPPED_IN, *NATIVE_QUERIES)))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    many = Load(given.rows, given.keys, given.files)
    few = Load(given.few, given.keys * given.few // given.rows, given.files)
    home = Path(tempfile.mkdtemp(prefix="headrace-stateful-bench-"))
    spark = build_session("local[2]", "headrace bench", home / "spark.log", {})
    lines = []
    try:
        for at, way in enumerate(given.only.split(";")):
            folder = home / str(at)
            folder.mkdir()
            load = many if way in OURS or way == NATIVE else few
            is_ours = way in OURS or way in DROPPED_IN
            found = ours(spark, way, load, folder) if is_ours else theirs(way, load, folder)
            told = {"way": way, "rows": load.rows, "keys": load.keys}
            told |= {"rows_per_s": round(found[0]), "cpu_us": round(found[1], 2)}
            lines.append(json.dumps(told))
            print(lines[-1], flush=True)
        if given.out is not None:
            given.out.write_text("".join(f"{one}\n" for one in lines))
    finally:
        spark.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
