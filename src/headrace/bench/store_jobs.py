"""The cases of ``headrace bench stores``, and the paper's two jobs over any store.

Jobs are plain for rates, and carry time marks for latencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.bench.readwrite import PARTITIONS, STREAM
from headrace.bus import Bus, Stream, StreamSpec
from headrace.graph import agg
from headrace.graph.builder import Graph, Job, job
from headrace.graph.operators import StoreSpec
from headrace.graph.shared_stores import Access, Remote, broadcast
from headrace.graph.stores import store

Workload = Literal["readwrite", "readonly"]
WORKLOADS: tuple[Workload, ...] = ("readwrite", "readonly")
DELAY_MS = 0.5
"""Added to a remote store each way, so twice to a round trip."""


@dataclass(frozen=True)
class Case:
    """One kind of store.

    Args:
        name: on the command line and in the JSON.
        label: in figures.
        kind: of the store.
        changelog: whether its changes are logged.
        is_cached: whether values and blocks are kept in memory.
        access: of a remote store.
        delay_ms: added to a remote store each way.
        speed: rows a second to expect, about: decides how many rows a run takes.
    """

    name: str
    label: str
    kind: str
    speed: int
    changelog: bool = True
    is_cached: bool = True
    access: Access = "batched"
    delay_ms: float = 0.0

    @property
    def is_remote(self) -> bool:
        """Say whether it is on a server."""
        return self.kind == "remote"

    @property
    def is_batch(self) -> bool:
        """Say whether it works on columns, and not on one message after the other."""
        return self.kind == "columnar"


CASES = (
    Case("memory", "in-memory", "memory", 500_000, changelog=False),
    Case("memory-log", "in-memory + CLog", "memory", 450_000),
    Case("disk", "on-disk", "rocksdb", 450_000, changelog=False),
    Case("disk-log", "on-disk + CLog", "rocksdb", 400_000),
    Case("disk-no-cache", "on-disk no cache", "rocksdb", 200_000, False, is_cached=False),
    Case("columnar", "columnar + CLog", "columnar", 4_000_000),
    Case("remote-batched", "remote, batched", "remote", 150_000),
    Case("remote-async", "remote, async", "remote", 80_000, access="async"),
    Case("remote-blocking", "remote, blocking", "remote", 8_000, access="blocking"),
    Case("far-batched", "remote + 0.5 ms, batched", "remote", 120_000, delay_ms=DELAY_MS),
    Case("far-async", "remote + 0.5 ms, async", "remote", 70_000, True, True, "async", DELAY_MS),
    Case("far-blocking", "remote + 0.5 ms, blocking", "remote", 700, True, True, "blocking", 0.5),
)
BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Args:
        ids: different keys.
        seconds: that a rate is measured over, about.
        latency_seconds: the same for each of both latencies.
        epoch_rows: of an epoch, at most.
        repeats: how often a rate is measured; the middle one counts.
        offered: rows a second that are appended for the latency a user sees; half of what a
            store reaches where that is less.
    """

    ids: int
    seconds: float
    latency_seconds: float
    epoch_rows: int
    repeats: int = 1
    offered: int = 10_000

    def rows(self, case: Case, seconds: float) -> int:
        """Return how many rows a case is given for a time."""
        return max(2_000, int(case.speed * seconds))


FULL = Size(ids=1_000_000, seconds=4.0, latency_seconds=3.0, epoch_rows=1_000_000, repeats=3)
QUICK = Size(ids=50_000, seconds=0.4, latency_seconds=0.3, epoch_rows=200_000)
EPOCHS = 5
"""The least number of epochs of a run; the first warms up and is not measured."""


JOB, OUTPUT, TABLE = "stores", "joined", "values"
NAMESPACE = "bench:"
PADDING_BYTES: dict[Workload, int] = {"readwrite": 100, "readonly": 130}
PART = 30
"""Bytes of a message's padding that ReadOnly sends on."""

APPEND_ROWS = 100_000
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("padding", pa.binary())])
JOINED = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("part", pa.binary())])
ABSENT = -1
"""The value of a message that fills no store."""

MARKS: list[int] = []
"""Of this process: when a chunk was fetched, negative, and when each message was done, ns."""

SPANS: list[int] = []
"""Of this process: how long each message took that others overtake, ns."""


class ReadWrite:
    """Read, add one, write."""

    def process(self, message: Any, context: Any) -> None:
        """Count a message."""
        counts = context.store("n")
        counts.put(message.id, counts.get(message.id, 0) + 1)


class ReadWriteLater:
    """The same with many requests under way."""

    def process(self, message: Any, context: Any) -> None:
        """Ask for a count, and count when it is there."""
        key, counts = message.id, context.store("n")
        context.get_later("n", key, lambda count: counts.put(key, count + 1), 0)


class ReadOnly:
    """Read, join, send on; a message with a value fills the store."""

    def process(self, message: Any, context: Any) -> None:
        """Join a message."""
        if message.value == ABSENT:
            value = context.store("n").get(message.id, 0)
            context.emit((message.id, value, message.padding[:PART]))
        else:
            context.store("n").put(message.id, message.value)


class ReadOnlyLater:
    """The same with many requests under way, from a store that is full."""

    def process(self, message: Any, context: Any) -> None:
        """Ask for a value, and join when it is there."""
        one, part = message.id, message.padding[:PART]
        context.get_later("n", one, lambda value: context.emit((one, value, part)), 0)


PROCESSORS: dict[Workload, tuple[type, type]] = {
    "readwrite": (ReadWrite, ReadWriteLater),
    "readonly": (ReadOnly, ReadOnlyLater),
}


class Marked:
    """Notes when each message is done.

    Args:
        inner: what does the work.
    """

    def __init__(self, inner: Any) -> None:
        self._work, self._mark = inner.process, MARKS.append

    def process(self, message: Any, context: Any) -> None:
        """Do the work, then note the time."""
        self._work(message, context)
        self._mark(perf_counter_ns())


class Spanned:
    """Notes how long each message takes from its call to its answer's."""

    def __init__(self, inner: Any) -> None:
        self._work = inner.process

    def process(self, message: Any, context: Any) -> None:
        """Do the work with a context that notes the end of each answer."""
        self._work(message, _SpannedContext(context, perf_counter_ns()))


class _SpannedContext:
    def __init__(self, context: Any, began: int) -> None:
        self._context, self._began = context, began
        self.store, self.emit = context.store, context.emit

    def get_later(
        self, name: str, key: Any, then: Callable[[Any], object], default: Any = None
    ) -> None:
        def noted(value: Any) -> None:
            then(value)
            SPANS.append(perf_counter_ns() - self._began)

        self._context.get_later(name, key, noted, default)


def note_fetch(frame: pl.DataFrame, folder: Path) -> pl.DataFrame:
    """Write the marks of the chunk before to ``folder``, and mark that this one is there."""
    for name, marks in (("marks", MARKS), ("spans", SPANS)):
        if marks:
            np.save(folder / f"{name}-{perf_counter_ns()}.npy", np.asarray(marks, np.int64))
            marks.clear()
    MARKS.append(-perf_counter_ns())
    return frame


def make_job(
    case: Case, workload: Workload, *, url: str | None = None, marks: Path | None = None
) -> Job:
    """Return the job of a workload over a store.

    Args:
        case: which store.
        workload: which job.
        url: of the server, where it is remote.
        marks: folder for what is noted about each message; ``None``: nothing is.
    """

    @job(JOB)
    def stores(g: Graph) -> None:
        messages = g.input(STREAM)
        if case.is_batch:
            _columns(g, messages, workload)
            return
        keyed = messages.partition_by("id")
        if marks is not None:
            keyed = keyed.map_batches(partial(note_fetch, folder=marks), returns=SCHEMA)
        later = case.access == "async"
        factory: Callable[[], Any] = PROCESSORS[workload][later]
        if marks is not None:
            outer, inner = (Spanned if later else Marked), factory
            factory = partial(_wrapped, outer, inner)
        uses = ["id"] if workload == "readwrite" else None
        spec = _store(case, url)
        if workload == "readwrite":
            keyed.process(factory, [spec], uses=uses)
            return
        keyed.process(factory, [spec], returns=JOINED).send_to(g.output(OUTPUT, PARTITIONS))

    return stores


def _wrapped(outer: type, inner: Callable[[], Any]) -> Any:
    return outer(inner())


def _columns(g: Graph, messages: Any, workload: Workload) -> None:
    if workload == "readwrite":
        messages.partition_by("id").aggregate(store="columnar", n=agg.count())
        return
    table = broadcast(TABLE, key="id", stream=TABLE)
    joined = messages.map("id", "padding").join_table(table, on="id")
    part = pl.col("padding").bin.slice(0, PART).alias("part")
    joined.map("id", "value", part).send_to(g.output(OUTPUT, PARTITIONS))


def _store(case: Case, url: str | None) -> StoreSpec:
    if not case.is_remote:
        return store("n", int, case.kind, changelog=case.changelog)
    # Each epoch asks the server again, as if others had written meanwhile.
    remote = Remote(access=case.access, namespace=NAMESPACE, cache="0s")
    return store("n", int, "remote", url=url, remote=remote)


def messages_of(
    ids: npt.NDArray[np.int64], workload: Workload, values: npt.NDArray[np.int64] | None = None
) -> pa.RecordBatch:
    """Return one message for each id; with values, such as fill a store."""
    size = PADDING_BYTES[workload] if values is None else 0
    padding = pa.array([b"p" * size] * len(ids), pa.binary())
    given = np.full(len(ids), ABSENT, np.int64) if values is None else values
    return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(given), padding], schema=SCHEMA)


def create_streams(bus: Bus, case: Case, workload: Workload) -> Stream:
    """Create the inputs and return that of the messages."""
    if case.is_batch and workload == "readonly":
        table = pa.schema([("id", pa.int64()), ("value", pa.int64())])
        bus.create(StreamSpec(TABLE, 1, table, key=("id",)))
    return bus.create(StreamSpec(STREAM, PARTITIONS, SCHEMA))


def feed(stream: Stream, ids: npt.NDArray[np.int64], workload: Workload) -> None:
    """Append one message for each id, dealt to the partitions in turn."""
    piece = min(APPEND_ROWS, -(-len(ids) // PARTITIONS))
    for turn, begin in enumerate(range(0, len(ids), piece)):
        stream.append(turn % PARTITIONS, messages_of(ids[begin : begin + piece], workload))


def fill(bus: Bus, stream: Stream, case: Case, ids: int) -> int:
    """Append what fills a local store with a value for every id; returns how many messages."""
    keys = np.arange(1, ids + 1, dtype=np.int64)
    values = np.random.default_rng(2).integers(0, 1 << 40, ids, np.int64)
    if case.is_batch:
        table = pa.RecordBatch.from_arrays(
            [pa.array(keys), pa.array(values)], schema=bus.stream(TABLE).spec.schema
        )
        bus.stream(TABLE).append(0, table)
        return 0
    # As many in each partition, so that all are read before the first other message.
    pieces = PARTITIONS * -(-ids // (PARTITIONS * APPEND_ROWS))
    for turn, rows in enumerate(np.array_split(np.arange(ids), pieces)):
        batch = messages_of(keys[rows], "readonly", values[rows])
        stream.append(turn % PARTITIONS, batch)
    return ids
