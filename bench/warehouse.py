"""How fast a job writes a table of the warehouse; docs/decisions/0030-warehouse.md.

    python bench/warehouse.py [--rows 8000000] [--days 1000] [--epoch-rows 8000000] [--cpu]

Fills a stream with events of so many days, in order of their time, and runs a job that only sends
them to a table, on Spark with two slots, as a bounded run. ``write_s`` is from the first epoch to
the end of the last, with the merging of small files; ``rows_s`` are rows by that time. Then counts
the rows by day with DuckDB. ``--late`` shuffles the rows, so that every epoch touches every day.
``--cpu`` runs all in one process instead, and counts its CPU time, for machines that are in use:
what the slots do, reading and writing, and what the driver does, which slots wait for.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.config import load_settings
from headrace.coordinator.epoch_records import EpochSummary
from headrace.spark import run
from headrace.testing import TestDriver

DAY_US = 86_400_000_000
BEGIN_US = 15_000 * DAY_US
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("user", pa.int64()),
        ("page", pa.string()),
        ("amount", pa.float64()),
    ]
)


@hr.job("history")
def history(g: hr.Graph) -> None:
    g.input("events", time="at").send_to(g.output_table("events"))


def fill(home: Path, rows: int, days: int, partitions: int, *, is_shuffled: bool) -> None:
    """Append events of so many days."""
    random = np.random.default_rng(7)
    pages = pa.array([f"/page/{number}" for number in range(500)])
    with open_bus(home / "bus") as bus:
        stream = bus.create(StreamSpec("events", partitions, SCHEMA, "at"))
        for partition in range(partitions):
            count = rows // partitions
            times = BEGIN_US + np.sort(random.integers(0, days * DAY_US, count))
            if is_shuffled:
                random.shuffle(times)
            for begin in range(0, count, 500_000):
                part = times[begin : begin + 500_000]
                size = len(part)
                columns = [
                    pa.array(part, pa.timestamp("us", tz="UTC")),
                    pa.array(random.integers(0, 1_000_000, size)),
                    pages.take(pa.array(random.integers(0, 500, size))),
                    pa.array(random.random(size).round(2)),
                ]
                stream.append(partition, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def measure(home: Path, options: argparse.Namespace) -> dict[str, Any]:
    given = [f"home={home}", f"spark.master=local[{options.slots}]", "job.bounded=true"]
    given += [f"epoch.max_rows={options.epoch_rows}", f"epoch.max_bytes={8 << 30}"]
    settings = load_settings(None, given, {})
    steps: dict[str, float] = {}
    slots: dict[str, float] = {}
    times: list[float] = []

    def on_epoch(summary: EpochSummary) -> None:
        times.append(summary.took_ms / 1000)
        for name, took in summary.timings_ms.items():
            steps[name] = round(steps.get(name, 0.0) + took / 1000, 2)
        for name, took in summary.slot_timings_ms.items():
            slots[name] = round(slots.get(name, 0.0) + took / 1000, 2)

    run.run_job(history, settings, on_epoch=on_epoch)
    table = hr.warehouse.Table(home / "warehouse" / "events")
    began = time.monotonic()
    pattern = f"{home}/warehouse/events/*/*.parquet"
    counted = duckdb.execute(
        "SELECT count(*), count(DISTINCT ds) FROM read_parquet(?, hive_partitioning = true)",
        [pattern],
    ).fetchone()
    assert counted == (options.rows, options.days), counted
    write_s = sum(times)
    return {
        "rows": options.rows,
        "days": options.days,
        "epochs": len(times),
        "shuffled": options.late,
        "write_s": round(write_s, 2),
        "rows_s": round(options.rows / write_s),
        "files": sum(day.files for day in table.days),
        "mb": round(sum(day.bytes for day in table.days) / 1e6, 1),
        "duckdb_count_s": round(time.monotonic() - began, 2),
        "steps_s": steps,
        "slots_s": slots,
    }


def measure_cpu(home: Path, options: argparse.Namespace) -> dict[str, Any]:
    job = {"tasks": 2, "slots": options.slots, "memory_bus": False, "home": home}
    with TestDriver(history, max_rows=options.epoch_rows, max_bytes=8 << 30, **job) as driver:
        driver.start()
        began = time.process_time()
        slots = 0.0
        for runner in driver.runners.values():
            own = runner.run

            def run(orders: Any, own: Any = own) -> Any:
                nonlocal slots
                mark = time.process_time()
                try:
                    return own(orders)
                finally:
                    slots += time.process_time() - mark

            runner.run = run
        epochs = driver.finish()
        total = time.process_time() - began
    days = hr.warehouse.Table(home / "warehouse" / "events").days
    assert sum(day.rows for day in days) == options.rows
    return {
        "rows": options.rows,
        "days": len(days),
        "epochs": epochs,
        "shuffled": options.late,
        "slots_cpu_s": round(slots, 2),
        "driver_cpu_s": round(total - slots, 2),
        "rows_s_two_cores": round(options.rows / (slots / 2 + total - slots)),
        "files": sum(day.files for day in days),
        "mb": round(sum(day.bytes for day in days) / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--days", type=int, default=1000)
    parser.add_argument("--epoch-rows", type=int, default=8_000_000)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="warehouse-"))
    try:
        fill(home, options.rows, options.days, options.slots, is_shuffled=options.late)
        measured = measure_cpu if options.cpu else measure
        print(json.dumps(measured(home, options)))
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
