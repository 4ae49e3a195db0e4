"""How long a job takes to come back with a large local state; docs/decisions/0007-durability.md.

    python bench/restart.py [--mb 1000] [--store rocksdb] [--tasks 4] [--keep DIR]

Fills the stores with values of a kilobyte, ends the driver, and starts it three times: after a
clean end, after kill -9, and with the local state removed. ``first_epoch_s`` is from Spark
being up to the end of the first epoch; ``start_s`` is the part of it before the first epoch is
planned, ``catch_up_s`` that in which the slowest slot brought its stores back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.config import Settings, load_settings
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.spark import run
from headrace.spark.sessions import build_session

VALUE_BYTES = 1000
EPOCH_ROWS = 50_000


class Keep:
    """Keeps a kilobyte for each id."""

    def process(self, message: Any, context: Any) -> None:
        name = message.id.to_bytes(8, "big")
        context.store("kept").put(message.id, hashlib.shake_128(name).digest(VALUE_BYTES))


def job_of(store: str) -> Any:
    @hr.job("restart")
    def restart(g: hr.Graph) -> None:
        by_id = g.input("events").partition_by("id")
        by_id.process(Keep, stores=[hr.store("kept", bytes, store)])

    return restart


def settings_of(home: Path, tasks: int) -> Settings:
    given = [f"home={home}", "spark.master=local[2]", f"job.tasks={tasks}"]
    return load_settings(None, [*given, f"epoch.max_rows={EPOCH_ROWS}"], {})


def drive(home: Path, store: str, tasks: int, rows: int) -> dict[str, Any]:
    """Run until so many rows are read; kill -9 instead when rows are negative."""
    settings = settings_of(home, tasks)
    log = home / "spark.log"
    began = time.monotonic()
    build_session(settings.spark.master, "restart", log)
    up = time.monotonic()
    control, found = JobControl(), {"rows": 0}
    times: dict[str, Any] = {"spark_s": round(up - began, 2)}

    def on_start(coordinator: Coordinator) -> None:
        times["start_s"] = round(time.monotonic() - up, 2)

    def on_epoch(summary: EpochSummary) -> None:
        if "first_epoch_s" not in times:
            times["first_epoch_s"] = round(time.monotonic() - up, 2)
            times["catch_up_s"] = round(summary.slot_timings_ms.get("catch up", 0) / 1000, 2)
            times["state_bytes"] = summary.state_bytes
        found["rows"] += summary.rows
        if found["rows"] >= abs(rows):
            if rows < 0:
                print(json.dumps(times), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            control.stop.set()

    run.run_job(job_of(store), settings, control=control, on_start=on_start, on_epoch=on_epoch)
    return times


def feed(home: Path, begin: int, count: int) -> None:
    bus = open_bus(home / "bus")
    stream = bus.create(StreamSpec("events", 2, pa.schema([("id", pa.int64())])), exist_ok=True)
    for part in range(2):
        ids = np.arange(begin + part, begin + count, 2, np.int64)
        stream.append(part, pa.RecordBatch.from_arrays([pa.array(ids)], names=["id"]))
    bus.close()


def child(home: Path, options: argparse.Namespace, rows: int) -> dict[str, Any]:
    given = ["--home", str(home), "--store", options.store, "--tasks", str(options.tasks)]
    done = subprocess.run(
        [sys.executable, __file__, *given, "--drive", str(rows)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--store", default="rocksdb")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--drive", type=int)
    options = parser.parse_args()
    if options.drive is not None:
        print(json.dumps(drive(options.home, options.store, options.tasks, options.drive)))
        return
    home = Path(tempfile.mkdtemp(prefix="restart-"))
    try:
        rows = options.mb * 1000
        feed(home, 0, rows)
        found = {"mb": options.mb, "store": options.store, "tasks": options.tasks}
        child(home, options, rows)
        feed(home, 0, 1000)
        found["clean"] = child(home, options, 1000)
        feed(home, 0, 60_000)
        found["before_kill"] = child(home, options, -60_000)
        feed(home, 0, 1000)
        found["killed"] = child(home, options, 1000)
        feed(home, 0, 1000)
        # Workers of the driver before may still merge files there.
        (home / "state").rename(home / "lost")
        found["lost"] = child(home, options, 1000)
        print(json.dumps(found, indent=1))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
