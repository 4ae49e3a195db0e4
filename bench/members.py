"""Members by country against the number of containers: the question of the paper's Figure 13.

    python bench/members.py > docs/benchmarks/members.jsonl     # about eight minutes, as root
    python bench/members.py --figure         # draws docs/images/members.svg from that file

One to eight Spark executors of one core on this machine, each held to the same share of a core
(``--share``) as in bench/containers.py once all ways have run twice. Then each way reads profiles
and counts the members of each country, in turn, in one session; the best of two counts. The ways
are those of ``members`` in bench/batch.py: ``job`` and ``native`` have the country as a column, the
others take it from JSON. Each has as many profiles as keep it busy for long. ``rows_s`` are rows by
the clock, from the begin of a run to its end: planning, state, manifests and what is written
included.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from batch import MEMBERS, totals
from containers import Containers, run
from matplotlib import pyplot
from pyspark.sql import SparkSession

import headrace as hr
from headrace.bench.readwrite import bench_settings
from headrace.bus.file import FileBus
from headrace.bus.spec import StreamSpec
from headrace.spark.run import run_job
from headrace.spark.sessions import build_session
from headrace.testing.cluster import SparkCluster

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, IMAGE = DOCS / "benchmarks" / "members.jsonl", DOCS / "images" / "members.svg"
PARTITIONS, WARM, TIMES, MILLION = 16, 2, 2, 1_000_000
MILLIONS = {"countries": 64, "profiles": 8, "few profiles": 2}
COLUMNS = {
    "countries": ("member", "country"),
    "profiles": ("member", "profile"),
    "few profiles": ("member", "profile"),
}
INPUTS = {
    "job": "countries",
    "native": "countries",
    "frames": "profiles",
    "pandas": "few profiles",
}
TITLES = {
    "job": "Headrace, expressions",
    "native": "Spark, expressions",
    "frames": "Headrace, Python on frames",
    "pandas": "Spark, pandas UDF",
}


def write_rows(kind: str, home: Path) -> None:
    """Write the same rows as a stream of 16 partitions and as 16 Parquet files."""
    (home / "parquet").mkdir(parents=True)
    rows = MEMBERS.rows(0, MILLION)
    whole = pa.RecordBatch.from_pydict({name: rows[name] for name in COLUMNS[kind]})
    parts = [
        whole.take(pa.array(np.arange(number, MILLION, PARTITIONS))) for number in range(PARTITIONS)
    ]
    with FileBus(home / "bus") as bus:
        stream = bus.create(StreamSpec("in", PARTITIONS, whole.schema))
        for number, part in enumerate(parts):
            file = home / "parquet" / f"{number}.parquet"
            with pq.ParquetWriter(file, part.schema) as writer:
                for _ in range(MILLIONS[kind]):
                    stream.append(number, part)
                    writer.write_batch(part, row_group_size=MILLION)


def rows_of(way: str) -> int:
    return MILLIONS[INPUTS[way]] * MILLION


def run_way(way: str, spark: SparkSession, home: Path, master: str, name: str) -> float:
    """Run it once; return its seconds, after its rows were counted."""
    began = time.perf_counter()
    if way in MEMBERS.queries:
        frame = spark.read.parquet(str(home / "parquet"))
        MEMBERS.queries[way](frame).write.parquet(str(home / name))
        took = time.perf_counter() - began
        table = pq.read_table(home / name)
    else:

        @hr.job(name)
        def job(g: hr.Graph) -> None:
            MEMBERS.jobs[way](g.input("in")).send_to(g.output(f"{name}.out"))

        settings = bench_settings(home, max_rows=1 << 40, bounded=True, master=master)
        run_job(job, settings)
        took = time.perf_counter() - began
        with FileBus(home / "bus") as bus:
            out = bus.stream(f"{name}.out")
            parts = [b.batch for p in range(out.spec.partitions) for b in out.read(p, 0)]
        table = pa.Table.from_batches(parts)
    if (found := totals(table, MEMBERS.total)[1]) != rows_of(way):
        raise SystemExit(f"{way} counts {found} of {rows_of(way)} rows")
    return took


def measured(count: int, share: float) -> dict[str, Any]:
    """Return rows a second of each way on so many containers."""
    with tempfile.TemporaryDirectory(prefix="members-") as folder:
        home = Path(folder)
        for kind in MILLIONS:
            write_rows(kind, home / kind)
        with SparkCluster(home / "cluster", 1, 1024 * count, count) as cluster:
            memory = {"spark.executor.memory": "768m", "spark.executor.cores": "1"}
            spark = build_session(cluster.url, "members", home / "spark.log", memory)
            containers = Containers(cluster, f"headrace-{os.getpid()}", share)
            best: dict[str, float] = {}
            try:
                for turn in range(WARM + TIMES):
                    if turn == WARM and containers.limit() != count:
                        raise SystemExit(f"there are not {count} executors")
                    for way, kind in INPUTS.items():
                        took = run_way(way, spark, home / kind, cluster.url, f"{way}-{turn}")
                        print(f"{count} {way} {turn}: {took:.2f} s", file=sys.stderr, flush=True)
                        if turn >= WARM:
                            best[way] = min(best.get(way, took), took)
            finally:
                containers.remove()
                spark.stop()
        rates = {way: round(rows_of(way) / took) for way, took in best.items()}
        return {"containers": count, "share": share, "rows_s": rates}


def draw(results: Path, image: Path) -> None:
    found = [json.loads(line) for line in results.read_text().splitlines()]
    counts = [one["containers"] for one in found]
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.4))
    for plot, ways in zip(axes, (("job", "native"), ("frames", "pandas")), strict=True):
        for way, line in zip(ways, ("-o", "--s"), strict=True):
            rates = [one["rows_s"][way] / 1e6 for one in found]
            plot.plot(counts, rates, line, markersize=4, label=TITLES[way])
        plot.set(xlabel="containers", ylabel="profiles/s, millions", ylim=(0, None))
        plot.set_xticks(counts)
        plot.legend(fontsize=8)
        plot.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(image, metadata={"Date": None})


if __name__ == "__main__":
    run(__file__, __doc__, 0.2, [1, 2, 4, 8], measured, lambda: draw(RESULTS, IMAGE))
