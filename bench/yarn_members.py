"""Members by country on YARN, beside Hadoop and Spark: the question of the paper's Figure 13.

    bench/peers/hadoop.sh && python bench/yarn_members.py >> docs/benchmarks/yarn-members.jsonl

A YARN and an HDFS on this machine. Profiles are JSON, in HDFS: lines of text files for Hadoop and
Spark, a stream of a bus in HDFS for Headrace, which also has its storage there. Each way finds the
country by the same pattern and counts, with one container of one core, then with two:

``hadoop``    MapReduce in Java, with a combiner
``spark``     Spark's own expressions, by ``spark-submit``
``headrace``  a bounded job of expressions, by ``headrace submit``

``seconds`` are by the clock from the command to its end, the best of ``--times``; ``cpu_s`` are
those of cores, of all processes of the cluster and of the command, the least. Most of both is what
is needed to start, unless there are many rows. Root only, for the cgroup that counts. The members
that come out are added up and compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hdfs_native
import pyarrow as pa
from batch import MEMBERS

from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.objects import Address
from headrace.remote import local_path
from headrace.testing.yarn_server import YarnServer

CPU = Path("/sys/fs/cgroup/cpuacct")
MILLION, FILES = 1_000_000, 8
PEERS = Path(sys.prefix, "jars", "hadoop-3.5.0")
JOB = """
import polars as pl
import headrace as hr

@hr.job("members")
def members(g):
    country = pl.col("profile").str.extract(r'"country": "(\\\\w+)"').alias("country")
    found = g.input("in").select(country)
    counts = found.partition_by("country").window(hr.global_window(), n=hr.agg.count())
    counts.send_to(g.output("out"))
"""
QUERY = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.builder.getOrCreate()
country = f.regexp_extract("value", '"country": "(\\\\w+)"', 1).alias("country")
spark.read.text(sys.argv[1]).select(country).groupBy("country").count().write.csv(sys.argv[2])
spark.stop()
"""


class Accounting:
    """Seconds of cores of this process and of all that it starts from now on, by a cgroup."""

    def __init__(self) -> None:
        self._folder = CPU / f"headrace-{os.getpid()}"
        self._folder.mkdir()
        (self._folder / "cgroup.procs").write_text(f"{os.getpid()}")

    def cpu_s(self) -> float:
        return int((self._folder / "cpuacct.usage").read_text()) / 1e9

    def close(self) -> None:
        (CPU / "cgroup.procs").write_text(f"{os.getpid()}")
        with contextlib.suppress(OSError):  # where a process has not quite ended
            self._folder.rmdir()


class Rig:
    """A YARN with the same rows for each way, in two amounts."""

    def __init__(self, folder: Path, yarn: YarnServer, millions: list[int]) -> None:
        self.folder, self.yarn = folder, yarn
        self.root = f"hdfs://{yarn.name}"
        (folder / "job.py").write_text(JOB)
        (folder / "query.py").write_text(QUERY)
        client = hdfs_native.Client(self.root)
        rows = MEMBERS.rows(0, MILLION)
        column = pa.array(rows["profile"], pa.string())
        lines = "\n".join(column.to_pylist()).encode() + b"\n"
        batch = pa.record_batch([column], names=["profile"])
        for count in millions:
            for number in range(count):
                with client.create(f"/text-{count}/{number}.txt", self._options()) as file:
                    file.write(lines)
            root = local_path(Address.read(f"{self.root}/home-{count}/bus"), folder / "state")
            with open_bus(root) as bus:
                stream = bus.create(StreamSpec("in", FILES, batch.schema))
                for number in range(count):
                    for half in (batch.slice(0, MILLION // 2), batch.slice(MILLION // 2)):
                        stream.append(number % FILES, half)

    def _options(self) -> Any:
        return hdfs_native.WriteOptions(overwrite=True)

    def run(self, *words: str) -> None:
        with (self.folder / "log").open("ab") as log:
            ran = subprocess.run(
                words,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
            )
        if ran.returncode:
            for path in [self.folder / "log", *self.folder.glob("home/logs/*.log")]:
                print(path.read_text(errors="replace")[-5000:], file=sys.stderr)
            raise SystemExit(f"{words} ended with {ran.returncode}")

    def hadoop(self, containers: int, count: int, out: str) -> None:
        jars = f"{PEERS}/*:{PEERS}/classes"
        given = {
            "mapreduce.framework.name": "yarn",
            "mapreduce.application.classpath": jars,
            "yarn.application.classpath": jars,
            "mapreduce.job.running.map.limit": containers,
            "mapreduce.job.running.reduce.limit": containers,
            "mapreduce.map.memory.mb": 1024,
            "mapreduce.reduce.memory.mb": 1024,
            "mapreduce.map.java.opts": "-Xmx768m",
            "mapreduce.reduce.java.opts": "-Xmx768m",
            "yarn.app.mapreduce.am.resource.mb": 768,
            "yarn.app.mapreduce.am.command-opts": "-Xmx512m",
        }
        listed = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in given.items()
        )
        conf = self.folder / "mapreduce"
        conf.mkdir(exist_ok=True)
        (conf / "mapred-site.xml").write_text(f"<configuration>{listed}</configuration>")
        classes = f"{conf}:{self.yarn.environment['HADOOP_CONF_DIR']}:{jars}"
        program = ["java", "-cp", classes, "MembersMapReduce"]
        self.run(*program, f"{self.root}/text-{count}", f"{self.root}/{out}", str(containers))

    def conf(self, containers: int) -> list[str]:
        jars = Path(sysconfig.get_path("purelib"), "pyspark", "jars")
        given = {
            "spark.yarn.jars": f"local:{jars}/*",
            "spark.executor.instances": containers,
            "spark.executor.cores": 1,
            "spark.executor.memory": "768m",
            "spark.driver.memory": "512m",
            "spark.yarn.am.memory": "512m",
        }
        return [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]

    def spark(self, containers: int, count: int, out: str) -> None:
        submit = Path(sysconfig.get_path("purelib"), "pyspark", "bin", "spark-submit")
        words = [str(submit), "--master", "yarn", *self.conf(containers), "query.py"]
        self.run(*words, f"{self.root}/text-{count}", f"{self.root}/{out}")

    def headrace(self, containers: int, count: int, out: str) -> None:
        home = f"{self.root}/home-{count}"
        sets = {
            "storage.address": f"{self.root}/{out}",
            "bus.address": f"{home}/bus",
            "state.dir": self.folder / "state",
            "job.tasks": containers,
            "epoch.max_rows": 1 << 40,
        }
        words = [sys.executable, "-m", "headrace.cli.main", "submit", "job.py:members"]
        words += ["--master", "yarn", "--environment", "none", "--bounded"]
        words += ["--home", str(self.folder / "home"), *self.conf(containers)]
        self.run(*words, *(w for name, value in sets.items() for w in ("--set", f"{name}={value}")))

    def counted(self, way: str, count: int, out: str) -> int:
        """Return how many members a run has counted."""
        if way == "headrace":
            root = local_path(Address.read(f"{self.root}/home-{count}/bus"), self.folder / "state")
            with open_bus(root) as bus:
                stream = bus.stream("out")
                ends = stream.ends()
                rows = [b.batch for p in range(len(ends)) for b in stream.read(p, 0)]
                total = sum(sum(batch.column("n").to_pylist()) for batch in rows)
                bus.remove("out")
            return total
        client, total = hdfs_native.Client(self.root), 0
        for file in client.list_status(f"/{out}"):
            if "part-" in file.path:
                with client.read(file.path) as read:
                    text = read.read(file.length).decode()
                total += sum(
                    int(line.replace(",", "\t").split("\t")[1]) for line in text.splitlines()
                )
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--containers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ways", nargs="+", default=["hadoop", "spark", "headrace"])
    parser.add_argument("--times", type=int, default=1)
    given = parser.parse_args()
    accounting = Accounting()
    with (
        contextlib.closing(accounting),
        tempfile.TemporaryDirectory(prefix="yarn-") as name,
        YarnServer(Path(name) / "yarn", hadoop=PEERS) as yarn,
    ):
        os.environ.update(yarn.environment)
        rig = Rig(Path(name), yarn, given.millions)
        for containers in given.containers:
            for way in given.ways:
                report(rig, accounting, way, containers, given.millions, given.times)


def report(
    rig: Rig, accounting: Accounting, way: str, containers: int, millions: list[int], times: int
) -> None:
    for count in millions:
        took = []
        for turn in range(times):
            out = f"out-{way}-{containers}-{count}-{turn}"
            began, used = time.monotonic(), accounting.cpu_s()
            getattr(rig, way)(containers, count, out)
            took.append((time.monotonic() - began, accounting.cpu_s() - used))
            if (found := rig.counted(way, count, out)) != count * MILLION:
                raise SystemExit(f"{way} counts {found} of {count} millions")
        seconds, cpu_s = (min(column) for column in zip(*took, strict=True))
        said = {
            "way": way,
            "containers": containers,
            "millions": count,
            "seconds": round(seconds, 1),
            "cpu_s": round(cpu_s, 1),
            "rows_s": round(count * MILLION / seconds),
            "load": round(os.getloadavg()[0], 1),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
