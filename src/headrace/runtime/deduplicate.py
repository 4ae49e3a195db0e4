"""``deduplicate``: the first row of each id is passed on, by a table of the ids that were seen.

**What counts, with event time.** A row at time t, behind the watermark w of its own partition at
its own offset, is looked at as of max(t, w). Its id is a copy while that is before the time of
the row that was passed on plus ``within``. A row with t + ``within`` <= w is late: an id that was
forgotten might be its own. So the log alone decides, whatever the epochs, and an entry of time t
is not needed once the stage's watermark, which is behind all of these, has reached t + ``within``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from headrace.graph.operators import Deduplicate
from headrace.plan.stages import Stage
from headrace.records.keys import encode_columns, hash_within
from headrace.records.schema import TableLayout
from headrace.runtime.chunk import Chunk, Ints, Mask
from headrace.runtime.node import Node
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.orders import NO_WATERMARK
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import Rows, TableKeys, any_null, no_columns

ROUNDS = 8
"""So often all ids move on together; what few ids have left then is done one by one."""

_NEVER = -(1 << 62)


def id_layouts(stage: Stage, operator: Deduplicate) -> dict[str, TableLayout]:
    """Return the layout of the table of ids, by store."""
    return {operator.store.name: id_layout(stage, operator)}


def id_layout(stage: Stage, operator: Deduplicate) -> TableLayout:
    """Return the layout of the table of ids: the id, and with event time when it was seen."""
    source = stage.schemas[operator.inputs[0]]
    ids = pa.schema([source.field(name) for name in operator.columns])
    by_event = operator.within_ms is not None
    ttl_ms = operator.store.ttl_ms
    if operator.within_ms is not None:
        ttl_ms = operator.within_ms + stage.delays.get(operator.name, 0)
    return TableLayout(ids, pa.schema([]), ttl_ms=ttl_ms, by_event=by_event)


class DeduplicateNode(Node):
    """Passes on rows whose id has not been seen.

    Args:
        operator: with the columns of the id.
        table: of ``id_layout``.
        keys: columns of the partition key, with which the id begins.
        delay_ms: how far the node's watermark lags the one that rows came with.
    """

    @classmethod
    def of(cls, operator: Deduplicate, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        table, keys = build.table(operator.store.name), build.stage.keys_of(operator)
        return cls(operator, table, keys, build.stage.delays[operator.name])

    def __init__(
        self, operator: Deduplicate, table: ColumnarTable, keys: Sequence[str], delay_ms: int
    ) -> None:
        super().__init__(operator.name)
        self._table, self._columns, self._keys = table, list(operator.columns), len(keys)
        self._within, self._delay = operator.within_ms, delay_ms
        self._watermark = NO_WATERMARK

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what was passed while a partition was idle stays passed."""
        self._watermark = watermark

    def push(self, chunk: Chunk) -> None:
        """Pass on the first row of each id, and all that have none."""
        ids = chunk.batch.select(self._columns)
        has_id = ~any_null(ids.columns)
        considered = has_id
        if self._within is not None:
            considered = has_id & self._timely(chunk)
        rows = None if considered.all() else np.flatnonzero(considered)
        keep = ~has_id
        if rows is None or len(rows):
            own = ids if rows is None else ids.take(pa.array(rows))
            first = self._first_by_time(own, chunk, rows) if self._within else self._first(own)
            keep[first if rows is None else rows[first]] = True
            self.counts["duplicates"] += own.num_rows - len(first)
        self.counts["without_id"] += int(np.count_nonzero(~has_id))
        self.emit(chunk.filter(keep))

    def _timely(self, chunk: Chunk) -> Mask:
        """Say which rows are not so late that their id may be forgotten; count the others."""
        assert chunk.times is not None
        assert self._within is not None
        timely: Mask = chunk.times + self._within > chunk.seen(self._delay, self._watermark)
        self.counts["late"] += int(np.count_nonzero(~timely))
        return timely

    def _distinct(self, ids: pa.RecordBatch) -> tuple[TableKeys, Rows]:
        hashes = encode_columns(ids.columns).hashes()
        if self._keys < len(ids.columns):
            hashes = hash_within(encode_columns(ids.columns[: self._keys]).hashes(), hashes)
        return TableKeys.distinct(self._table.layout, ids, hashes=hashes)

    def _first(self, ids: pa.RecordBatch) -> Rows:
        """Return the first rows of ids that are not in the table, and put these there."""
        keys, places = self._distinct(ids)
        is_new = np.ones(len(keys), bool)
        is_new[self._table.get(keys).index] = False
        fresh = np.flatnonzero(is_new)
        if len(fresh):
            own = keys if len(fresh) == len(keys) else keys.select(fresh)
            self._table.put(own, no_columns(len(fresh)))
        return _firsts(places, len(keys))[fresh]

    def _first_by_time(self, ids: pa.RecordBatch, chunk: Chunk, rows: Rows | None) -> Rows:
        """Return the rows that are passed on, and note their times."""
        assert chunk.times is not None
        assert self._within is not None
        times, seen = chunk.times, chunk.seen(self._delay, self._watermark)
        if rows is not None:
            times, seen = times[rows], seen[rows]
        keys, places = self._distinct(ids)
        found = self._table.get(keys)
        assert found.written is not None
        until = np.full(len(keys), _NEVER)
        until[found.index] = found.written + self._within
        chosen = _passed(places, times, np.maximum(times, seen), until, self._within)
        is_new = np.zeros(len(keys), bool)
        is_new[places[chosen]] = True
        changed = np.flatnonzero(is_new)
        if len(changed):
            own = keys if len(changed) == len(keys) else keys.select(changed)
            self._table.put(own, no_columns(len(changed)), until[changed] - self._within)
        return chosen


def _passed(places: Rows, times: Ints, moments: Ints, until: Ints, within: int) -> Rows:
    """Return the rows that are passed on; ``until`` then says when each id may be again.

    Args:
        places: of the id of each row, shape (n,).
        times: event times, shape (n,).
        moments: as of when each row is looked at, shape (n,).
        until: the moment up to which each id has been seen, shape (k,); changed.
        within: added to a time.
    """
    left = np.flatnonzero(moments >= until[places])
    chosen: list[Rows] = []
    for _ in range(ROUNDS):
        if not len(left):
            break
        own = places[left]
        first = left[_firsts(own, len(until), left=True)]
        until[places[first]] = times[first] + within
        chosen.append(first)
        left = left[moments[left] >= until[own]]
    one_by_one = []
    for row in left.tolist():
        if moments[row] >= until[places[row]]:
            until[places[row]] = times[row] + within
            one_by_one.append(row)
    return np.concatenate([*chosen, np.array(one_by_one, np.int64)])


def _firsts(places: Rows, count: int, *, left: bool = False) -> Rows:
    """Return the first row of each id, by its place; only of those that are there if ``left``."""
    rows = np.arange(len(places))
    first = np.full(count, -1)
    first[places[::-1]] = rows[::-1]  # of several to one place the last is kept
    return first[first >= 0] if left else first
