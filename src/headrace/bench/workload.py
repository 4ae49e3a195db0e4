"""The paper's ReadWrite: messages with a uniform id and 100 bytes of padding, counted per id."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import StreamSpec
from headrace.config import Settings
from headrace.coordinator.deploy import make_plan
from headrace.coordinator.inspection.inspection import committed_entries
from headrace.coordinator.inspection.table_rows import table_rows
from headrace.coordinator.manifest import JobState
from headrace.files import Files
from headrace.graph import agg
from headrace.graph.builder import Graph
from headrace.graph.jobs import Job, job
from headrace.graph.operators import COLUMNAR, Process
from headrace.graph.stores import store as hr_store
from headrace.task.windows.partials import PartialCodec

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


def counting_job(path: str, store: str, name: str = "readwrite", *, whole: bool = False) -> Job:
    """Return the job that counts messages per id.

    Args:
        path: ``message``: a Python function per message; ``batch``: an aggregate over columns.
        store: ``rocksdb`` or ``memory``; ``columnar`` where the path is ``batch``.
        name: of the job.
        whole: send whole messages through ``partition_by``, not only the id.
    """

    @job(name)
    def readwrite(g: Graph) -> None:
        keyed = g.input(STREAM).partition_by("id")
        if whole:
            keyed = keyed.map_batches(_whole, returns=SCHEMA)
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
    if isinstance(stage.operators[0], Process):
        return sum(map(msgspec.msgpack.decode, values))
    return int(PartialCodec({"count": pa.int64()}).decode(values)["count"].sum())
