"""What the streaming query that shows a job in Spark costs: processor time with and without it.

    python bench/progress.py [--seconds 40] [--times 2] [--rows 2000] [--out FILE]

A job counts by key on local[2], with two tasks; rows are appended five times a second. Each way is
a driver in a process of its own, ``--times`` in turn. ``cpu`` is processor time of the driver's
Python and of its JVM, in cores, between two moments: ``--seconds`` apart, 20 s after the first
epoch. The Python workers, which do the job's work, are not in it. ``epoch_ms`` is the median
duration of an epoch.

off  spark.progress=off: neither query nor metrics
on   the query that a class of the JVM feeds, and the metrics of slots
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

import headrace as hr
from headrace.bus.file import FileBus
from headrace.bus.spec import StreamSpec
from headrace.config import load_settings
from headrace.coordinator.driver_loop import JobControl
from headrace.spark.run import run_job

WAYS = ("off", "on")
WARM_S, PAUSE_S, KEYS = 20.0, 0.2, 1000


@hr.job("shown")
def shown(g: hr.Graph) -> None:
    """Count by key."""
    counts = g.input("in").partition_by("key").aggregate(name="n", n=hr.agg.count())
    counts.send_to(g.output("out"))


def used_s(name: str) -> float:
    """Return processor time of this process's children of a name, seconds.

    With processes that they have started, and that have ended: Hadoop starts some for files. Others
    come and go meanwhile.
    """
    found = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if name in " ".join(child.cmdline()):
                found += sum(child.cpu_times()[:4])
    return found


def cpu_s() -> float:
    """Return processor time of this process and of its JVM, seconds."""
    return sum(psutil.Process().cpu_times()[:2]) + used_s("SparkSubmit")


def measure(way: str, home: Path, seconds: float, rows: int) -> dict[str, float]:
    """Run the job one way in this process."""
    control, epochs = JobControl(), []
    sets = [f"home={home}", "spark.master=local[2]", "job.tasks=2", f"spark.progress={way}"]
    settings = load_settings(None, sets, {})
    found: dict[str, float] = {}

    def feed() -> None:
        with FileBus(home / "bus") as bus:
            stream = bus.stream("in")
            keys = pa.table({"key": [at % KEYS for at in range(rows)]})
            while not control.stop.is_set():
                stream.append_rows(keys)
                time.sleep(PAUSE_S)

    def look() -> None:
        while not epochs:
            time.sleep(PAUSE_S)
        time.sleep(WARM_S)
        begun, before, first = time.monotonic(), cpu_s(), len(epochs)
        time.sleep(seconds)
        took = time.monotonic() - begun
        found["cpu"] = (cpu_s() - before) / took
        found["epochs"] = (len(epochs) - first) / took
        found["epoch_ms"] = statistics.median(one.took_ms for one in epochs[first:])
        if way == "on":
            queries = SparkSession.builder.getOrCreate().streams.active
            found["batches"] = sum(query.lastProgress["batchId"] for query in queries)
        control.stop.set()

    threads = [threading.Thread(target=one) for one in (feed, look)]
    for thread in threads:
        thread.start()
    run_job(shown, settings, control=control, on_epoch=epochs.append)
    for thread in threads:
        thread.join()
    return found


def main() -> None:
    """Measure each way, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2)
    given = parser.parse_args()
    if given.one:
        way, home = given.one
        print(json.dumps(measure(way, Path(home), given.seconds, given.rows)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in given.ways}
    for _ in range(given.times):
        for way in given.ways:
            with tempfile.TemporaryDirectory() as folder:
                with FileBus(Path(folder) / "bus") as bus:
                    bus.create(StreamSpec("in", 2, pa.schema([("key", pa.int64())])))
                command = [sys.executable, __file__, "--one", way, folder]
                command += ["--seconds", str(given.seconds), "--rows", str(given.rows)]
                said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                found[way].append(json.loads(said.splitlines()[-1]))
                print(way, found[way][-1], flush=True)
    result = {
        way: {name: round(statistics.median(one[name] for one in runs), 4) for name in runs[0]}
        for way, runs in found.items()
    }
    print(json.dumps(result))
    if given.out:
        given.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
