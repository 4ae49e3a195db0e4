"""``join(as_of="event")``: rows wait for event time, and take the version that held at theirs.

A row at time t that comes behind the watermark w of its own partition is looked up as of
max(t, w - history), for versions go that are no longer needed so far back. That is its moment.
It leaves once the watermark is past it: what holds there is final then, see ``versions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.graph.table_operators import JoinKept
from headrace.plan.stages import TIME, WATERMARK, Stage
from headrace.records.keys import encode_columns, hash_within, key_groups
from headrace.records.layout import CLUSTER, HASH, TableLayout
from headrace.state.columnar.columns import numbers
from headrace.state.columnar.keys import TableKeys
from headrace.state.columnar.table import ColumnarTable
from headrace.task.chunk import Chunk, Ints, concatenated
from headrace.task.kept.joins import Ignored, joined_columns
from headrace.task.kept.rows import columns_of
from headrace.task.kept.versions import Versions, seen_by
from headrace.task.node import Node
from headrace.task.orders import END_WATERMARK, NO_WATERMARK

NUMBER = "__number"
"""Tells rows of one key apart, in the order in which they came."""


def waiting_layouts(stage: Stage) -> dict[str, TableLayout]:
    """Return the layouts of all tables of rows that wait in a stage, by store."""
    return {
        operator.waiting.name: _layout(stage, operator)
        for operator in stage.operators
        if isinstance(operator, JoinKept) and operator.waiting is not None
    }


def _layout(stage: Stage, operator: JoinKept) -> TableLayout:
    """Rows by their moment; one is gone once the watermark was past it, for it has left then."""
    source = stage.schemas[operator.inputs[0]]
    keys = [source.field(name) for name in operator.by]
    values = [field for field in source if field.name not in operator.by]
    hidden = [pa.field(TIME, pa.int64()), pa.field(WATERMARK, pa.int64())]
    return TableLayout(
        pa.schema([*keys, pa.field(NUMBER, pa.int64())]),
        pa.schema([*values, *hidden]),
        cluster=True,
        ttl_ms=1 + stage.delays.get(operator.name, 0),
        by_event=True,
    )


def without_hidden(layout: TableLayout) -> TableLayout:
    """Return the layout with the columns that users know, to show rows of."""
    hidden = (NUMBER, TIME, WATERMARK)
    keys, values = (
        pa.schema([field for field in schema if field.name not in hidden])
        for schema in (layout.keys, layout.values)
    )
    return replace(layout, keys=keys, values=values)


class JoinVersionsNode(Node):
    """Holds rows until the watermark is past them, and joins them then.

    Args:
        operator: bound.
        table: with versions.
        waiting: of the rows that wait.
        columns: by new name, the columns of the table that later operators use.
        source: of the rows.
        schema: of what leaves.
        history_ms: of the table.
        delay_ms: how far the node's watermark lags the one that rows came with.
        key_groups: of the job.
    """

    def __init__(  # noqa: PLR0913 - each is a fact of its own, by name
        self,
        operator: JoinKept,
        table: ColumnarTable,
        waiting: ColumnarTable,
        *,
        columns: Mapping[str, str],
        source: pa.Schema,
        schema: pa.Schema,
        history_ms: int,
        delay_ms: int,
        key_groups: int,
    ) -> None:
        super().__init__(operator.name)
        self._table, self._waiting = table, waiting
        self._columns, self._source, self._schema = dict(columns), source, schema
        self._stream, self._by = operator.inputs[0], operator.by
        self._keeps_all = operator.how == "left"
        self._history, self._delay, self._groups = history_ms, delay_ms, key_groups
        self._epoch, self._watermark = 0, NO_WATERMARK
        self._due: int | None = None
        self._held: list[Chunk] = []

    def inlet(self, upstream: str) -> Node:
        """Return what takes rows: those of the table are looked up instead."""
        return self if upstream == self._stream else Ignored(self.name)

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what one that failed has left is forgotten."""
        self._epoch, self._watermark, self._held = epoch, watermark, []

    def push(self, chunk: Chunk) -> None:
        """Hold rows until all of the epoch are in."""
        self._held.append(chunk)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Join the rows whose moments the watermark is past; the others wait."""
        ready = []
        if self._watermark < watermark:
            ready = self._rows_due(watermark)
        if self._held:
            held, self._held = concatenated(self._held), []
            moments = self._moments(held)
            is_due = moments < watermark
            if is_due.any():
                ready.append((held.filter(is_due), moments[is_due]))
            if not is_due.all():
                self._wait(held, moments, np.flatnonzero(~is_due))
        if ready:
            moments = np.concatenate([own for _, own in ready])
            self._join(*_in_order(concatenated([chunk for chunk, _ in ready]), moments))
        self._due = self._waiting.first_cluster(max(watermark, self._watermark))

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return the watermark that the next row waits for."""
        return None if self._due is None else self._due + 1, None

    def _moments(self, chunk: Chunk) -> Ints:
        assert chunk.times is not None
        seen = seen_by(chunk, self._delay, self._watermark)
        moments = np.maximum(chunk.times, seen - self._history)
        self.counts["late"] += int(np.count_nonzero(moments > chunk.times))
        return moments

    def _rows_due(self, watermark: int) -> list[tuple[Chunk, Ints]]:
        """Return the rows that waited and are due, by their moments and as they came."""
        begin = None if self._watermark <= NO_WATERMARK else self._watermark
        below = None if watermark >= END_WATERMARK else watermark
        found = list(self._waiting.scan(cluster_from=begin, cluster_below=below))
        if not found:
            return []
        batch = pa.concat_batches(found)
        moments = numbers(batch.column(CLUSTER), np.int64)
        order = np.lexsort((numbers(batch.column(NUMBER), np.int64), moments))
        batch = batch.take(pa.array(order))
        groups = key_groups(numbers(batch.column(HASH), np.uint64), self._groups)
        chunk = Chunk(
            batch.select(self._source.names),
            numbers(batch.column(TIME), np.int64),
            numbers(batch.column(WATERMARK), np.int64),
            groups.astype(np.uint16),
        )
        return [(chunk, moments[order])]

    def _wait(self, chunk: Chunk, moments: Ints, rows: Ints) -> None:
        own, layout = chunk.take(rows), self._waiting.layout
        numbered = pa.array((self._epoch << 32) + np.arange(own.rows))
        columns = [*own.batch.select(self._by).columns, numbered]
        keys = pa.RecordBatch.from_arrays(columns, schema=layout.keys)
        whole = encode_columns(keys.columns).hashes()
        hashes = hash_within(encode_columns(keys.columns[:-1]).hashes(), whole)
        held = TableKeys.of(layout, keys, moments[rows], hashes)
        hidden = {TIME: own.times, WATERMARK: own.watermarks}
        values = [
            pa.array(hidden[name]) if name in hidden else own.batch.column(name)
            for name in layout.values.names
        ]
        batch = pa.RecordBatch.from_arrays(values, schema=layout.values)
        order = held.order
        self._waiting.put(held, batch.take(pa.array(order)), moments[rows][order])

    def _join(self, chunk: Chunk, moments: Ints) -> None:
        layout = self._table.layout
        asked = columns_of(chunk.batch, self._by, layout.keys)
        keys, places = TableKeys.distinct(layout, asked)
        names = list(dict.fromkeys(self._columns.values()))
        versions = Versions.of(self._table, keys, names)
        rows = versions.at(places, moments)
        found = rows >= 0
        self.counts["unmatched"] += int(np.count_nonzero(~found))
        if not self._keeps_all and not found.all():
            chunk, rows, found = chunk.filter(found), rows[found], found[found]
        if chunk.rows:
            held = pa.RecordBatch.from_arrays(versions.columns, names=names)
            taken = pa.array(rows, mask=~found)
            batch = joined_columns(self._schema, chunk.batch, held, self._columns, taken)
            self.emit(chunk.with_batch(batch))


def _in_order(chunk: Chunk, moments: Ints) -> tuple[Chunk, Ints]:
    """Return rows by their moments; of one moment as they came."""
    if (moments[1:] >= moments[:-1]).all():
        return chunk, moments
    order = np.argsort(moments, kind="stable")
    return chunk.take(order), moments[order]
