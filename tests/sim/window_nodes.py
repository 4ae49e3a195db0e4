"""The node of a window alone, fed by hand: a hundred logs in the time that a job takes for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from tests.sim.window_model import NO_WATERMARK, PARTITIONS, Record, marked

import headrace as hr
from headrace.graph.operators import StoreSpec, WindowAggregate
from headrace.graph.windows import Window
from headrace.runtime.chunk import Chunk
from headrace.runtime.node import Node
from headrace.runtime.orders import END_WATERMARK
from headrace.runtime.windows.aggregation import Aggregation
from headrace.runtime.windows.builder import window_node
from headrace.runtime.windows.layouts import kept_aggregates
from headrace.runtime.windows.partial_table import ColumnarPartials, partial_layout
from headrace.state.columnar_table import ColumnarTable

SOURCE = pa.schema([("k", pa.string()), ("v", pa.int64())])
_MOMENT = pa.timestamp("us", tz="UTC")


class Sink(Node):
    """Keeps what comes."""

    def __init__(self) -> None:
        super().__init__("sink")
        self.rows: list[dict[str, Any]] = []
        self.times: list[int] = []

    def push(self, chunk: Chunk) -> None:
        """Keep rows and times."""
        self.rows += chunk.batch.to_pylist()
        assert chunk.times is not None
        self.times += chunk.times.tolist()


class Ran(NamedTuple):
    """What a node sent of a log, how many records it found late, and how many rows it keeps."""

    sink: Sink
    late: int
    left: int


def run(window: Window, log: Sequence[Record], lateness: int, cuts: Sequence[int]) -> Ran:
    """Bring a log to the node of a window in epochs, and end the inputs."""
    node, table, sink = _made(window)
    marks, highest, before, late = marked(log, lateness), dict[int, int](), NO_WATERMARK, 0
    for begin, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        part = marks[begin:end]
        for record, _ in part:
            highest[record.partition] = max(record.at, highest.get(record.partition, record.at))
        known = [highest[p] - lateness for p in highest]
        watermark = min(known) if len(known) == PARTITIONS else NO_WATERMARK
        late += _epoch(node, part, before, watermark)
        before = max(before, watermark)
    late += _epoch(node, [], before, END_WATERMARK)
    left = sum(rows.height for rows in table.scan(NO_WATERMARK, (1 << 63) - 2))
    return Ran(sink, late, left)


def _epoch(node: Node, part: Any, before: int, watermark: int) -> int:
    node.counts.clear()
    node.begin(1, 0, before)
    for partition in range(PARTITIONS):
        rows = [(record, mark) for record, mark in part if record.partition == partition]
        if rows:
            arrays = [
                pa.array([r.key for r, _ in rows], pa.string()),
                pa.array([r.value for r, _ in rows]),
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=SOURCE)
            times, marks = np.array([(record.at, mark) for record, mark in rows]).T
            node.push(Chunk(batch, times, marks, np.zeros(len(rows), np.uint16)))
    node.advance(watermark, 0)
    due = node.deadlines()[0]
    assert due is None or due > watermark, "what is due at a watermark is done with it"
    return node.counts["late"]


def _made(window: Window) -> tuple[Node, ColumnarPartials, Sink]:
    assert not window.mistakes
    bag: Any = hr.agg.monoid(
        [], lambda v: [v], lambda a, b: sorted([*a, *b]), returns=list[int], columns="v"
    )
    own = (("n", hr.agg.count().bind(SOURCE)), ("bag", bag.bind(SOURCE)))
    operator = WindowAggregate("w", ("in",), window=window, aggregates=own, store=StoreSpec("w"))
    aggregation = Aggregation("w", *kept_aggregates(operator, SOURCE))
    layout = partial_layout(aggregation, pa.schema([SOURCE.field("k")]), buckets=True)
    table = ColumnarPartials(ColumnarTable(layout), aggregation)
    fields = [SOURCE.field("k"), *((head, _MOMENT) for head in window.heads)]
    fields += [("n", pa.int64()), ("bag", pa.list_(pa.int64()))]
    fields += [(flag, pa.bool_()) for flag in window.flags]
    common = ("w", aggregation, table, pa.schema(fields), 8)
    node, sink = window_node(window, common, 0, timed=True), Sink()
    node.targets.append(sink)
    return node, table, sink
