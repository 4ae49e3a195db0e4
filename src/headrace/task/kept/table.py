"""``table``: puts the last row of each key into a columnar table, and sends what changes on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.graph.table_operators import IS_DELETED, KeepTable
from headrace.state.columnar.columns import Mask, Rows
from headrace.state.columnar.keys import TableKeys
from headrace.state.columnar.table import ColumnarTable
from headrace.task.chunk import Chunk
from headrace.task.kept.rows import all_null, any_null, last_rows
from headrace.task.node import Node


class KeepTableNode(Node):
    """Keeps the last row of each key.

    Args:
        operator: with the key, and the columns that are null in a row that deletes.
        table: of ``kept_layout``.
        sends: whether changes are read.
    """

    def __init__(self, operator: KeepTable, table: ColumnarTable, *, sends: bool) -> None:
        super().__init__(operator.name)
        self._table, self._sends = table, sends
        self._keys, self._values = list(operator.keys), list(operator.values)

    def push(self, chunk: Chunk) -> None:
        """Take rows, the later ones over the earlier."""
        chunk = whole_keys(self, chunk, self._keys)
        if not chunk.rows:
            return
        batch, table = chunk.batch, self._table
        keys, places = TableKeys.distinct(table.layout, batch.select(self._keys))
        is_dead = deleting(batch, self._values)
        was_there = self._known(keys, places, is_dead)
        if self._sends:
            self._send(chunk, places, is_dead, was_there)
        last = last_rows(places, len(keys))
        dead = is_dead[last]
        alive = np.flatnonzero(~dead)
        if len(alive):
            own = keys if len(alive) == len(keys) else keys.select(alive)
            values = batch.select(table.layout.values.names)
            table.put(own, values.take(pa.array(last[alive])))
        gone = np.flatnonzero(dead & was_there)
        if len(gone):
            table.delete(keys.select(gone))
        self.counts["deleted"] += len(gone)

    def _known(self, keys: TableKeys, places: Rows, is_dead: Mask) -> Mask:
        """Say which keys that are deleted the table has."""
        found = np.zeros(len(keys), bool)
        if is_dead.any():
            asked = np.unique(places[is_dead])
            found[asked[self._table.get(keys.select(asked), ()).index]] = True
        return found

    def _send(self, chunk: Chunk, places: Rows, is_dead: Mask, was_there: Mask) -> None:
        """Send rows on; deletions of what is not there change nothing."""
        changes = ~is_dead
        if is_dead.any():
            order = np.argsort(places, kind="stable")
            own = places[order]
            before = was_there[own]
            follows = np.flatnonzero(own[1:] == own[:-1]) + 1
            before[follows] = ~is_dead[order[follows - 1]]
            changes[order] |= before
        names = [*self._keys, *self._table.layout.values.names]
        columns = dict(zip(names, chunk.batch.select(names).columns, strict=True))
        flagged = [columns[name] for name in chunk.batch.schema.names if name in columns]
        shown = [name for name in chunk.batch.schema.names if name in columns]
        batch = pa.RecordBatch.from_arrays([*flagged, pa.array(is_dead)], [*shown, IS_DELETED])
        self.emit(chunk.with_batch(batch).filter(changes))


def whole_keys(node: Node, chunk: Chunk, keys: list[str]) -> Chunk:
    """Return the rows that have a key; those with null in it are counted and passed over."""
    lacking = any_null(chunk.batch.select(keys).columns)
    if not lacking.any():
        return chunk
    node.counts["without_key"] += int(np.count_nonzero(lacking))
    return chunk.filter(~lacking)


def deleting(batch: pa.RecordBatch, values: list[str]) -> Mask:
    """Say which rows delete: by their flag, where they are changes of another table."""
    if IS_DELETED in batch.schema.names[-1:] and IS_DELETED not in values:
        found: Mask = batch.column(IS_DELETED).to_numpy(zero_copy_only=False)
        return found
    return all_null(batch.select(values).columns, batch.num_rows)
