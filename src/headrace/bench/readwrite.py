"""ReadWrite: messages counted per id, exactly once with a changelog, from the file bus.

The steady rate leaves out the session's start and the first epoch, in which workers start
and load their libraries: rows of the later epochs by the time from the end of the first
epoch to the end of the last one that had rows, whatever happened between them.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench.comparison import compare
from headrace.bench.workload import counted, counting_job, create_stream, feed, random_ids
from headrace.bus.address import open_bus
from headrace.clock import SystemClock
from headrace.config import Settings, load_settings
from headrace.coordinator.summary import EpochSummary
from headrace.errors import InternalError
from headrace.spark.run import run_job
from headrace.spark.ways import NATIVE

MASTER = "local[2]"
EPOCH_ROWS = 1_000_000


@dataclass(frozen=True)
class Measured:
    """One run: its epochs that had rows, when each ended (seconds), and the sum of counts."""

    epochs: list[EpochSummary]
    ends: list[float]
    total: int

    @property
    def rows_per_s(self) -> float:
        """Return the steady rate."""
        return sum(epoch.rows for epoch in self.epochs[1:]) / (self.ends[-1] - self.ends[0])

    @property
    def epoch_ms_p50(self) -> float:
        """Return the median epoch, the first left out."""
        return statistics.median(epoch.took_ms for epoch in self.epochs[1:])


def main(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure and return the figures, by the names that ``--json`` prints.

    Args:
        options: ``rows``, ``ids``, ``store``, ``path``, ``tasks``, ``key``, ``whole``,
            ``epoch_rows``, ``compare``, ``loop``, ``master`` and ``home``; those left out have the
            defaults of the command.

    Returns:
        ``rows_per_s`` (steady), ``epoch_ms_p50``, ``state_bytes`` (live after the run),
        ``changelog_bytes`` (written by the run), ``compare`` (rows/s by way, empty without
        ``compare``), ``times`` (how often the best keyed Python state API of PySpark fits into
        ours), and what was run.

    Raises:
        InternalError: the counts do not add up to the rows.
    """
    home = Path(options.get("home") or ".headrace").absolute() / "bench"
    rows, ids = int(options.get("rows") or 4_000_000), int(options.get("ids") or 1_000_000)
    path, tasks = options.get("path") or "message", int(options.get("tasks") or 4)
    chosen: dict[str, Any] = {
        "store": options.get("store") or ("columnar" if path == "batch" else "rocksdb"),
        "path": path,
        "loop": options.get("loop") or "direct",
        "key": options.get("key") or "int",
        "whole": bool(options.get("whole")),
        "epoch_rows": int(options.get("epoch_rows") or EPOCH_ROWS),
        "master": options.get("master") or MASTER,
    }
    messages = random_ids(rows, ids)
    shutil.rmtree(home, ignore_errors=True)
    try:
        found = measure(home / "readwrite", messages, tasks=tasks, **chosen)
        compared: dict[str, float] = {}
        if options.get("compare"):
            compared = compare(home / "pyspark", messages, chosen["master"])
    finally:
        shutil.rmtree(home, ignore_errors=True)
    keyed = [rate for way, rate in compared.items() if way != NATIVE]
    return {
        "rows_per_s": round(found.rows_per_s),
        "epoch_ms_p50": round(found.epoch_ms_p50, 1),
        "state_bytes": found.epochs[-1].state_bytes,
        "changelog_bytes": sum(epoch.changelog_bytes for epoch in found.epochs),
        "compare": {way: round(rate) for way, rate in compared.items()},
        "times": round(found.rows_per_s / max(keyed), 1) if keyed else None,
        "rows": rows,
        "ids": ids,
        "epochs": len(found.epochs),
        "tasks": tasks,
        **chosen,
        "sum_of_counts": found.total,
    }


def measure(  # noqa: PLR0913 - each is a knob of the command
    home: Path,
    messages: npt.NDArray[np.int64],
    *,
    path: str,
    store: str,
    tasks: int,
    loop: str,
    key: str = "int",
    whole: bool = False,
    epoch_rows: int = EPOCH_ROWS,
    master: str = MASTER,
) -> Measured:
    """Feed the messages to a new bus, count them, and check the counts.

    Args:
        home: a new folder.
        messages: id of each.
        path: ``message`` or ``batch``.
        store: ``columnar``, ``rocksdb`` or ``memory``.
        tasks: of the keyed stage.
        loop: ``direct`` or ``query``.
        key: ``int`` or ``string``.
        whole: send whole messages through ``partition_by``.
        epoch_rows: messages of an epoch, at most.
        master: of Spark.
    """
    max_rows = min(epoch_rows, len(messages) // 2)
    settings = bench_settings(
        home, tasks=tasks, loop=loop, max_rows=max_rows, bounded=True, master=master
    )
    work = counting_job(path, store, whole=whole)
    clock = SystemClock()
    epochs: list[EpochSummary] = []
    ends: list[float] = []

    def note(epoch: EpochSummary) -> None:
        if epoch.rows:
            epochs.append(epoch)
            ends.append(clock.monotonic())

    with open_bus(settings.bus_dir) as bus:
        feed(create_stream(bus, key), messages)
        result = run_job(work, settings, bus=bus, on_epoch=note)
        total = counted(work, bus, settings, result.state)
    if total != len(messages):
        raise InternalError(f"the counts add up to {total}, expected {len(messages)}")
    return Measured(epochs, ends, total)


def bench_settings(
    home: Path,
    *,
    tasks: int = 4,
    loop: str = "direct",
    max_rows: int,
    bounded: bool,
    master: str = MASTER,
) -> Settings:
    """Return the settings of a run, on two cores unless the master says otherwise."""
    values = {
        "home": home,
        "spark.master": master,
        "spark.loop": loop,
        "job.tasks": tasks,
        "job.bounded": str(bounded).lower(),
        "epoch.max_rows": max(1, max_rows),
    }
    return load_settings(None, [f"{name}={value}" for name, value in values.items()], {})
