"""How long a job stands still when hosts are lost: the question of the paper's Figure 11.

    python bench/failover.py --mb 500 --ways affinity none >> docs/benchmarks/failover.jsonl
    python bench/failover.py --mb 500 --ways standby frozen >> docs/benchmarks/failover.jsonl
    python bench/failover.py --figure        # draws docs/images/recovery.svg from that file

A Spark standalone cluster of four hosts of one core on this machine, eight tasks, a RocksDB store
with values of a kilobyte, and one message every 20 ms. What is lost, of ``--lost`` hosts at once:

``affinity``  the executors; their hosts start others, and the stores are there
``late``      the same, but their hosts start others 15 s later: a JVM that starts takes the cores
              of those that read the lost state, as it does not where each host has its own
``none``      the hosts with their disks; empty ones come in their places at once
``standby``   the hosts, by kill -9 of all that runs there; each task has a standby elsewhere
``frozen``    the same hosts, by SIGSTOP: nobody knows; then they are started again
``spark``     the executors, of a PySpark program that asks the hosts for their names, and no more:
              what Spark itself takes to start again

``back_s`` is from then to the commit of the epoch by which every task has worked again; of it,
``spark_s`` until Spark has the last executor that came in the place of one. ``--ask`` waits for
Enter when the stores are filled, so that the machine can be made quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from matplotlib import pyplot

from headrace.bench.state_size import PARTITIONS, SCHEMA, STREAM, feed, ids_of, keeping_job
from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.config import Settings, load_settings
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.manifest import JobState
from headrace.files import Files
from headrace.spark.run import run_job
from headrace.spark.sessions import build_session
from headrace.testing.cluster import SparkCluster
from headrace.testing.servers import end_group, free_port, kill

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, IMAGE = DOCS / "benchmarks" / "failover.jsonl", DOCS / "images" / "recovery.svg"
HOSTS, TASKS, PATIENCE_S = 4, 8, 600.0
EVERY_S = 0.02
COPIES = {"affinity": 0, "late": 0, "none": 0, "standby": 1, "frozen": 1}
WAIT_S = {"affinity": 30, "late": 30, "none": 1, "standby": 1, "frozen": 1}
PLAIN = "spark"
LATE_EPOCHS = 20
JAVA_HOME = os.environ.get("JAVA_HOME")
JAVA = f"{JAVA_HOME}/bin/java" if JAVA_HOME else shutil.which("java")
LATE_JAVA = """#!/bin/sh
case "$*" in *CoarseGrainedExecutorBackend*) if [ -e "{late}" ]; then sleep 15; fi ;; esac
exec "{java}" "$@"
"""


def settings_of(home: Path, url: str, copies: int, sets: Sequence[str]) -> Settings:
    own = {
        "home": home,
        "spark.master": url,
        "spark.conf.spark.executor.memory": "512m",
        "job.tasks": TASKS,
        "standby.enabled": str(copies > 0).lower(),
        "standby.copies": max(1, copies),
        "standby.share": 1.0,
    }
    return load_settings(None, [*(f"{name}={value}" for name, value in own.items()), *sets], {})


def drive(home: Path, url: str, copies: int, sets: Sequence[str]) -> None:
    def note(line: object) -> None:
        print(f"{time.time():.2f} {line}", flush=True)

    settings = settings_of(home, url, copies, sets)
    run_job(keeping_job("rocksdb"), settings, on_notice=note, on_epoch=note)


def drive_plain(home: Path, url: str) -> None:
    """Ask all hosts over and over, as a PySpark program does; tell how many have answered."""
    settings = settings_of(home, url, 0, [])
    spark = build_session(url, "plain", home / "spark.log", settings.spark.conf)

    def place(rows: Iterator[int]) -> Iterator[str]:
        list(rows)
        time.sleep(0.2)  # or one host takes the tasks of all
        yield os.environ["SPARK_EXECUTOR_DIRS"]

    while True:
        found = spark.sparkContext.range(HOSTS, numSlices=HOSTS).mapPartitions(place).collect()
        print(f"{time.time():.3f} {len(set(found))}", flush=True)


def until(condition: Callable[[], Any], what: str, pause_s: float = 0.1) -> None:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            raise TimeoutError(what)
        time.sleep(pause_s)


def asked(url: str) -> Any:
    with urlopen(url) as answer:
        return json.load(answer)


class Trickle:
    """One message every few milliseconds, until it is asked to stop; counts those of all time."""

    def __init__(self, bus: Bus, ids: int) -> None:
        self._stream, self._ids, self.rows = bus.stream(STREAM), ids, ids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._draw = np.random.default_rng(2)

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            feed(self._stream, self._draw.integers(0, self._ids, 1), "rocksdb")
            self.rows += 1

    def __enter__(self) -> Trickle:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


class Rig:
    """A running job with filled stores, and the hosts that it runs on."""

    def __init__(self, home: Path, cluster: SparkCluster, trickle: Trickle, spark: str) -> None:
        self.home, self.cluster, self.trickle = home, cluster, trickle
        self._spark = f"{spark}/api/v1/applications"

    def state(self) -> JobState | None:
        root = self.home / "jobs" / "large"
        if not (root / "manifests").is_dir():
            return None
        return load_state(FileCommitLog(root, Files(sync=False)))

    def rows(self) -> int:
        state = self.state()
        return 0 if state is None else state.counts.get("in", 0)

    def is_covered(self) -> bool:
        """Say whether the standbys hold all but a tail; those of a young job hold nothing yet."""
        state = self.state()
        if state is None or len(state.standbys) < TASKS:
            return False
        late = max(0, state.epoch - LATE_EPOCHS)
        return all(one.epoch >= late for held in state.standbys.values() for one in held)

    def is_whole(self) -> bool:
        """Say whether all hosts have their share of tasks, and the job is not behind."""
        state = self.state()
        hosts = Counter(task.host for task in state.tasks.values()) if state else Counter[str]()
        is_even = sorted(hosts.values()) == [TASKS // HOSTS] * HOSTS
        return is_even and self.rows() >= self.trickle.rows - 50

    def lose(self, way: str, hosts: Sequence[int]) -> None:
        for host in hosts:
            if way in {"affinity", "late"}:
                for pid in self.cluster.executors(host):
                    kill(pid)
            elif way == "frozen":
                self.cluster.freeze(host)
            else:
                self.cluster.kill_worker(host)
        for host in hosts if way == "none" else ():
            shutil.rmtree(self.cluster.state_dir(host))
            self.cluster.start_worker(host)

    def restore(self, way: str, hosts: Sequence[int]) -> None:
        for host in hosts:
            if way in {"standby", "frozen"}:
                self.cluster.kill_worker(host)
                self.cluster.start_worker(host)
                self.cluster.await_worker(host)

    def back_s(self, since: float, epoch: int) -> float:
        """Wait until every task has worked after an epoch; return how long that took."""

        def is_back() -> bool:
            state = self.state()
            return state is not None and all(t.epoch > epoch for t in state.tasks.values())

        until(is_back, "every task to work again", 0.05)
        root = self.home / "jobs" / "large"
        log = FileCommitLog(root, Files(sync=False))
        newest = self.state()
        assert newest is not None
        first = newest.epoch
        while first - 1 > epoch:
            before = load_state(log, first - 1)
            if before is None or not all(t.epoch > epoch for t in before.tasks.values()):
                break
            first -= 1
        return (root / "manifests" / f"{first:012d}.json").stat().st_mtime - since

    def spark_s(self, since: float) -> float | None:
        """Return how long it took until Spark had the last executor that it has started since."""
        (application,) = asked(self._spark)
        executors = asked(f"{self._spark}/{application['id']}/executors")
        added = (datetime.fromisoformat(one["addTime"].replace("GMT", "Z")) for one in executors)
        late = [moment.timestamp() - since for moment in added]
        return max((one for one in late if one > 0), default=None)


@contextmanager
def driven(given: Sequence[str], log: Path) -> Iterator[None]:
    """Run a driver beside this process."""
    with open(log, "wb") as file:
        driver = subprocess.Popen(
            [sys.executable, __file__, *given],
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    try:
        yield
    except TimeoutError:
        print(log.read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        end_group(driver)


@contextmanager
def rig_of(mb: int, copies: int, sets: Sequence[str]) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="failover-") as name:
        home = Path(name)
        java = home / "java" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(LATE_JAVA.format(late=home / "late", java=JAVA))
        java.chmod(0o755)
        os.environ["JAVA_HOME"] = str(home / "java")
        with SparkCluster(home / "cluster", HOSTS, 1024) as cluster, open_bus(home / "bus") as bus:
            ids = ids_of("rocksdb", mb)
            stream = bus.create(StreamSpec(STREAM, PARTITIONS, SCHEMA))
            feed(stream, np.arange(ids), "rocksdb")
            page = free_port()
            shown = ["spark.conf.spark.ui.enabled=true", f"spark.conf.spark.ui.port={page}"]
            given = ["--drive", str(home), cluster.url, str(copies), "--set", *sets, *shown]
            with driven(given, home / "driver.log"):
                rig = Rig(home, cluster, Trickle(bus, ids), f"http://127.0.0.1:{page}")
                until(lambda: rig.rows() >= ids, "the stores to be filled", 1.0)
                yield rig


def measure_plain(lost: Sequence[int], times: int) -> None:
    with tempfile.TemporaryDirectory(prefix="failover-") as name:
        home = Path(name)
        log = home / "driver.log"
        with (
            SparkCluster(home / "cluster", HOSTS, 1024) as cluster,
            driven(["--drive-plain", str(home), cluster.url], log),
        ):

            def whole(since: float) -> float | None:
                lines = (line.split() for line in log.read_text().splitlines())
                told = (float(one[0]) for one in lines if one[1:] == [str(HOSTS)])
                return next((moment - since for moment in told if moment > since + 0.3), None)

            for count in lost:
                for turn in range(times):
                    begun = time.time()
                    until(lambda since=begun: whole(since), "all hosts")
                    since = time.time()
                    for number in range(count):
                        for pid in cluster.executors((turn * count + number) % HOSTS):
                            kill(pid)
                    until(lambda since=since: whole(since), "all hosts again")
                    back_s = round(whole(since) or 0, 2)
                    print(json.dumps({"mb": 0, "way": PLAIN, "lost": count, "back_s": back_s}))


def measured(rig: Rig, way: str, lost: int, times: int) -> Iterator[dict[str, Any]]:
    for turn in range(times):
        until(rig.is_whole, "the job to be whole")
        if COPIES[way]:
            until(rig.is_covered, "the standbys")
        time.sleep(1)
        hosts = [(turn * lost + n) % HOSTS for n in range(lost)]
        before = rig.state()
        assert before is not None
        if way == "late":
            (rig.home / "late").touch()
        since = time.time()
        rig.lose(way, hosts)
        back_s = rig.back_s(since, before.epoch + 1)  # one may have been under way
        (rig.home / "late").unlink(missing_ok=True)
        after = rig.state()
        assert after is not None
        moved = {
            name: after.counts.get(f"standby.{name}", 0) - before.counts.get(f"standby.{name}", 0)
            for name in ("failover", "no_failover")
        }
        spark_s = rig.spark_s(since)
        told = None if spark_s is None else round(spark_s, 2)
        yield {"way": way, "lost": lost, "back_s": round(back_s, 2), "spark_s": told, **moved}
        rig.restore(way, hosts)


def measure(options: argparse.Namespace) -> None:
    if PLAIN in options.ways:
        measure_plain(options.lost, options.times)
    ours = [way for way in options.ways if way != PLAIN]
    copied = [way for way in ours if COPIES[way]]
    for mb in options.mb:
        # Losses without standbys leave old copies of tasks: what comes after them has less to read.
        for ways in filter(None, [*([way] for way in ours if not COPIES[way]), copied]):
            copies, sets = COPIES[ways[0]], [f"placement.wait_s={WAIT_S[ways[0]]}", *options.set]
            with rig_of(mb, copies, sets) as rig:
                if options.ask:
                    input("the stores are filled; press Enter when the machine is quiet\n")
                try:
                    with rig.trickle:
                        for way in ways:
                            for lost in (n for n in options.lost if n < HOSTS or not copies):
                                for told in measured(rig, way, lost, options.times):
                                    print(json.dumps({"mb": mb, **told}), flush=True)
                finally:
                    if options.log:
                        shutil.copy(rig.home / "driver.log", options.log)


def draw(results: Path, image: Path) -> None:
    found: dict[tuple[str, int], dict[int, list[float]]] = {}
    for line in results.read_text().splitlines():
        one = json.loads(line)
        runs = found.setdefault((one["way"], one["lost"]), {}).setdefault(one["mb"], [])
        runs.append(one["back_s"])
    colours = {
        "affinity": "tab:green",
        "late": "tab:olive",
        "none": "tab:red",
        "standby": "tab:blue",
        "frozen": "tab:purple",
    }
    styles = {1: "-o", 2: "--s", 4: ":^"}
    words = {
        "affinity": "affinity",
        "late": "affinity, executors late",
        "none": "disks lost",
        "standby": "standby, kill -9",
        "frozen": "standby, frozen",
    }
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for (way, lost), sizes in sorted(found.items()):
        if way not in colours or lost not in styles:
            continue
        places = sorted(sizes)
        middle = [float(np.median(sizes[mb])) for mb in places]
        label = f"{words[way]}, {lost} of {HOSTS}"
        axes.plot(places, middle, styles[lost], color=colours[way], label=label, markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="state, MB", ylabel="until every task works, s")
    axes.set_xticks([100, 1000, 2000, 4000, 8000], ["100", "1000", "2000", "4000", "8000"])
    axes.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    figure.tight_layout()
    figure.savefig(image, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    ways = [*COPIES, PLAIN]
    parser.add_argument("--mb", type=int, nargs="+", default=[100, 500, 1000, 2000, 4000])
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--lost", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=["job.slot_silence_s=2"])
    parser.add_argument("--ask", action="store_true")
    parser.add_argument("--log", help="keep what the driver said about each epoch")
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--drive", nargs=3)
    parser.add_argument("--drive-plain", nargs=2)
    options = parser.parse_args()
    if options.drive is not None:
        home, url, copies = options.drive
        drive(Path(home), url, int(copies), options.set)
    elif options.drive_plain is not None:
        drive_plain(Path(options.drive_plain[0]), options.drive_plain[1])
    elif options.figure:
        draw(RESULTS, IMAGE)
    else:
        measure(options)


if __name__ == "__main__":
    main()
