"""``in_order``: rows wait in a table for the watermark, and continue by event time.

**What counts.** A row is late, and not passed on, if it is behind the watermark of its own
partition at its own offset: so the log alone says which rows there are. The stage's watermark is
behind those of all rows to come. When it has come from V to W, all rows from V to before W are
there, and no others; they continue by event time, each as if the watermark were just at it. Of
equal times, rows are sorted by the record they were made of, and those of no one record by what is
in them. So what continues, and in which order for each key, follows from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.graph.operators import InOrder
from headrace.graph.windows import LATE_SIDE
from headrace.plan.stages import Stage
from headrace.records.keys import encode_columns, key_groups
from headrace.records.schema import TableLayout, normalise
from headrace.records.xxh64 import UInt64s
from headrace.runtime.chunk import UNKNOWN, Chunk, Ints, OriginIds, RowOrigins, concat_chunks
from headrace.runtime.node import Node
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.orders import NO_WATERMARK
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import gather

SEND_ROWS = 1 << 16
SOURCE, OFFSET, PLACE = "__source", "__offset", "__place"
"""The record that a row was made of, and its place among those of the epoch it came in."""

_OWN = pa.schema([(SOURCE, pa.int64()), (OFFSET, pa.int64()), (PLACE, pa.int64())])
_NEVER = 1 << 62
_NO_HASH = (pa.types.is_nested, pa.types.is_decimal, pa.types.is_duration)


def in_order_layouts(stage: Stage, operator: InOrder) -> dict[str, TableLayout]:
    """Return the layout of the table of rows that wait, by store."""
    return {operator.store.name: in_order_layout(stage, operator)}


def in_order_layout(stage: Stage, operator: InOrder) -> TableLayout:
    """Return the layout of the rows that wait: written at their event time, gone once passed on."""
    source = stage.schemas[operator.name]
    keys = pa.schema([source.field(name) for name in operator.keys])
    values = [column for column in source if column.name not in operator.keys]
    ttl_ms = 1 + stage.delays.get(operator.name, 0)
    return TableLayout(
        keys, pa.schema([*values, *_OWN]), ttl_ms=ttl_ms, by_event=True, repeats=True
    )


class InOrderNode(Node):
    """See the module.

    Args:
        operator: bound.
        table: of ``in_order_layout``.
        schema: of the rows.
        groups: number of key groups of the job.
        delay_ms: how far the node's watermark lags the one that rows came with.
        streams: of the job's inputs, by number.
    """

    @classmethod
    def of(cls, operator: InOrder, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        return cls(
            operator,
            build.table(operator.store.name),
            build.stage.schemas[operator.name],
            groups=build.runtime.key_groups,
            delay_ms=build.stage.delays[operator.name],
            streams=build.stage.origins,
        )

    def __init__(
        self,
        operator: InOrder,
        table: ColumnarTable,
        schema: pa.Schema,
        *,
        groups: int,
        delay_ms: int,
        streams: Sequence[str],
    ) -> None:
        super().__init__(operator.name)
        self._table, self._schema, self._groups = table, schema, groups
        self._origin = OriginIds(streams)
        self._keys, self._delay = list(operator.keys), delay_ms
        self._watermark = NO_WATERMARK
        self._fresh: list[Chunk] = []
        self._next = _NEVER

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what was passed while a partition was idle stays passed."""
        self._watermark, self._fresh = watermark, []

    def push(self, chunk: Chunk) -> None:
        """Keep rows that are not late."""
        assert chunk.times is not None
        is_late = chunk.times < chunk.seen(self._delay, self._watermark)
        if is_late.any():
            self.counts["late"] += int(np.count_nonzero(is_late))
            self.emit(chunk.filter(is_late), LATE_SIDE)
            chunk = chunk.filter(~is_late)
        if chunk.rows:
            self._fresh.append(chunk)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Pass on what the watermark has passed; store the other rows of the epoch."""
        before, self._watermark = self._watermark, max(watermark, self._watermark)
        due = list(self._stored(before, self._watermark))
        self._next = self._first_stored(self._watermark)
        if self._fresh:
            fresh, self._fresh = self._rows(concat_chunks(self._fresh)), []
            times = fresh.column(1).to_numpy()
            is_due = times < self._watermark
            if is_due.any():
                due.append(fresh.filter(pa.array(is_due)))
            if not is_due.all():
                self._table.append(fresh.filter(pa.array(~is_due)))
                self._next = min(self._next, int(times[~is_due].min()))
        if due:
            table = pa.Table.from_batches([batch.select(self._columns()) for batch in due])
            self._send(table.combine_chunks().to_batches()[0])

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the watermark has passed the first row that waits."""
        return None if self._next == _NEVER else self._next + 1, None

    def _columns(self) -> list[str]:
        return [*self._table.layout.schema.names[:2], *self._schema.names, *_OWN.names]

    def _rows(self, chunk: Chunk) -> pa.RecordBatch:
        """Return rows as the table has them, by hash."""
        layout, rows = self._table.layout, chunk.rows
        assert chunk.times is not None
        origins = chunk.origins or RowOrigins(
            np.full(rows, UNKNOWN, np.int32), np.full(rows, UNKNOWN, np.int64)
        )
        own = {
            SOURCE: self._origin.kept(origins.sources),
            OFFSET: origins.offsets,
            PLACE: np.arange(rows),
        }
        schema = pa.schema([*layout.keys, *layout.values])
        columns = [
            pa.array(own[field.name]) if field.name in own else chunk.batch.column(field.name)
            for field in schema
        ]
        batch = normalise(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)
        hashes = encode_columns(batch.columns[: len(layout.keys)]).hashes()
        order = np.argsort(hashes, kind="stable")
        arrays = [pa.array(hashes[order]), pa.array(chunk.times[order])]
        arrays += [gather(column, order) for column in batch.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=layout.schema)

    def _stored(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of this task that waited, from one event time to before another."""
        for run in self._table.runs:
            for piece, rows in run.written_between(begin, end):
                columns = [gather(column, rows) for column in piece.batch.columns]
                yield pa.RecordBatch.from_arrays(columns, names=piece.batch.schema.names)

    def _first_stored(self, begin: int) -> int:
        """Return the earliest event time, from one on, of a row that waits."""
        first = _NEVER
        for run in self._table.runs:
            for piece in run.pieces:
                if piece.written_span[1] >= begin:
                    times, _ = piece.by_written
                    first = min(first, int(times[np.searchsorted(times, begin)]))
        return first

    def _send(self, rows: pa.RecordBatch) -> None:
        hashes: UInt64s = rows.column(0).to_numpy()
        times: Ints = rows.column(1).to_numpy()
        sources = self._origin.known(rows.column(SOURCE).to_numpy())
        groups = key_groups(hashes, self._groups).astype(np.uint16)
        offsets = rows.column(OFFSET).to_numpy()
        ties = np.where(sources == UNKNOWN, self._content(rows, sources), offsets)
        order = np.lexsort((rows.column(PLACE).to_numpy(), ties, sources, times, groups))
        for begin in range(0, len(order), SEND_ROWS):
            own = order[begin : begin + SEND_ROWS]
            columns = [
                _as(gather(rows.column(field.name), own), field.type) for field in self._schema
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            origins = RowOrigins(sources[own], offsets[own])
            self.emit(Chunk(batch, times[own], times[own], groups[own], origins))

    def _content(
        self, rows: pa.RecordBatch, sources: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64] | int:
        """A number for what is in each row, to distinguish rows that are not of one record."""
        if sources.min() != UNKNOWN:
            return 0
        plain = [
            rows.column(column.name)
            for column in self._schema
            if not any(test(column.type) for test in _NO_HASH)
        ]
        return encode_columns(plain).hashes().view(np.int64)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type.equals(kind) else column.cast(kind)
