"""Whether disk and memory stay flat: `python bench/soak.py [--minutes N]`.

Counts messages per id for a while, fed at a steady rate, on local[2]. Every few seconds
the bytes and inodes of the job's folder, of its state and of Spark's scratch folder are
noted, and the resident memory of driver, JVM and workers. After a warm-up the samples are
cut into thirds; a quantity is flat when the median of the last third is at most a tenth,
and a slack that hides single files, above that of the first. Ends with exit code 1 when one
is not. The input stream itself grows, for nothing here removes what was read; it is shown
beside the rest without a verdict.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import psutil

from headrace.bench.readwrite import counting_job, create_stream, feed, random_ids
from headrace.bus.address import open_bus
from headrace.clock import SystemClock
from headrace.config import load_settings
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.spark.run import run_job

CLOCK = SystemClock()
WARM_UP = 0.2  # of the run
GROWTH = 1.10
SLACK = {"bytes": 8 << 20, "inodes": 40, "rss": 16 << 20}

Sample = dict[str, float]


def tree(folder: Path) -> tuple[int, int]:
    """Bytes and inodes below a folder; what vanishes meanwhile does not count."""
    size = count = 0
    for path in folder.rglob("*"):
        try:
            size += path.lstat().st_size
        except FileNotFoundError:
            continue
        count += 1
    return size, count


def memory() -> dict[str, int]:
    """Resident bytes of this process, of the JVM and of the Python workers together."""
    me = psutil.Process()
    found = {"driver": me.memory_info().rss, "jvm": 0, "workers": 0}
    for child in me.children(recursive=True):
        try:
            kind = "jvm" if child.name() == "java" else "workers"
            found[kind] += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found


class Soak:
    """One run: a feeder, a sampler, and the job between them."""

    def __init__(self, home: Path, options: argparse.Namespace) -> None:
        self.home, self.options = home, options
        self.control = JobControl()
        self.samples: list[Sample] = []
        self.rows = 0
        self.epochs_ms = array("d")  # small, for the driver's own memory is watched
        self.began = 0.0

    def run(self) -> None:
        """Run to the end of the time."""
        (self.home / "scratch").mkdir(parents=True)
        values = {
            "home": self.home,
            "spark.master": "local[2]",
            "spark.conf.spark.local.dir": self.home / "scratch",
            "epoch.interval_ms": self.options.interval_ms,
        }
        settings = load_settings(None, [f"{name}={value}" for name, value in values.items()], {})
        with open_bus(settings.bus_dir) as bus:
            stream = create_stream(bus)
            rate, ids = self.options.rate, self.options.ids

            def append(turn: int) -> None:
                feed(stream, random_ids(rate // 5, ids, seed=turn))

            threads = [
                threading.Thread(target=self._every, args=(0.2, append), daemon=True),
                threading.Thread(target=self._every, args=(2.0, self._sample), daemon=True),
            ]

            def start(_: object) -> None:
                self.began = CLOCK.monotonic()
                for thread in threads:
                    thread.start()

            job = counting_job(self.options.path, self.options.store)
            run_job(
                job,
                settings,
                bus=bus,
                control=self.control,
                on_start=start,
                on_epoch=self._count,
            )
            for thread in threads:
                thread.join()

    def _count(self, epoch: EpochSummary) -> None:
        self.rows += epoch.rows
        self.epochs_ms.append(epoch.took_ms)

    def _every(self, seconds: float, call: Callable[[int], None]) -> None:
        """Call again and again until the time is over; late calls are not made up for."""
        turn = 0
        while CLOCK.monotonic() - self.began < self.options.minutes * 60:
            call(turn)
            turn += 1
            if self.control.stop.wait(seconds):
                return
        self.control.stop.set()

    def _sample(self, turn: int) -> None:
        del turn
        sample: Sample = {"seconds": round(CLOCK.monotonic() - self.began, 1)}
        for name in ("jobs", "state", "scratch", "bus"):
            sample[f"{name} bytes"], sample[f"{name} inodes"] = tree(self.home / name)
        for name, size in memory().items():
            sample[f"{name} rss"] = size
        self.samples.append(sample)


def thirds(samples: list[Sample], quantity: str) -> list[float]:
    """Median of each third after the warm-up."""
    kept = [sample[quantity] for sample in samples[int(len(samples) * WARM_UP) :]]
    size = len(kept) // 3
    return [statistics.median(kept[n * size : (n + 1) * size]) for n in range(3)]


def is_flat(quantity: str, first: float, last: float) -> bool:
    """Say whether the last third is not above the first."""
    return last <= first * GROWTH + SLACK[quantity.rpartition(" ")[2]]


def shown(quantity: str, value: float) -> str:
    return f"{value:,.0f}" if quantity.endswith("inodes") else f"{value / 1e6:,.1f} MB"


def report(soak: Soak) -> bool:
    """Print the table; returns whether all is flat."""
    seconds = soak.samples[-1]["seconds"]
    print(
        f"{len(soak.epochs_ms):,} epochs, {soak.rows:,} rows in {seconds:,.0f} s; "
        f"median epoch {statistics.median(soak.epochs_ms):,.0f} ms\n"
    )
    print("| quantity | first third | second | last | verdict |\n|---|---|---|---|---|")
    good = True
    for quantity in list(soak.samples[0])[1:]:
        first, second, last = thirds(soak.samples, quantity)
        verdict = "flat" if is_flat(quantity, first, last) else "grows"
        if quantity.startswith("bus"):
            verdict = "the input"
        good = good and verdict != "grows"
        cells = [shown(quantity, value) for value in (first, second, last)]
        print(f"| {quantity} | {' | '.join(cells)} | {verdict} |")
    print(f"\n{'flat' if good else 'something grows'}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=20_000, help="messages a second")
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--interval-ms", type=int, default=200, help="least time between epochs")
    parser.add_argument("--path", choices=("message", "batch"), default="message")
    parser.add_argument("--store", choices=("rocksdb", "memory"), default="rocksdb")
    parser.add_argument("--samples", type=Path, help="file for all samples, as JSON lines")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-soak-"))
    soak = Soak(home, options)
    try:
        soak.run()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if options.samples:
        options.samples.write_text("".join(json.dumps(s) + "\n" for s in soak.samples))
    sys.exit(0 if report(soak) else 1)


if __name__ == "__main__":
    main()
