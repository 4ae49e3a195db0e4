"""Joins with kept tables: rows of a stream with the row of their key, and tables with tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from headrace.graph.table_operators import IS_DELETED, JoinKept, JoinTables
from headrace.state.columnar.columns import Mask, Rows
from headrace.state.columnar.keys import TableKeys
from headrace.state.columnar.table import ColumnarTable
from headrace.task.chunk import Chunk, concatenated
from headrace.task.kept.rows import columns_of, last_rows
from headrace.task.node import Inlet, Node


def looked_up(
    table: ColumnarTable,
    keys: TableKeys,
    columns: Sequence[str],
    *,
    committed: bool = False,
) -> tuple[Rows, pa.RecordBatch]:
    """Return the row of each key among those found, -1 where there is none; and these rows."""
    found = table.get(keys, columns, committed=committed)
    rows = np.full(len(keys), -1)
    rows[found.index] = np.arange(len(found.index))
    return rows, found.values


def joined_columns(
    schema: pa.Schema,
    own: pa.RecordBatch,
    held: pa.RecordBatch,
    names: Mapping[str, str],
    places: pa.Array,
) -> pa.RecordBatch:
    """Return rows with columns of a table beside theirs.

    Args:
        schema: of the result.
        own: the rows.
        held: rows of the table.
        names: by new name, the columns of the table.
        places: the table's row for each row, null where it has none.
    """
    arrays = [
        held.column(names[name]).take(places) if name in names else own.column(name)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Ignored(Node):
    """Takes changes of a table that its reader looks up instead."""

    def push(self, chunk: Chunk) -> None:
        """Leave the rows."""


class JoinKeptNode(Node):
    """Looks rows of a stream up once all rows of the epoch are in the table.

    Args:
        operator: bound.
        table: as the other operator keeps it.
        columns: by new name, the columns of the table that later operators use.
        schema: of what leaves.
    """

    def __init__(
        self,
        operator: JoinKept,
        table: ColumnarTable,
        columns: Mapping[str, str],
        schema: pa.Schema,
    ) -> None:
        super().__init__(operator.name)
        self._table, self._columns, self._schema = table, dict(columns), schema
        self._stream, self._by = operator.inputs[0], operator.by
        self._keeps_all = operator.how == "left"
        self._held: list[Chunk] = []

    def inlet(self, upstream: str) -> Node:
        """Return what takes rows: those of the table are looked up instead."""
        return self if upstream == self._stream else Ignored(self.name)

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what one that failed has left is forgotten."""
        self._held = []

    def push(self, chunk: Chunk) -> None:
        """Hold rows until those of the table are in."""
        self._held.append(chunk)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Look up all rows of the epoch."""
        held, self._held = self._held, []
        for chunk in held:
            self._join(chunk)

    def _join(self, chunk: Chunk) -> None:
        layout = self._table.layout
        asked = columns_of(chunk.batch, self._by, layout.keys)
        keys, places = TableKeys.distinct(layout, asked)
        by_key, values = looked_up(self._table, keys, list(dict.fromkeys(self._columns.values())))
        rows = by_key[places]
        found = rows >= 0
        if not found.all():
            self.counts["unmatched"] += int(np.count_nonzero(~found))
        if found.all():
            taken = pa.array(rows)
        elif self._keeps_all:
            taken = pa.array(rows, mask=~found)
        else:
            chunk, taken = chunk.filter(found), pa.array(rows[found])
        if chunk.rows:
            batch = joined_columns(self._schema, chunk.batch, values, self._columns, taken)
            self.emit(chunk.with_batch(batch))


class JoinTablesNode(Node):
    """Sends the joined rows of the keys that changed in the epoch.

    Args:
        operator: bound.
        left: the first table.
        right: the second table.
        schema: of the joined rows.
    """

    def __init__(
        self, operator: JoinTables, left: ColumnarTable, right: ColumnarTable, schema: pa.Schema
    ) -> None:
        super().__init__(operator.name)
        self._how = operator.how
        self._first = operator.inputs[0]
        self._added = dict(operator.columns or ())
        self._left, self._right = left, right
        self._schema = schema
        self._changed: list[Chunk] = []

    def inlet(self, upstream: str) -> Node:
        """Return what takes the changes of either table."""
        table = self._left if upstream == self._first else self._right
        return Inlet(self, partial(self._note, table.layout.keys.names))

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what one that failed has left is forgotten."""
        self._changed = []

    def _note(self, keys: Sequence[str], chunk: Chunk) -> None:
        """Remember which keys changed."""
        own = columns_of(chunk.batch, keys, self._left.layout.keys)
        self._changed.append(chunk.with_batch(own))

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Send a row for each key that has one, or had one when the epoch began."""
        if not self._changed:
            return
        changed, self._changed = concatenated(self._changed), []
        keys, places = TableKeys.distinct(self._left.layout, changed.batch)
        last = last_rows(places, len(keys))
        left, lefts = looked_up(self._left, keys, self._left.layout.values.names)
        right, rights = looked_up(self._right, keys, list(self._added.values()))
        is_there = self._has_row(left >= 0, right >= 0)
        chosen = np.flatnonzero(is_there | self._had_row(keys))
        chosen = chosen[np.argsort(last[chosen])]
        gone = ~is_there[chosen]
        self.counts["deleted"] += int(np.count_nonzero(gone))
        columns = dict(zip(self._left.layout.keys.names, changed.batch.columns, strict=True))
        from_left = _places(left[chosen], gone)
        columns = {name: column.take(pa.array(last[chosen])) for name, column in columns.items()}
        columns |= {n: lefts.column(n).take(from_left) for n in lefts.schema.names}
        from_right = _places(right[chosen], gone)
        columns |= {n: rights.column(o).take(from_right) for n, o in self._added.items()}
        arrays = [columns[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(
            [*arrays, pa.array(gone)], [*self._schema.names, IS_DELETED]
        )
        self.emit(changed.derive(batch, last[chosen]))

    def _had_row(self, keys: TableKeys) -> Mask:
        """Say which keys had a joined row when the epoch began."""
        left, _ = looked_up(self._left, keys, (), committed=True)
        right, _ = looked_up(self._right, keys, (), committed=True)
        return self._has_row(left >= 0, right >= 0)

    def _has_row(self, left: Mask, right: Mask) -> Mask:
        if self._how == "full":
            return left | right
        return left if self._how == "left" else left & right


def _places(rows: Rows, gone: Mask) -> pa.Array:
    return pa.array(rows, mask=(rows < 0) | gone)
