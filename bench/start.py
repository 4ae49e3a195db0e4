"""What short commands and runs take, beside the least that their libraries and Spark take.

    python bench/start.py [--times 5] [--without-spark] [--json]

Each line runs in a process of its own, one after the other in each turn, so that all have the same
machine; medians of the turns. ``wall`` is seconds of the clock. ``cpu`` is processor time of the
process and all that it started, the JVM and its Python processes included: other programs change
it far less. The job counts 2,050 rows of one stream with two partitions, by key and minute, to the
end of its input, with an empty state each time.

pass         python -c pass
arrow        import pyarrow
libraries    import polars, pyarrow
bus ls       headrace bus ls
standalone   headrace run --bounded --standalone
context      PySpark by hand: a SparkContext on local[2], and one job of two tasks in Python
session      the same with a SparkSession, as PySpark programs begin
spark        headrace run --bounded on local[2]
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = """\
import headrace as hr


@hr.job("clicks")
def clicks(g):
    views = g.input("clicks", time="at").filter(hr.col("page").is_not_null()).partition_by("page")
    views = views.window(hr.tumbling("1m"), views=hr.agg.count(), slowest=hr.agg.max("ms"))
    views.send_to(g.output("views"))
"""
COUNTED = "print({0}.parallelize(range(2050), 2).map(lambda n: n % 7).sum())"
CONTEXT = """\
from pyspark import SparkConf, SparkContext
conf = SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false")
context = SparkContext(conf=conf)
"""
SESSION = """\
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
context = builder.getOrCreate().sparkContext
"""
ROWS, BEGIN = 2050, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: who is left by its parent becomes a child of this process."""


def headrace(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.main", *words]


def ways(with_spark: bool) -> dict[str, list[str]]:
    """Return the commands by name."""
    python = [sys.executable, "-c"]
    run = ("run", "clicks.py:clicks", "--bounded")
    found = {
        "pass": [*python, "pass"],
        "arrow": [*python, "import pyarrow"],
        "libraries": [*python, "import polars, pyarrow"],
        "bus ls": headrace("bus", "ls"),
        "standalone": headrace(*run, "--standalone"),
    }
    if with_spark:
        stop = f"{COUNTED.format('context')}\ncontext.stop()\n"
        found["context"] = [*python, CONTEXT + stop]
        found["session"] = [*python, SESSION + stop]
        found["spark"] = headrace(*run, "--master", "local[2]")
    return found


def processor_time() -> float:
    """Return that of all that this process started, once it has ended."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime


def measured(words: list[str], folder: Path, environ: dict[str, str]) -> tuple[float, float]:
    """Run a command; return its seconds by the clock, and of the processor."""
    used, began = processor_time(), time.perf_counter()
    ran = subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if ran.returncode:
        sys.exit(f"{words}: {ran.stdout}{ran.stderr}")
    return took, processor_time() - used


def prepare(folder: Path, environ: dict[str, str]) -> Path:
    """Make the stream and the job; return the home that each run begins with."""
    (folder / "clicks.py").write_text(JOB)
    rows = (
        {"page": f"/{n % 40}", "ms": n % 100, "at": f"{BEGIN + datetime.timedelta(seconds=n)}"}
        for n in range(ROWS)
    )
    (folder / "clicks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    columns = ("--schema", "page:string,ms:int64,at:timestamp", "--time", "at", "--key", "page")
    measured(headrace("bus", "create", "clicks", *columns, "--partitions", "2"), folder, environ)
    measured(headrace("bus", "append", "clicks", "clicks.jsonl"), folder, environ)
    return (folder / ".headrace").rename(folder / "before")


def main() -> None:
    """Run all commands in turn, and print what they took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    left_out = ("PYTHONDONTWRITEBYTECODE", "HEADRACE_HOME")
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    commands = ways(not given.without_spark)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = prepare(folder, environ)
        for turn in range(given.times + 1):  # the first one has bytecode and files to load
            for way, words in commands.items():
                shutil.rmtree(folder / ".headrace", ignore_errors=True)
                shutil.copytree(before, folder / ".headrace")
                took = measured(words, folder, environ)
                if turn:
                    found[way].append(took)
    middle = {
        way: [statistics.median(one) for one in zip(*took, strict=True)]
        for way, took in found.items()
    }
    if given.json:
        print(json.dumps({"load": os.getloadavg()[0], "s": middle}))
        return
    print(f"{'':12} {'wall, s':>8} {'cpu, s':>8}  cpu, least and most")
    for way, (wall, cpu) in middle.items():
        cpus = sorted(cpu for _, cpu in found[way])
        print(f"{way:12} {wall:8.2f} {cpu:8.2f}  {cpus[0]:.2f} to {cpus[-1]:.2f}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
