"""Bounded jobs beside hand-written PySpark code that does the same, in one run.

    python bench/batch.py [--rows 10000000] [--only words,routes,sessions,members] [--times 3]

Each program runs in up to five ways, in one session on local[2], in turn; the best of ``--times``
counts, and ``--once pandas`` runs that way only in the first turn. Seconds are those of the clock,
``cpu_s`` processor time of the driver, the JVM and all workers in that same run; ``load`` is the
load average of the machine at the end, this program included.

job       a bounded job of expressions over a stream, its results appended to a stream; state and
          manifests included
native    DataFrame code with Spark's own expressions, over Parquet files of the same rows, its
          results written as Parquet
messages  the job with a function of the user's for each message, or for each window of messages
frames    the job with a function of the user's for whole Polars frames
pandas    DataFrame code with a pandas function of the user's

Rows that come out are counted, and their totals compared.

words     words of lines are counted; the user's Python cuts lines into words
routes    mean delay by route and hour of flights, in the order of their departures
sessions  events and length of each visit of a user, apart by 30 minutes, some 20 events each
members   members by country (paper, 6.4.1); the user's Python finds it in a profile that is JSON,
          by json.loads, or in a whole frame by a pattern

With ``--out FILE`` each program's line is also put into a file of JSON lines for bench/page.py, in
the place of an earlier one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType

import headrace as hr
from headrace.bench.readwrite import bench_settings
from headrace.bench.store_rates import snapshot
from headrace.bus.file import FileBus
from headrace.bus.spec import StreamSpec
from headrace.spark.run import run_job
from headrace.spark.sessions import build_session

PARTITIONS, CHUNK = 2, 250_000
GAP_MS = 1_800_000
COUNTRIES = np.array([f"{a}{b}" for a in "abcdefghijkl" for b in "abcdefghijkl"])
START_MS = 1_356_998_400_000

Step = Callable[[hr.Stream], hr.Stream]
Way = Callable[[DataFrame], DataFrame]


class Program(NamedTuple):
    """Rows, what is done in each way, and the column whose sum is compared."""

    rows: Callable[[int, int], dict[str, Any]]
    jobs: dict[str, Step]
    queries: dict[str, Way]
    total: str
    time: str | None = None
    share: float = 1.0


def lines(first: int, count: int) -> dict[str, Any]:
    draw = np.random.default_rng(first)
    numbers = np.minimum(draw.zipf(1.3, count * 10), 20_000)
    words = pc.binary_join_element_wise("w", pa.array(numbers).cast(pa.string()), "")
    ends = pa.array(np.arange(0, count * 10 + 1, 10, dtype=np.int32))
    return {"text": pc.binary_join(pa.ListArray.from_arrays(ends, words), " ")}


def words_of(message: Any) -> list[str]:
    return message.text.split()


def count_by(key: str) -> Step:
    return lambda s: s.partition_by(key).window(hr.global_window(), n=hr.agg.count())


def cut_all(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(words=pl.col("text").str.split(" "))


def each_word(lines: hr.Stream) -> hr.Stream:
    return lines.flat_map(pl.col("words").alias("word"))


@f.pandas_udf(ArrayType(StringType()))
def cut(text: pd.Series) -> pd.Series:
    return text.str.split()


def counted(df: DataFrame, column: Any, name: str) -> DataFrame:
    return df.select(column.alias(name)).groupBy(name).agg(f.count("*").alias("n"))


WORDS = Program(
    lines,
    {
        "job": lambda s: count_by("word")(s.flat_map(hr.col("text").str.split(" ").alias("word"))),
        "messages": lambda s: count_by("word")(s.flat_map(words_of, returns={"word": str})),
        "frames": lambda s: count_by("word")(
            each_word(s.map_batches(cut_all, returns={"words": list[str]}))
        ),
    },
    {
        "native": lambda df: counted(df, f.explode(f.split("text", " ")), "word"),
        "pandas": lambda df: counted(df, f.explode(cut("text")), "word"),
    },
    total="n",
    share=0.1,
)


def flights(first: int, count: int) -> dict[str, Any]:
    draw = np.random.default_rng(first)
    return {
        "departed_at": START_MS + np.arange(first, first + count) * 3000,
        "origin": np.array(["EWR", "JFK", "LGA"])[draw.integers(0, 3, count)],
        "dest": np.array([f"D{n:03}" for n in range(105)])[draw.integers(0, 105, count)],
        "dep_delay": draw.normal(12, 40, count).round(),
    }


def hourly(df: DataFrame) -> DataFrame:
    hour = f.window(f.timestamp_millis("departed_at"), "1 hour").alias("hour")
    return df.groupBy("origin", "dest", hour).agg(f.mean("dep_delay").alias("delay"))


ROUTES = Program(
    flights,
    {
        "job": lambda s: s.partition_by("origin", "dest").window(
            hr.tumbling("1h"), delay=hr.agg.mean("dep_delay")
        )
    },
    {"native": hourly},
    total="delay",
    time="departed_at",
)


def visits(first: int, count: int) -> dict[str, Any]:
    """Visits of some 20 events in a quarter of an hour; 20,000 users, each back after hours."""
    draw = np.random.default_rng(first)
    rows = np.arange(first, first + count)
    return {
        "user": (rows // 20_000 * 1000 + draw.integers(0, 1000, count)) % 20_000,
        "at": START_MS + rows * 40,
    }


def visit(key: int, window: Any, messages: list[Any]) -> Iterable[dict[str, int]]:
    yield {"n": len(messages), "length": messages[-1].at - messages[0].at}


def visit_lengths(frame: pl.DataFrame) -> pl.DataFrame:
    at = pl.col("at").list
    return frame.select("user", n=at.len().cast(pl.Int64), length=at.max() - at.min())


def sessions_of(frame: pd.DataFrame) -> pd.DataFrame:
    at = np.sort(frame["at"].to_numpy())
    begins = np.flatnonzero(np.diff(at, prepend=-GAP_MS) >= GAP_MS)
    ends = np.append(begins[1:], len(at))
    user = np.full(len(begins), frame["user"].iloc[0])
    return pd.DataFrame({"user": user, "n": ends - begins, "length": at[ends - 1] - at[begins]})


def session_windows(df: DataFrame) -> DataFrame:
    session = f.session_window(f.timestamp_millis("at"), "30 minutes")
    spans = f.max("at") - f.min("at")
    return df.groupBy("user", session).agg(f.count("*").alias("n"), spans.alias("length"))


SESSIONS = Program(
    visits,
    {
        "job": lambda s: s.partition_by("user").window(
            hr.session("30m"), n=hr.agg.count(), first=hr.agg.min("at"), last=hr.agg.max("at")
        ),
        "messages": lambda s: s.partition_by("user").process_window(
            hr.session("30m"), visit, {"n": int, "length": int}, by="at", uses=["at"]
        ),
        "frames": lambda s: (
            s.partition_by("user")
            .window(hr.session("30m"), at=hr.agg.collect("at"))
            .map_batches(visit_lengths, returns={"user": int, "n": int, "length": int})
        ),
    },
    {
        "native": session_windows,
        "pandas": lambda df: df.groupBy("user").applyInPandas(
            sessions_of, "user long, n long, length long"
        ),
    },
    total="n",
    time="at",
)


def profiles(first: int, count: int) -> dict[str, Any]:
    draw = np.random.default_rng(first)
    country = COUNTRIES[np.minimum(draw.zipf(1.5, count) - 1, len(COUNTRIES) - 1)]
    heads = pc.binary_join_element_wise('{"country": "', pa.array(country), '"', "")
    rest = ', "name": "somebody", "title": "engineer of software", "skills": ["a", "b", "c"]}'
    return {
        "member": np.arange(first, first + count),
        "country": country,
        "profile": pc.binary_join_element_wise(heads, rest, ""),
    }


def country_of(message: Any) -> str:
    return json.loads(message.profile)["country"]


def countries_of(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(country=pl.col("profile").str.extract(r'"country": "(\w+)"'))


@f.pandas_udf(StringType())
def country(profile: pd.Series) -> pd.Series:
    return profile.map(lambda text: json.loads(text)["country"])


COUNTRY = {"country": str}
MEMBERS = Program(
    profiles,
    {
        "job": count_by("country"),
        "messages": lambda s: count_by("country")(s.map(country_of, returns=COUNTRY)),
        "frames": lambda s: count_by("country")(s.map_batches(countries_of, returns=COUNTRY)),
    },
    {
        "native": lambda df: counted(df, f.col("country"), "country"),
        "pandas": lambda df: counted(df, country("profile"), "country"),
    },
    total="n",
)

PROGRAMS = {"words": WORDS, "routes": ROUTES, "sessions": SESSIONS, "members": MEMBERS}


def write_rows(program: Program, rows: int, home: Path) -> None:
    """Write the same rows as a stream and as Parquet files; in time's order, dealt in turn."""
    folder = home / "parquet"
    folder.mkdir(parents=True)
    with FileBus(home / "bus") as bus:
        stream = writer = None
        for at, first in enumerate(range(0, rows, CHUNK)):
            batch = pa.RecordBatch.from_pydict(program.rows(first, min(CHUNK, rows - first)))
            if stream is None:
                stream = bus.create(StreamSpec("in", PARTITIONS, batch.schema, program.time))
            for partition in range(PARTITIONS):
                part = batch.take(pa.array(np.arange(partition, batch.num_rows, PARTITIONS)))
                stream.append(partition, part)
            writer = writer or pq.ParquetWriter(folder / f"{at:04}.parquet", batch.schema)
            writer.write_batch(batch)
            if at % 4 == 3:  # files of a million rows
                writer.close()
                writer = None
        if writer is not None:
            writer.close()


class Took(NamedTuple):
    """What a run took, and what came out."""

    seconds: float
    cpu_s: float
    found: tuple[int, float]


def run_step(program: Program, step: Step, home: Path, name: str) -> Took:
    @hr.job(name)
    def job(g: hr.Graph) -> None:
        step(g.input("in")).send_to(g.output(f"{name}.out"))

    settings = bench_settings(home, tasks=2, max_rows=1 << 40, bounded=True)
    took = timed(lambda: run_job(job, settings))
    with FileBus(home / "bus") as bus:
        found = bus.stream(f"{name}.out")
        parts = [b.batch for p in range(found.spec.partitions) for b in found.read(p, 0)]
    return Took(*took, totals(pa.Table.from_batches(parts), program.total))


def run_query(program: Program, way: Way, spark: SparkSession, home: Path, name: str) -> Took:
    frame = spark.read.parquet(str(home / "parquet"))
    took = timed(lambda: way(frame).write.parquet(str(home / name)))
    return Took(*took, totals(pq.read_table(home / name), program.total))


def timed(work: Callable[[], object]) -> tuple[float, float]:
    before, began = snapshot(), time.perf_counter()
    work()
    took = time.perf_counter() - began
    return took, sum(used.cpu_s for used in snapshot().since(before).values())


def totals(table: pa.Table, column: str) -> tuple[int, float]:
    return table.num_rows, float(pc.sum(table.column(column)).as_py())


def measure(name: str, given: argparse.Namespace, spark: SparkSession) -> dict[str, Any]:
    """Return the figures of the best run of each way."""
    program, home = PROGRAMS[name], Path(tempfile.mkdtemp(prefix="headrace-batch-"))
    rows = int(given.rows * program.share)
    best: dict[str, Took] = {}
    try:
        write_rows(program, rows, home)
        for turn in range(given.times):
            for way in (*program.jobs, *program.queries):
                if (turn and way in given.once) or way in given.without:
                    continue
                run = f"{name}-{way}-{turn}"
                if way in program.jobs:
                    took = run_step(program, program.jobs[way], home, run)
                else:
                    took = run_query(program, program.queries[way], spark, home, run)
                say = f"{name}, {way}: {took.seconds:.2f} s, processor {took.cpu_s:.2f} s"
                print(say, file=sys.stderr, flush=True)
                best[way] = min(best.get(way, took), took)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    first = next(iter(best.values())).found
    for way, took in best.items():
        if took.found[0] != first[0] or not math.isclose(took.found[1], first[1], rel_tol=1e-9):
            raise SystemExit(f"{name}: {way} finds {took.found}, the first way {first}")
    return line(name, rows, best)


def line(name: str, rows: int, best: dict[str, Took]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "program": name,
        "rows": rows,
        "results": next(iter(best.values())).found[0],
    }
    told["load"] = round(os.getloadavg()[0], 1)
    for what in ("seconds", "cpu_s"):
        told[what] = {way: round(getattr(took, what), 2) for way, took in best.items()}
    if {"job", "native"} <= best.keys():
        told["job / native"] = round(best["job"].seconds / best["native"].seconds, 2)
    for way in [way for way in ("messages", "frames") if {way, "pandas"} <= best.keys()]:
        told[f"pandas / {way}"] = round(best["pandas"].seconds / best[way].seconds, 2)
    return told


def keep(out: Path, told: dict[str, Any]) -> None:
    """Put a line into the file, in the place of that of the same program."""
    lines = out.read_text().splitlines() if out.exists() else []
    kept = {json.loads(one)["program"]: one for one in lines}
    kept[told["program"]] = json.dumps(told)
    out.write_text("".join(f"{one}\n" for one in kept.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--once", default="pandas", help="ways of the first turn only")
    parser.add_argument("--without", default="", help="ways to leave out")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.once, given.without = given.once.split(","), given.without.split(",")
    folder = Path(tempfile.mkdtemp(prefix="headrace-batch-spark-"))
    spark = build_session("local[2]", "headrace bench", folder / "spark.log", {})
    try:
        for name in given.only.split(","):
            told = measure(name, given, spark)
            print(json.dumps(told), flush=True)
            if given.out is not None:
                keep(given.out, told)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
