"""``table``: the last row of each key, in a columnar table; or its versions, by event time.

What changes is sent on. ``ktable_joins`` looks rows up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.graph.operators import IS_DELETED, KeepTable
from headrace.plan.stages import Stage
from headrace.records.schema import TableLayout
from headrace.runtime.chunk import Chunk, Ints, concat_chunks
from headrace.runtime.node import Node
from headrace.runtime.orders import NO_WATERMARK
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import Mask, Rows, TableKeys, any_null, flags


def ktable_layout(stage: Stage, operator: KeepTable) -> TableLayout:
    """Return the layout of a table: its key, and all other columns."""
    source = stage.schemas[operator.inputs[0]]
    keys = pa.schema([source.field(name) for name in operator.keys])
    values = [field for field in source if field.name not in operator.keys]
    return TableLayout(keys, pa.schema(values))


def columns_of(batch: pa.RecordBatch, names: Sequence[str], like: pa.Schema) -> pa.RecordBatch:
    """Return some columns under the names that a table has for them."""
    return pa.RecordBatch.from_arrays([batch.column(name) for name in names], like.names)


def last_rows(places: Rows, count: int) -> Rows:
    """Return the last row of each key, by its place, of which each has one; shape (count,)."""
    last = np.empty(count, np.int64)
    last[places] = np.arange(len(places))  # of several to one place the last is kept
    return last


def all_null(columns: Sequence[pa.Array], rows: int) -> Mask:
    """Say in which rows all columns are null; in none where there is no column."""
    found = np.full(rows, bool(columns))
    for column in columns:
        if not found.any():
            break
        found &= _nulls(column)
    return found


def _nulls(column: pa.Array) -> Mask:
    return flags(column.is_null()) if column.null_count else np.zeros(len(column), bool)


class KTableNode(Node):
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
        return flags(batch.column(IS_DELETED))
    return all_null(batch.select(values).columns, batch.num_rows)


FROM, GONE = "__from", "__gone"
"""Columns of lists beside those of the rows: when a version begins to hold, and if it deletes."""

_GOLDEN = 0x9E3779B97F4A7C15
_SWEEP_AFTER = 64


def version_layout(stage: Stage, operator: KeepTable) -> TableLayout:
    """Return the layout of a table with a history: its key, and lists of versions by column."""
    source = stage.schemas[operator.inputs[0]]
    keys = pa.schema([source.field(name) for name in operator.keys])
    own = [field for field in source if field.name not in operator.keys]
    lists = [pa.field(FROM, pa.list_(pa.int64())), pa.field(GONE, pa.list_(pa.bool_()))]
    lists += [pa.field(field.name, pa.list_(field.type)) for field in own]
    return TableLayout(keys, pa.schema(lists))


class RowVersions:
    """Versions of some keys, one after the other.

    Args:
        places: of the key of each version, rising; shape (n,).
        begins: from when each holds, ms; shape (n,), rising for each key.
        gone: which delete; shape (n,).
        columns: of the rows, each of shape (n,).
    """

    def __init__(self, places: Rows, begins: Ints, gone: Mask, columns: Sequence[pa.Array]) -> None:
        self.places, self.begins, self.gone, self.columns = places, begins, gone, columns

    @classmethod
    def of(cls, table: ColumnarTable, keys: TableKeys, names: Sequence[str]) -> RowVersions:
        """Look up the versions of keys."""
        found = table.get(keys, [FROM, GONE, *names])
        return cls.in_rows(found.values, names, found.index)

    @classmethod
    def in_rows(
        cls, rows: pa.RecordBatch, names: Sequence[str], places: Rows | None = None
    ) -> RowVersions:
        """Return the versions in rows of a table, whose places are given, or count from 0."""
        lists = [rows.column(name) for name in (FROM, GONE, *names)]
        lengths = lists[0].value_lengths().to_numpy(zero_copy_only=False)
        begins, gone, *columns = (column.flatten() for column in lists)
        return cls(
            np.repeat(np.arange(rows.num_rows) if places is None else places, lengths),
            begins.to_numpy(),
            gone.to_numpy(zero_copy_only=False),
            columns,
        )

    def at(self, places: Rows, moments: Ints) -> Rows:
        """Return which version holds for each place at each moment; -1: none."""
        low = np.searchsorted(self.places, places)
        first = low.copy()
        high = np.searchsorted(self.places, places, side="right")
        while (open_ := np.flatnonzero(low < high)).size:
            middle = (low[open_] + high[open_]) >> 1
            holds = self.begins[middle] <= moments[open_]
            low[open_] = np.where(holds, middle + 1, low[open_])
            high[open_] = np.where(holds, high[open_], middle)
        rows = low - 1
        there = rows >= first
        there[there] = ~self.gone[rows[there]]
        return np.where(there, rows, -1)

    def followed_by(self, other: RowVersions) -> RowVersions:
        """Return these and others, in order; of the same key and moment the other's last."""
        places = np.concatenate([self.places, other.places])
        begins = np.concatenate([self.begins, other.begins])
        gone = np.concatenate([self.gone, other.gone])
        columns = [
            pa.concat_arrays([mine, theirs])
            for mine, theirs in zip(self.columns, other.columns, strict=True)
        ]
        made = RowVersions(places, begins, gone, columns)
        order = np.lexsort((begins, places))  # stable: those that came later stay behind
        own, at = places[order], begins[order]
        last = np.ones(len(order), bool)
        last[:-1] = (own[1:] != own[:-1]) | (at[1:] != at[:-1])
        return made.take(order[last])

    def since(self, horizon: int, watermark: int) -> RowVersions:
        """Return what holds at ``horizon`` and later.

        That nothing was there needs no version, once the watermark says that none can come before.
        """
        follows = np.zeros(len(self.places), bool)
        follows[:-1] = (self.places[1:] == self.places[:-1]) & (self.begins[1:] <= horizon)
        kept = self.take(np.flatnonzero(~follows))
        first = np.ones(len(kept.places), bool)
        first[1:] = kept.places[1:] != kept.places[:-1]
        is_nothing = first & kept.gone & (kept.begins <= watermark)
        return kept.take(np.flatnonzero(~is_nothing)) if is_nothing.any() else kept

    def take(self, rows: Rows) -> RowVersions:
        """Return some of them, in the order given."""
        taken = pa.array(rows)
        columns = [column.take(taken) for column in self.columns]
        return RowVersions(self.places[rows], self.begins[rows], self.gone[rows], columns)

    def lists(self, count: int, schema: pa.Schema) -> tuple[Rows, pa.RecordBatch]:
        """Return the places of keys that have any, of ``count``, and their lists."""
        counts = np.bincount(self.places, minlength=count)
        kept = np.flatnonzero(counts)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts[kept])]).astype(np.int32))
        columns = [pa.array(self.begins), pa.array(self.gone), *self.columns]
        arrays = [pa.ListArray.from_arrays(offsets, column) for column in columns]
        arrays = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
        return kept, pa.RecordBatch.from_arrays(arrays, schema=schema)


class VersionedKTableNode(Node):
    """Keeps the versions of each key.

    Args:
        operator: with the key, and the columns that are null in a row that deletes.
        table: of ``version_layout``.
        delay_ms: how far the node's watermark lags the one that rows came with.
        slack_ms: how much further those of the joins lag that look it up.
    """

    def __init__(
        self, operator: KeepTable, table: ColumnarTable, *, delay_ms: int, slack_ms: int
    ) -> None:
        super().__init__(operator.name)
        assert operator.history_ms is not None
        self._table, self._delay = table, delay_ms
        self._kept_ms = operator.history_ms + slack_ms
        self._keys, self._values = list(operator.keys), list(operator.values)
        self._epoch, self._watermark = 0, NO_WATERMARK
        self._held: list[Chunk] = []
        self._unswept = 0

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what one that failed has left is forgotten."""
        self._epoch, self._watermark, self._held = epoch, watermark, []

    def push(self, chunk: Chunk) -> None:
        """Hold rows: versions of a key are changed once an epoch."""
        chunk = whole_keys(self, chunk, self._keys)
        if chunk.rows:
            self._held.append(chunk)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Put the rows of the epoch among the versions of their keys."""
        if not self._held:
            return
        chunk, self._held = concat_chunks(self._held), []
        layout = self._table.layout
        assert chunk.times is not None
        begins = np.maximum(chunk.times, chunk.seen(self._delay, self._watermark))
        self.counts["late"] += int(np.count_nonzero(begins > chunk.times))
        keys, places = TableKeys.distinct(layout, chunk.batch.select(self._keys))
        names = layout.values.names[2:]
        columns = chunk.batch.select(names).columns
        new = RowVersions(places, begins, deleting(chunk.batch, self._values), columns)
        held = RowVersions.of(self._table, keys, names)
        self._replace(keys, held, held.followed_by(new))
        self._unswept += len(keys)
        if self._unswept >= _SWEEP_AFTER:
            self._sweep(2 * self._unswept, names)
            self._unswept = 0

    def _replace(self, keys: TableKeys, held: RowVersions, versions: RowVersions) -> None:
        """Keep of some keys what can still be asked for."""
        there, lists = self._wanted(versions).lists(len(keys), self._table.layout.values)
        if len(there):
            self._table.put(keys.select(there), lists)
        gone = np.setdiff1d(np.unique(held.places), there)
        if len(gone):
            self._table.delete(keys.select(gone))

    def _wanted(self, versions: RowVersions) -> RowVersions:
        return versions.since(self._watermark - self._kept_ms, self._watermark)

    def _sweep(self, rows: int, names: Sequence[str]) -> None:
        """Look at so many rows of any keys, for what time has made superfluous since they changed.

        The golden ratio spreads epochs evenly over the parts of the table, however many there are.
        """
        table = self._table
        bits = max(0, (table.rows // rows).bit_length() - 1)
        part = (self._epoch * _GOLDEN % (1 << 64)) >> (64 - bits)
        for batch in table.scan_part(part, 1 << bits):
            held = RowVersions.in_rows(batch, ())
            counts = np.bincount(held.places, minlength=batch.num_rows)
            left = np.bincount(self._wanted(held).places, minlength=batch.num_rows)
            if (changed := np.flatnonzero(counts != left)).size:
                keys = TableKeys.of_rows(table.layout, batch.take(pa.array(changed)))
                held = RowVersions.of(table, keys, names)
                self._replace(keys, held, held)
