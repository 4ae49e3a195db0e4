"""State of a set size, for measuring what size costs: restarts and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bus import Stream, StreamSpec, open_bus
from headrace.config import Settings, load_settings
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_run import RunResult
from headrace.graph import agg
from headrace.graph.builder import Graph, Job, job
from headrace.graph.stores import store as hr_store
from headrace.spark.run import run_job

STREAM, PARTITIONS, TASKS, MASTER = "messages", 4, 4, "local[2]"
VALUE_BYTES = 1000
COLUMNAR_ROW_BYTES = 24
"""A row of a count by an integer: its hash, its key and its count."""

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.binary())])
PIECE = 50_000


class LastValue:
    """Keeps the last value of each id."""

    def process(self, message: Any, context: Any) -> None:
        """Put it."""
        context.store("last").put(message.id, message.value)


def keeping_job(store: str) -> Job:
    """Return a job whose state grows with the ids: their last value, or their count.

    Args:
        store: ``rocksdb`` or ``memory``, a Python call a message; ``columnar``, a count.
    """

    @job("large")
    def large(g: Graph) -> None:
        keyed = g.input(STREAM).partition_by("id")
        if store == "columnar":
            keyed.aggregate(store=store, n=agg.count())
        else:
            keyed.process(LastValue, [hr_store("last", bytes, store)])

    return large


def ids_of(store: str, megabytes: int) -> int:
    """Return how many ids make so much state."""
    each = COLUMNAR_ROW_BYTES if store == "columnar" else VALUE_BYTES + 11
    return megabytes * 1_000_000 // each


def feed(stream: Stream, ids: npt.NDArray[np.int64], store: str) -> None:
    """Append one message for each id, with random values where these are kept."""
    draw = np.random.default_rng(1)
    size = 0 if store == "columnar" else VALUE_BYTES
    for turn, begin in enumerate(range(0, len(ids), PIECE)):
        part = ids[begin : begin + PIECE]
        offsets = pa.py_buffer(np.arange(len(part) + 1, dtype=np.int32) * size)
        data = pa.py_buffer(draw.bytes(len(part) * size))
        values = pa.Array.from_buffers(pa.binary(), len(part), [None, offsets, data])
        batch = pa.RecordBatch.from_arrays([pa.array(part), values], schema=SCHEMA)
        stream.append(turn % PARTITIONS, batch)


def settings_of(home: Path, **values: Any) -> Settings:
    """Return the settings of a run; ``values`` have ``__`` for a dot."""
    fixed = {"home": home, "spark.master": MASTER, "job.tasks": TASKS}
    chosen = fixed | {name.replace("__", "."): value for name, value in values.items()}
    return load_settings(None, [f"{name}={value}" for name, value in chosen.items()], {})


def run_through(
    store: str,
    settings: Settings,
    ids: npt.NDArray[np.int64],
    on_epoch: Callable[[EpochSummary], None] = lambda epoch: None,
) -> RunResult:
    """Append messages, run the job until it has read them, and stop it; may be called again."""
    control = JobControl()

    def note(epoch: EpochSummary) -> None:
        on_epoch(epoch)
        if epoch.lag == 0:
            control.stop.set()

    with open_bus(settings.bus_dir) as bus:
        stream = bus.create(StreamSpec(STREAM, PARTITIONS, SCHEMA), exist_ok=True)
        feed(stream, ids, store)
        return run_job(keeping_job(store), settings, bus=bus, control=control, on_epoch=note)
