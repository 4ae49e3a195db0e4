"""Tables with a history: for each key the versions of its row, by the event time they hold from.

**Why the logs alone decide.** A row at time t that comes behind the watermark w of its own
partition holds from max(t, w). The stage's watermark is behind all such w to come. So once it
is past a moment m, no version that holds at m can come any more, and what holds there is final.
Of versions of one key that hold from one moment the one that was read last counts.

Versions up to the watermark less the history go, but for the last of them, which still holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.graph.table_operators import KeepTable
from headrace.plan.stages import Stage
from headrace.records.layout import TableLayout
from headrace.state.columnar.columns import Mask, Rows
from headrace.state.columnar.keys import TableKeys
from headrace.state.columnar.table import ColumnarTable
from headrace.task.chunk import Chunk, Ints, concatenated
from headrace.task.kept.table import deleting, whole_keys
from headrace.task.node import Node
from headrace.task.orders import NO_WATERMARK

FROM, GONE = "__from", "__gone"
"""Columns of lists beside those of the rows: when a version begins to hold, and if it deletes."""


def version_layout(stage: Stage, operator: KeepTable) -> TableLayout:
    """Return the layout of a table with a history: its key, and lists of versions by column."""
    source = stage.schemas[operator.inputs[0]]
    keys = pa.schema([source.field(name) for name in operator.keys])
    own = [field for field in source if field.name not in operator.keys]
    lists = [pa.field(FROM, pa.list_(pa.int64())), pa.field(GONE, pa.list_(pa.bool_()))]
    lists += [pa.field(field.name, pa.list_(field.type)) for field in own]
    return TableLayout(keys, pa.schema(lists))


class Versions:
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
    def of(cls, table: ColumnarTable, keys: TableKeys, names: Sequence[str]) -> Versions:
        """Look up the versions of keys."""
        found = table.get(keys, [FROM, GONE, *names])
        lists = found.values.columns
        lengths = lists[0].value_lengths().to_numpy(zero_copy_only=False)
        begins, gone, *columns = (column.flatten() for column in lists)
        return cls(
            np.repeat(found.index, lengths),
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

    def followed_by(self, other: Versions) -> Versions:
        """Return these and others, in order; of the same key and moment the other's last."""
        places = np.concatenate([self.places, other.places])
        begins = np.concatenate([self.begins, other.begins])
        gone = np.concatenate([self.gone, other.gone])
        columns = [
            pa.concat_arrays([mine, theirs])
            for mine, theirs in zip(self.columns, other.columns, strict=True)
        ]
        made = Versions(places, begins, gone, columns)
        order = np.lexsort((begins, places))  # stable: those that came later stay behind
        own, at = places[order], begins[order]
        last = np.ones(len(order), bool)
        last[:-1] = (own[1:] != own[:-1]) | (at[1:] != at[:-1])
        return made.take(order[last])

    def since(self, horizon: int) -> Versions:
        """Return what holds at ``horizon`` and later; that nothing was there needs no version."""
        follows = np.zeros(len(self.places), bool)
        follows[:-1] = (self.places[1:] == self.places[:-1]) & (self.begins[1:] <= horizon)
        kept = self.take(np.flatnonzero(~follows))
        first = np.ones(len(kept.places), bool)
        first[1:] = kept.places[1:] != kept.places[:-1]
        is_nothing = first & kept.gone
        return kept.take(np.flatnonzero(~is_nothing)) if is_nothing.any() else kept

    def take(self, rows: Rows) -> Versions:
        """Return some of them, in the order given."""
        taken = pa.array(rows)
        columns = [column.take(taken) for column in self.columns]
        return Versions(self.places[rows], self.begins[rows], self.gone[rows], columns)

    def lists(self, count: int, schema: pa.Schema) -> tuple[Rows, pa.RecordBatch]:
        """Return the places of keys that have any, of ``count``, and their lists."""
        counts = np.bincount(self.places, minlength=count)
        kept = np.flatnonzero(counts)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts[kept])]).astype(np.int32))
        columns = [pa.array(self.begins), pa.array(self.gone), *self.columns]
        arrays = [pa.ListArray.from_arrays(offsets, column) for column in columns]
        arrays = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
        return kept, pa.RecordBatch.from_arrays(arrays, schema=schema)


def seen_by(chunk: Chunk, delay_ms: int, watermark: int) -> npt.NDArray[np.int64]:
    """Return the watermark that each row came with, as it is for an operator so far behind."""
    assert chunk.watermarks is not None
    return np.maximum(chunk.watermarks - delay_ms, watermark)


class KeepVersionsNode(Node):
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
        self._watermark = NO_WATERMARK
        self._held: list[Chunk] = []

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what one that failed has left is forgotten."""
        self._watermark, self._held = watermark, []

    def push(self, chunk: Chunk) -> None:
        """Hold rows: versions of a key are changed once an epoch."""
        chunk = whole_keys(self, chunk, self._keys)
        if chunk.rows:
            self._held.append(chunk)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Put the rows of the epoch among the versions of their keys."""
        if not self._held:
            return
        chunk, self._held = concatenated(self._held), []
        layout = self._table.layout
        assert chunk.times is not None
        begins = np.maximum(chunk.times, seen_by(chunk, self._delay, self._watermark))
        self.counts["late"] += int(np.count_nonzero(begins > chunk.times))
        keys, places = TableKeys.distinct(layout, chunk.batch.select(self._keys))
        names = layout.values.names[2:]
        columns = chunk.batch.select(names).columns
        new = Versions(places, begins, deleting(chunk.batch, self._values), columns)
        held = Versions.of(self._table, keys, names)
        kept = held.followed_by(new).since(self._watermark - self._kept_ms)
        there, lists = kept.lists(len(keys), layout.values)
        if len(there):
            self._table.put(keys.select(there), lists)
        gone = np.setdiff1d(np.unique(held.places), there)
        if len(gone):
            self._table.delete(keys.select(gone))
