"""Bounded jobs beside hand-written PySpark code that does the same, in one run.

python bench/batch.py [--rows 10000000] [--only words,routes,sessions,members] [--times 3]

Each program runs in up to four ways, in one session on local[2], in turn; the best of ``--times``
counts. ``job`` is a bounded job over a stream, its results appended to a stream, state and
manifests included; ``native`` DataFrame code with Spark's own expressions, over Parquet files of
the same rows, its results written as Parquet. ``job, Python`` and ``pandas`` are the same with
Python of the user's: functions and classes of messages in the one, pandas functions in the other.
Rows that come out are counted, and their totals compared.

words     words of lines are counted; the user's Python cuts lines into words
routes    mean delay by route and hour of flights, in the order of their departures
sessions  events and length of each session of a user, apart by 30 minutes; in Python by hand
members   members by country (paper, 4.3); in Python the country is read out of a profile in JSON
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType

import headrace as hr
from headrace.bench.readwrite import bench_settings
from headrace.bus.file import FileBus
from headrace.bus.spec import StreamSpec
from headrace.graph.jobs import Job
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
    job: Step
    native: Way
    total: str
    python: Step | None = None
    pandas: Way | None = None
    time: str | None = None
    share: float = 1.0


def lines(first: int, count: int) -> dict[str, Any]:
    draw = np.random.default_rng(first)
    numbers = np.minimum(draw.zipf(1.3, count * 10), 20_000)
    words = pc.binary_join_element_wise("w", pa.array(numbers).cast(pa.string()), "")
    ends = pa.array(np.arange(0, count * 10 + 1, 10, dtype=np.int32))
    return {"text": pc.binary_join(pa.ListArray.from_arrays(ends, words), " ")}


def words_of(message: Any) -> list[dict[str, str]]:
    return [{"word": word} for word in message.text.split()]


def count_by(key: str) -> Step:
    return lambda s: s.partition_by(key).window(hr.global_window(), n=hr.agg.count())


@f.pandas_udf(ArrayType(StringType()))
def cut(text: pd.Series) -> pd.Series:
    return text.str.split()


def counted(df: DataFrame, column: Any, name: str) -> DataFrame:
    return df.select(column.alias(name)).groupBy(name).agg(f.count("*").alias("n"))


WORDS = Program(
    lines,
    job=lambda s: count_by("word")(s.flat_map(hr.col("text").str.split(" ").alias("word"))),
    native=lambda df: counted(df, f.explode(f.split("text", " ")), "word"),
    python=lambda s: count_by("word")(s.flat_map(words_of, returns={"word": str})),
    pandas=lambda df: counted(df, f.explode(cut("text")), "word"),
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
    job=lambda s: s.partition_by("origin", "dest").window(
        hr.tumbling("1h"), delay=hr.agg.mean("dep_delay")
    ),
    native=hourly,
    total="delay",
    time="departed_at",
)


def visits(first: int, count: int) -> dict[str, Any]:
    draw = np.random.default_rng(first)
    return {
        "user": draw.integers(0, 50_000, count),
        "at": START_MS + np.arange(first, first + count) * 40,
    }


class SessionsByHand(hr.StatefulProcessor[list[int]]):
    """Begin, last event and number of events of the session that a user is in."""

    def begin(self) -> list[int]:
        return []

    def process(self, event: Any, state: list[int]) -> tuple[list[Any], list[int]]:
        at, sent = event.at, []
        if state and at - state[1] < GAP_MS:
            state[1], state[2] = at, state[2] + 1
            return sent, state
        if state:
            sent = [{"user": event.user, "n": state[2], "length": state[1] - state[0]}]
        else:
            self.context.set_timer(253_402_300_799_000)  # the end of the input
        return sent, [at, at, 1]

    def on_timer(self, timer: Any, state: list[int]) -> tuple[list[Any], None]:
        return [{"user": timer.key, "n": state[2], "length": state[1] - state[0]}], None


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
    job=lambda s: s.partition_by("user").window(
        hr.session("30m"), n=hr.agg.count(), first=hr.agg.min("at"), last=hr.agg.max("at")
    ),
    native=session_windows,
    python=lambda s: s.partition_by("user").process(
        SessionsByHand, returns={"user": int, "n": int, "length": int}
    ),
    pandas=lambda df: df.groupBy("user").applyInPandas(
        sessions_of, "user long, n long, length long"
    ),
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


def country_of(message: Any) -> dict[str, str]:
    return {"country": json.loads(message.profile)["country"]}


@f.pandas_udf(StringType())
def country(profile: pd.Series) -> pd.Series:
    return profile.map(lambda text: json.loads(text)["country"])


MEMBERS = Program(
    profiles,
    job=count_by("country"),
    native=lambda df: counted(df, f.col("country"), "country"),
    python=lambda s: count_by("country")(s.map(country_of, returns={"country": str})),
    pandas=lambda df: counted(df, country("profile"), "country"),
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


def run_step(program: Program, step: Step, home: Path, name: str) -> tuple[int, float]:
    @hr.job(name)
    def job(g: hr.Graph) -> None:
        step(g.input("in")).send_to(g.output(f"{name}.out"))

    run_bounded(job, home)
    with FileBus(home / "bus") as bus:
        found = bus.stream(f"{name}.out")
        parts = [b.batch for p in range(found.spec.partitions) for b in found.read(p, 0)]
    return totals(pa.Table.from_batches(parts), program.total)


def run_bounded(job: Job, home: Path) -> None:
    settings = bench_settings(home, tasks=2, max_rows=1 << 40, bounded=True)
    started.append(time.perf_counter())
    run_job(job, settings)
    ended.append(time.perf_counter())


started: list[float] = []
ended: list[float] = []


def run_frame(program: Program, way: Way, spark: SparkSession, home: Path, name: str) -> Any:
    frame = spark.read.parquet(str(home / "parquet"))
    started.append(time.perf_counter())
    way(frame).write.parquet(str(home / name))
    ended.append(time.perf_counter())
    return totals(pq.read_table(home / name), program.total)


def totals(table: pa.Table, column: str) -> tuple[int, float]:
    return table.num_rows, round(pc.sum(table.column(column)).as_py(), 3)


def measure(name: str, rows: int, times: int, spark: SparkSession) -> dict[str, float]:
    """Return the least seconds of each way."""
    program, home = PROGRAMS[name], Path(tempfile.mkdtemp(prefix="headrace-batch-"))
    steps = {"job": program.job, "job, Python": program.python}
    frames = {"native": program.native, "pandas": program.pandas}
    try:
        write_rows(program, int(rows * program.share), home)
        best: dict[str, float] = {}
        found = set()
        for turn in range(times):
            for way, step in steps.items():
                if step is not None:
                    job = f"{name}-{'python' if step is program.python else 'job'}-{turn}"
                    found.add(run_step(program, step, home, job))
                    note(best, name, way)
            for way, frame in frames.items():
                if frame is not None:
                    found.add(run_frame(program, frame, spark, home, f"{way}-{turn}"))
                    note(best, name, way)
        if len(found) > 1:
            raise SystemExit(f"{name}: ways differ: {found}")
        return best
    finally:
        shutil.rmtree(home, ignore_errors=True)


def note(best: dict[str, float], name: str, way: str) -> None:
    seconds = round(ended[-1] - started[-1], 2)
    best[way] = min(best.get(way, seconds), seconds)
    print(f"{name}, {way}: {seconds} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-batch-spark-"))
    spark = build_session("local[2]", "headrace bench", folder / "spark.log", {})
    try:
        for name in given.only.split(","):
            best = measure(name, given.rows, given.times, spark)
            line: dict[str, Any] = {"program": name, "seconds": best}
            line["job / native"] = round(best["job"] / best["native"], 2)
            if "pandas" in best:
                line["pandas / job, Python"] = round(best["pandas"] / best["job, Python"], 2)
            print(json.dumps(line), flush=True)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
