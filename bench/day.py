"""Whether an epoch costs the same after a day of epochs: `python bench/day.py [--epochs N]`.

Runs epochs in virtual time, without rest between them, and samples what they cost: processor time
of the driver and of the workers, files and bytes of each folder, the largest manifest, files of a
task, memory and descriptors. After a warm-up the samples are cut into thirds; a quantity is flat
when the median of the last third is at most a tenth, and a slack that hides single files, above
that of the first. Its slope is by a straight line through all samples, in a thousand epochs. Ends
with exit code 1 when one grows that has to be flat.

    python bench/day.py                                  # a day of seconds: 86,400 epochs
    python bench/day.py --epochs 8640 --step-s 10        # a day, scaled
    python bench/day.py --epochs 2000 --step-s 120 --workers new
    python bench/day.py --epochs 3650 --step-s 86400     # ten years of a table by day

The job has windows, a process with a store that lives for a time, a table of the warehouse, a sink
of files that are merged, and outputs. Workers are processes of their own, forked from one that has
loaded everything, as Spark's are: ``kept`` stay as long as the job, ``new`` ones serve an epoch,
finish what they merge, and are killed; ``ended`` ones are killed with the epoch. Nothing is synced:
disks are not what is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bus.address import open_bus
from headrace.bus.options import BusOptions, Fsync
from headrace.coordinator.placement import Slot
from headrace.coordinator.worker_host import open_host
from headrace.files import Files
from headrace.runtime.orders import SlotOrder, SlotReport, decode_order, decode_report, encode
from headrace.runtime.slot import run_slot
from headrace.runtime.slot_host import SlotHost, release_all
from headrace.testing import ManualClock, TestDriver

BEGIN_MS = 1_700_006_400_000  # a midnight
WARM_UP = 0.2  # of the run
GROWTH = 1.10
SAMPLES = 60
SLACK = {"ms": 1.0, "bytes": 1 << 20, "inodes": 40, "rss": 16 << 20, "files": 12, "open": 4}
GROWS = ("bus", "warehouse", "sink", "table")
"""What holds rows for good: shown without a verdict."""

LOADED = ("pandas", "polars", "pyarrow.dataset", "pyarrow.parquet", "headrace.sinks.files")
"""What a worker loads when it first needs it: as much as the rest of an epoch, and no growth."""

Sample = dict[str, float]


class Remember:
    """Keeps a word on each key for a while, and how often it came."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("seen")
        store.put(message.k, store.get(message.k, 0) + 1)


def job_of(folder: Path, ttl: str) -> hr.Job:
    @hr.job("day")
    def day(g: hr.Graph) -> None:
        events = g.input("events", time="at", out_of_orderness="5s")
        keyed = events.partition_by("k")
        keyed.window(hr.tumbling("1m"), n=hr.agg.count()).send_to(g.output("counts"))
        stores = [hr.store("seen", int, ttl=ttl)]
        keyed.process(Remember, returns={"k": int}, stores=stores, name="remember")
        keyed.aggregate(total=hr.agg.sum("v"), name="totals").send_to(g.output("totals"))
        events.send_to(g.output_table("history", partition_by="day"))
        events.send_to(hr.sinks.parquet(folder, merge_bytes=64 << 20))

    return day


class Child:
    """A worker: what a process does that runs slots, until it is killed."""

    def __init__(self, storage: Path, bus: str, state: Path) -> None:
        self.clock = ManualClock(seed=os.getpid() ^ time.time_ns())
        options = BusOptions(fsync=Fsync.NEVER)
        self.host: SlotHost = open_host(
            storage=storage,
            bus=open_bus(bus, options, clock=self.clock),
            state_dir=state,
            clock=self.clock,
            files=Files(sync=False),
        )
        self.spent = time.process_time()

    def run(self, data: bytes) -> bytes:
        order = decode_order(data)
        self.clock.advance(order.time_ms - self.clock.now_ms())
        return encode(run_slot(order, self.host))

    def finish(self) -> None:
        """Wait for what is merged beside the epochs."""
        while any(thread.name == "headrace-background" for thread in threading.enumerate()):
            time.sleep(0.001)

    def usage(self) -> tuple[float, int, int]:
        spent, self.spent = self.spent, time.process_time()
        return self.spent - spent, anonymous("self"), len(os.listdir("/proc/self/fd"))


def serve(ends: Connection, storage: Path, bus: str, state: Path) -> None:
    """Answer a runner until it hangs up."""
    child = Child(storage, bus, state)
    while True:
        what, data = ends.recv()
        match what:
            case "run":
                ends.send(child.run(data))
            case "release":
                release_all(child.host)
                ends.send(child.host.host)
            case "usage":
                ends.send(child.usage())
            case "finish":
                child.finish()
                ends.send(None)


def anonymous(process: str | int) -> int:
    """Resident bytes of a process that are no files."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Workers:
    """Runs slots in processes of their own; Spark's place."""

    def __init__(self, driver: TestDriver, slots: int, kind: str) -> None:
        self._driver, self._count, self.kind = driver, slots, kind
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", *LOADED])
        self._alive: dict[int, tuple[Any, Connection]] = {}
        self.spent = 0.0
        self.rss = self.open = 0

    def ask(self, slot: int, what: str, data: bytes | None = None) -> Any:
        self._send(slot, what, data)
        return self._alive[slot][1].recv()

    def _send(self, slot: int, what: str, data: bytes | None = None) -> None:
        if slot not in self._alive:
            here, there = self._context.Pipe()
            driver = self._driver
            given = (there, driver.storage, str(driver.settings.bus_dir), driver.state_dir(0))
            process = self._context.Process(target=serve, args=given, daemon=True)
            process.start()
            self._alive[slot] = process, here
        self._alive[slot][1].send((what, data))

    def slots(self) -> list[Slot]:
        return [Slot(n, self.ask(n, "release"), "host-0") for n in range(self._count)]

    def has_changed(self) -> bool:
        return False

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        for order in orders:
            self._send(order.slot, "run", encode(order))
        return [decode_report(self._alive[order.slot][1].recv()) for order in orders]

    def over(self) -> None:
        """An epoch is over: look what it took, and end what is not kept."""
        found = [self.ask(slot, "usage") for slot in self._alive]
        self.spent += sum(spent for spent, _, _ in found)
        self.rss, self.open = sum(f[1] for f in found), sum(f[2] for f in found)
        if self.kind == "kept":
            return
        if self.kind == "new":
            for slot in self._alive:
                self.ask(slot, "finish")
            self.spent += sum(self.ask(slot, "usage")[0] for slot in self._alive)
        self.kill_all()

    def kill_all(self, slots: object = None) -> None:
        """End them as Spark ends its workers: with no word to them."""
        for process, ends in self._alive.values():
            process.kill()
            process.join()
            ends.close()
        self._alive.clear()


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


class Day:
    """One run."""

    def __init__(self, home: Path, given: argparse.Namespace) -> None:
        self.home, self.given = home, given
        job = job_of(home / "sink", given.ttl)
        self.driver = TestDriver(
            job, tasks=given.tasks, slots=given.slots, memory_bus=False, home=home
        )
        self.workers = Workers(self.driver, given.slots, given.workers)
        self.driver.runners[job.name] = self.workers  # type: ignore[assignment]
        columns = {"k": pa.int64(), "v": pa.int64(), "at": pa.int64()}
        self.driver.create("events", columns)
        self.driver.clock.advance(BEGIN_MS - self.driver.clock.now_ms())
        self.samples: list[Sample] = []

    def run(self) -> None:
        given, every = self.given, max(1, self.given.epochs // SAMPLES)
        spent_driver, spent_workers, began = 0.0, 0.0, time.perf_counter()
        for epoch in range(1, given.epochs + 1):
            self.driver.clock.advance(int(given.step_s * 1000))
            self.driver.feed("events", self._rows(epoch))
            mark = time.process_time()
            self.driver.run()
            spent_driver += time.process_time() - mark
            self.workers.over()
            if epoch % every == 0:
                sample = {
                    "epoch": float(epoch),
                    "driver ms": spent_driver / every * 1000,
                    "workers ms": (self.workers.spent - spent_workers) / every * 1000,
                    "driver rss": anonymous("self"),
                    "driver open": len(os.listdir("/proc/self/fd")),
                    "workers rss": self.workers.rss,
                    "workers open": self.workers.open,
                    **self._disk(),
                }
                spent_driver, spent_workers = 0.0, self.workers.spent
                self.samples.append(sample)
                if given.progress:
                    took = time.perf_counter() - began
                    print(f"{took:6.0f} s", json.dumps(sample), file=sys.stderr, flush=True)

    def _rows(self, epoch: int) -> pa.Table:
        given, now = self.given, self.driver.clock.now_ms()
        keys = (np.arange(given.rows) + epoch * given.rows // 2) % given.keys
        return pa.table({"k": keys, "v": keys * 3, "at": np.full(given.rows, now)})

    def _disk(self) -> Sample:
        found: Sample = {}
        folders = {
            "job": self.driver.storage,
            "state": self.driver.state_dir(0),
            "bus": self.driver.settings.bus_dir,
            "warehouse": self.driver.settings.warehouse_dir,
            "sink": self.home / "sink",
        }
        for name, folder in folders.items():
            found[f"{name} bytes"], found[f"{name} inodes"] = tree(folder)
        sizes = [path.stat().st_size for path in self.driver.storage.glob("manifests/*.json")]
        tasks = self.driver.coordinator.state.tasks.values()
        found["largest manifest bytes"] = max(sizes)
        found["most of a task files"] = max(len(task.files) for task in tasks)
        return found


def thirds(samples: list[Sample], quantity: str) -> list[float]:
    """Median of each third after the warm-up."""
    kept = [sample[quantity] for sample in samples[int(len(samples) * WARM_UP) :]]
    size = len(kept) // 3
    return [statistics.median(kept[n * size : (n + 1) * size]) for n in range(3)]


def slope(samples: list[Sample], quantity: str) -> float:
    """Of a straight line through all after the warm-up, in a thousand epochs."""
    kept = samples[int(len(samples) * WARM_UP) :]
    line = np.polyfit([s["epoch"] for s in kept], [s[quantity] for s in kept], 1)
    return float(line[0]) * 1000


def shown(quantity: str, value: float) -> str:
    if quantity.endswith("ms"):
        return f"{value:,.2f} ms"
    if quantity.endswith(("bytes", "rss")):
        return f"{value / 1000:,.1f} kB"
    return f"{value:,.1f}"


def report(samples: list[Sample]) -> bool:
    """Print the table; returns whether all is flat that has to be."""
    print("| an epoch's | first third | last third | in 1,000 epochs | |\n|---|---|---|---|---|")
    good = True
    for quantity in list(samples[0])[1:]:
        first, _, last = thirds(samples, quantity)
        limit = first * GROWTH + SLACK[quantity.rpartition(" ")[2]]
        verdict = "flat" if last <= limit else "grows"
        if quantity.startswith(GROWS):
            verdict = "rows"
        good = good and verdict != "grows"
        cells = [*(shown(quantity, value) for value in (first, last))]
        cells.append(shown(quantity, slope(samples, quantity)))
        print(f"| {quantity} | {' | '.join(cells)} | {verdict} |")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=86_400)
    parser.add_argument("--step-s", type=float, default=1.0, help="virtual time between two epochs")
    parser.add_argument("--workers", choices=("kept", "new", "ended"), default="kept")
    parser.add_argument("--rows", type=int, default=20, help="of an epoch")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--ttl", default="10m")
    parser.add_argument("--progress", action="store_true", help="show each sample")
    parser.add_argument("--samples", type=Path, help="file for all samples, as JSON lines")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-day-"))
    day, began = Day(home, given), time.perf_counter()
    try:
        day.run()
    finally:
        day.workers.kill_all()
        day.driver.close()
        shutil.rmtree(home, ignore_errors=True)
    if given.samples:
        given.samples.write_text("".join(json.dumps(s) + "\n" for s in day.samples))
    took = time.perf_counter() - began
    print(
        f"{given.epochs:,} epochs {given.step_s:g} s apart, workers {given.workers}: {took:,.0f} s"
    )
    sys.exit(0 if report(day.samples) else 1)


if __name__ == "__main__":
    main()
