"""How long an epoch with next to nothing in it takes, by the number of keyed levels, as JSON.

    python bench/levels.py [--levels 1,2,3,4,5] [--epochs 30] [--master local[2]]

Each job is a chain of ``partition_by`` and ``aggregate`` with two tasks a stage, on Spark. A row
for each epoch is appended when the one before is committed, so an epoch has one row at each level.
Told are the median of all but the first five, and the fastest, which other work slows least.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.config import load_settings
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.spark.run import run_job

WARM = 5


def chain(levels: int) -> Any:
    """Return a job of so many keyed levels behind the one that reads."""

    @hr.job(f"levels-{levels}")
    def job(g: hr.Graph) -> None:
        stream = g.input("in").partition_by("k0")
        for level in range(levels):
            totals = stream.aggregate(**{f"k{level + 1}": hr.agg.count()})
            last = level == levels - 1
            stream = totals if last else totals.partition_by(f"k{level + 1}")
        stream.send_to(g.output("out"))

    return job


def measure(levels: int, epochs: int, master: str) -> dict[str, Any]:
    """Run so many epochs of one row each."""
    home = Path(tempfile.mkdtemp(prefix="levels-"))
    told: list[EpochSummary] = []
    try:
        sets = [f"home={home}", f"spark.master={master}", "job.tasks=2"]
        settings = load_settings(None, sets, {})
        bus = open_bus(home / "bus")
        stream = bus.create(StreamSpec("in", 1, pa.schema({"k0": pa.int64()})))
        row = pa.RecordBatch.from_pydict({"k0": pa.array([1], pa.int64())})
        stream.append(0, row)
        control = JobControl()

        def note(summary: EpochSummary) -> None:
            told.append(summary)
            if len(told) >= epochs:
                control.stop.set()
            else:
                stream.append(0, row)

        run_job(chain(levels), settings, control=control, on_epoch=note)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    took = [summary.took_ms for summary in told[WARM:]]
    return {
        "levels": levels,
        "epoch_ms": round(statistics.median(took)),
        "fastest_ms": round(min(took)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", default="1,2,3,4,5")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    for levels in map(int, given.levels.split(",")):
        print(json.dumps(measure(levels, given.epochs, given.master)), flush=True)


if __name__ == "__main__":
    main()
