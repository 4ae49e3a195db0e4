"""``join_table``: columns of a broadcast store's row beside each message, a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.state.broadcast.table import BroadcastTable
from headrace.task.chunk import Chunk
from headrace.task.node import Node


class JoinNode(Node):
    """Looks up the rows of a table.

    Args:
        name: of the operator.
        table: of the process.
        on: columns of the messages, in the order of the table's key.
        columns: by new name, the columns of the table that later operators use.
        schema: of what leaves.
        keeps_all: whether messages without a match stay, with nulls.
    """

    def __init__(
        self,
        name: str,
        table: BroadcastTable,
        *,
        on: Sequence[str],
        columns: Mapping[str, str],
        schema: pa.Schema,
        keeps_all: bool,
    ) -> None:
        super().__init__(name)
        self._table, self._on, self._columns = table, list(on), dict(columns)
        self._schema, self._keeps_all = schema, keeps_all

    def push(self, chunk: Chunk) -> None:
        """Join a chunk."""
        rows = self._table.index.find([chunk.batch.column(name) for name in self._on])
        found = rows >= 0
        if found.all():
            places = pa.array(rows)
        elif self._keeps_all:
            places = pa.array(rows, mask=~found)
        else:
            chunk, places = chunk.filter(found), pa.array(rows[found])
        if chunk.rows:
            self.emit(chunk.with_batch(self._joined(chunk.batch, places)))

    def _joined(self, batch: pa.RecordBatch, places: pa.Array) -> pa.RecordBatch:
        held = self._table.batch
        arrays = [
            held.column(self._columns[name]).take(places)
            if name in self._columns
            else batch.column(name)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
