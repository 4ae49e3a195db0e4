"""ReadWrite: messages counted per id, exactly once with a changelog, from the file bus.

Uniform ids and 100 bytes of padding, as in the paper. Also PySpark's own ways on the same
messages, and the cost of idle epochs of this job.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bus import Bus, Stream, StreamSpec, open_bus
from headrace.clock import SystemClock
from headrace.config import Settings, load_settings
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deployment import make_plan
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.inspection.job_reader import committed_entries, table_rows
from headrace.coordinator.manifest import JobState
from headrace.errors import InternalError
from headrace.files import Files
from headrace.graph import agg
from headrace.graph.builder import Graph, Job, job
from headrace.graph.operators import COLUMNAR, Process
from headrace.graph.stores import store as hr_store
from headrace.runtime.windows.aggregation import PartialCodec
from headrace.spark.native_state import NATIVE, NATIVE_QUERIES, rate
from headrace.spark.run import run_job

STREAM = "messages"
PARTITIONS = 4
APPEND_ROWS = 100_000
_PADDING = b"p" * 100
_DIGITS = 10


def schema_of(key: str) -> pa.Schema:
    """Return the columns of messages with keys of a type: ``int`` or ``string``."""
    kind = pa.string() if key == "string" else pa.int64()
    return pa.schema([("id", kind), ("padding", pa.binary())])


SCHEMA = schema_of("int")


class Counter:
    """Counts the messages of each id, one Python call a message."""

    def process(self, message: Any, context: Any) -> None:
        """Read, add one, write."""
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


def _whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Change nothing; the planner must send it every column."""
    return batch


def counting_job(
    path: str, store: str, name: str = "readwrite", *, whole: bool = False, key: str = "int"
) -> Job:
    """Return the job that counts messages per id.

    Args:
        path: ``message``: a Python function per message; ``batch``: an aggregate over columns.
        store: ``rocksdb`` or ``memory``; ``columnar`` where the path is ``batch``.
        name: of the job.
        whole: send whole messages through ``partition_by``, not only the id.
        key: the type of ids, as of ``schema_of``.
    """

    @job(name)
    def readwrite(g: Graph) -> None:
        keyed = g.input(STREAM).partition_by("id")
        if whole:
            keyed = keyed.map_batches(_whole, returns=schema_of(key))
        if path == "message":
            keyed.process(Counter, stores=[hr_store("n", int, store)])
        else:
            keyed.aggregate(store=store, n=agg.count())

    return readwrite


def random_ids(rows: int, ids: int, seed: int = 1) -> npt.NDArray[np.int64]:
    """Return ``rows`` ids, uniform in 1 to ``ids``; the same for the same seed."""
    return np.random.default_rng(seed).integers(1, ids + 1, rows, np.int64)


def batch_of(ids: npt.NDArray[np.int64], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return one message for each id."""
    padding = pa.array([_PADDING] * len(ids), pa.binary())
    keys = pa.array(ids)
    if schema.field("id").type != keys.type:
        keys = pc.utf8_lpad(keys.cast(pa.string()), _DIGITS, "0")
    return pa.RecordBatch.from_arrays([keys, padding], schema=schema)


def create_stream(bus: Bus, key: str = "int") -> Stream:
    """Create the input, with keys of a type."""
    return bus.create(StreamSpec(STREAM, PARTITIONS, schema_of(key)), exist_ok=True)


def feed(stream: Stream, ids: npt.NDArray[np.int64]) -> None:
    """Append one message for each id, dealt to the partitions in turn."""
    piece = min(APPEND_ROWS, -(-len(ids) // PARTITIONS))
    for turn, begin in enumerate(range(0, len(ids), piece)):
        batch = batch_of(ids[begin : begin + piece], stream.spec.schema)
        stream.append(turn % PARTITIONS, batch)


def write_parquet(folder: Path, ids: npt.NDArray[np.int64], cuts: list[int]) -> None:
    """Write the same messages as Parquet files, one for each piece between two cuts."""
    folder.mkdir(parents=True)
    for number, (begin, end) in enumerate(pairwise(cuts)):
        table = pa.Table.from_batches([batch_of(ids[begin:end])])
        pq.write_table(table, folder / f"{number:04d}.parquet")


def counted(work: Job, bus: Bus, settings: Settings, state: JobState) -> int:
    """Return the sum of all counts, read from the segments that the manifests name."""
    graph = work.build()
    plan = make_plan(graph, bus, settings)
    stage = next(stage for stage in plan.stages if stage.keyed)
    store, root, files = stage.stores[0], settings.jobs_dir / graph.name, Files()
    if store.kind == COLUMNAR:
        batches = table_rows(state, root, store.name, files)
        return sum(pc.sum(batch.column("n.count")).as_py() for batch in batches)
    values = list(committed_entries(state, root, store.name, files).values())
    if any(isinstance(operator, Process) for operator in stage.operators):
        return sum(map(msgspec.msgpack.decode, values))
    return int(PartialCodec({"count": pa.int64()}).decode(values)["count"].sum())


BATCHES = 2
PYTHON_ROWS = 10_000
NATIVE_ROWS = 1_000_000
WARM_UP_ROWS = 1_000


def compare(folder: Path, messages: npt.NDArray[np.int64], master: str) -> dict[str, float]:
    """Return the rows a second of each way.

    Each reads a small file to warm up and then two of equal size, 10,000 rows for the ways
    that call Python for each key and a million for the one that does not, or what there is.

    Args:
        folder: a new one.
        messages: id of each.
        master: of the session, where there is none yet.
    """
    rates = {}
    for way in NATIVE_QUERIES:
        wanted = NATIVE_ROWS if way == NATIVE else PYTHON_ROWS
        each = max(1, min(wanted, (len(messages) - 1) // BATCHES))
        first = max(1, min(WARM_UP_ROWS, len(messages) - BATCHES * each))
        files = folder / way / "in"
        write_parquet(files, messages, [0, *(first + each * n for n in range(BATCHES + 1))])
        rates[way] = rate(master, way, files, folder / way)
    return rates


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


def measure_readwrite(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure and return the figures, by the names that ``--json`` prints.

    Args:
        options: ``rows``, ``ids``, ``store``, ``path``, ``tasks``, ``key``, ``whole``,
            ``epoch_rows``, ``compare``, ``master`` and ``home``; those left out have the
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
        key: ``int`` or ``string``.
        whole: send whole messages through ``partition_by``.
        epoch_rows: messages of an epoch, at most.
        master: of Spark.
    """
    max_rows = min(epoch_rows, len(messages) // 2)
    settings = bench_settings(home, tasks=tasks, max_rows=max_rows, bounded=True, master=master)
    work = counting_job(path, store, whole=whole, key=key)
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
    max_rows: int,
    bounded: bool,
    master: str = MASTER,
) -> Settings:
    """Return the settings of a run, on two cores unless the master says otherwise."""
    values = {
        "home": home,
        "spark.master": master,
        "job.tasks": tasks,
        "job.bounded": str(bounded).lower(),
        "epoch.max_rows": max(1, max_rows),
    }
    return load_settings(None, [f"{name}={value}" for name, value in values.items()], {})


WARM_UP = 5
KEYS = 10_000


def measure_idle(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure small epochs.

    Args:
        options: ``epochs``, ``tasks`` and ``home``; those left out have the defaults of the
            command.

    Returns:
        ``epoch_ms_p50``, ``epoch_ms_p95``, ``timings_ms`` (medians of an epoch's steps), and
        what was run.
    """
    home = Path(options.get("home") or ".headrace").absolute() / "bench"
    tasks = int(options.get("tasks") or 4)
    count = int(options.get("epochs") or 50)
    shutil.rmtree(home, ignore_errors=True)
    try:
        took_ms, epochs = _idle(home / "idle", tasks, count)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    steps = epochs[-1].timings_ms
    return {
        "epoch_ms_p50": round(statistics.median(took_ms), 1),
        "epoch_ms_p95": round(statistics.quantiles(took_ms, n=20)[-1], 1),
        "timings_ms": {
            step: round(statistics.median(e.timings_ms.get(step, 0.0) for e in epochs), 2)
            for step in steps
        },
        "tasks": tasks,
        "epochs": len(took_ms),
        "master": MASTER,
    }


def _idle(home: Path, tasks: int, count: int) -> tuple[list[float], list[EpochSummary]]:
    settings = bench_settings(home, tasks=tasks, max_rows=KEYS, bounded=False)
    control = JobControl()
    epochs: list[EpochSummary] = []

    def spin(coordinator: Coordinator) -> None:
        coordinator.advance()
        for _ in range(WARM_UP + count):
            summary = coordinator.advance(force=True)
            assert summary is not None
            epochs.append(summary)
        control.stop.set()

    with open_bus(settings.bus_dir) as bus:
        feed(create_stream(bus), random_ids(KEYS, KEYS))
        run_job(
            counting_job("message", "rocksdb"), settings, bus=bus, control=control, on_start=spin
        )
    kept = epochs[WARM_UP:]
    return [epoch.took_ms for epoch in kept], kept


def compare_tasks(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure what many tasks cost: the same messages with few and with many.

    Args:
        options: ``rows``, ``ids``, ``path``, ``few``, ``many`` and ``home``; those left out
            have the defaults of the command.

    Returns:
        ``epoch_ms_p50`` by number of tasks, their ``ratio``, and what was run.
    """
    home = Path(options.get("home") or ".headrace").absolute() / "bench"
    messages = random_ids(int(options.get("rows") or 4_000_000), int(options.get("ids") or 10**6))
    few, many = int(options.get("few") or 4), int(options.get("many") or 64)
    path = options.get("path") or "message"
    shutil.rmtree(home, ignore_errors=True)
    try:
        found = {
            tasks: measure(home / str(tasks), messages, path=path, store="rocksdb", tasks=tasks)
            for tasks in (few, many)
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)
    p50 = {tasks: run.epoch_ms_p50 for tasks, run in found.items()}
    return {
        "epoch_ms_p50": {str(tasks): round(ms, 1) for tasks, ms in p50.items()},
        "ratio": round(p50[many] / p50[few], 2),
        "rows_per_s": {str(tasks): round(run.rows_per_s) for tasks, run in found.items()},
        "rows": len(messages),
        "path": path,
        "master": MASTER,
    }
