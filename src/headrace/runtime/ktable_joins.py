"""Joins with tables: rows of a stream with the row of their key, and tables with tables.

With ``as_of="event"`` rows wait for event time, and take the version that held at theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from headrace.graph.operators import IS_DELETED, Changes, JoinKept, JoinTables, KeepTable, Operator
from headrace.plan.stages import TIME, WATERMARK, Stage
from headrace.records.keys import encode_columns, hash_within, key_groups
from headrace.records.schema import CLUSTER, HASH, TableLayout
from headrace.runtime.chunk import Chunk, Ints, concat_chunks, join_found, joined_columns
from headrace.runtime.ktable import (
    KTableNode,
    RowVersions,
    VersionedKTableNode,
    columns_of,
    ktable_layout,
    last_rows,
    version_layout,
)
from headrace.runtime.node import Inlet, Node
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import Mask, Rows, TableKeys, numbers


def look_up(
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


class IgnoreNode(Node):
    """Takes changes of a table that its reader looks up instead."""

    def push(self, chunk: Chunk) -> None:
        """Leave the rows."""


class StreamTableJoinNode(Node):
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
        return self if upstream == self._stream else IgnoreNode(self.name)

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what one that failed has left is forgotten."""
        self._held = []

    def push(self, chunk: Chunk) -> None:
        """Hold rows until all of the epoch are in, and those of the table."""
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
        by_key, values = look_up(self._table, keys, list(dict.fromkeys(self._columns.values())))
        rows = by_key[places]
        if missing := int(np.count_nonzero(rows < 0)):
            self.counts["unmatched"] += missing
        joined = join_found(
            chunk, rows, values, self._columns, self._schema, keeps_all=self._keeps_all
        )
        if joined.rows:
            self.emit(joined)


class TableTableJoinNode(Node):
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
        changed, self._changed = concat_chunks(self._changed), []
        keys, places = TableKeys.distinct(self._left.layout, changed.batch)
        last = last_rows(places, len(keys))
        left, lefts = look_up(self._left, keys, self._left.layout.values.names)
        right, rights = look_up(self._right, keys, list(self._added.values()))
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
        left, _ = look_up(self._left, keys, (), committed=True)
        right, _ = look_up(self._right, keys, (), committed=True)
        return self._has_row(left >= 0, right >= 0)

    def _has_row(self, left: Mask, right: Mask) -> Mask:
        if self._how == "full":
            return left | right
        return left if self._how == "left" else left & right


def _places(rows: Rows, gone: Mask) -> pa.Array:
    return pa.array(rows, mask=(rows < 0) | gone)


NUMBER = "__number"
"""Identifies rows of one key, in the order in which they came."""


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


class TemporalJoinNode(StreamTableJoinNode):
    """Holds rows until the watermark is past them, and joins them then.

    Args:
        operator: bound.
        table: with versions.
        columns: by new name, the columns of the table that later operators use.
        schema: of what leaves.
        waiting: of the rows that wait.
        source: of the rows.
        history_ms: of the table.
        delay_ms: how far the node's watermark lags the one that rows came with.
        key_groups: of the job.
    """

    def __init__(  # noqa: PLR0913 - each is a fact of its own, by name
        self,
        operator: JoinKept,
        table: ColumnarTable,
        columns: Mapping[str, str],
        schema: pa.Schema,
        *,
        waiting: ColumnarTable,
        source: pa.Schema,
        history_ms: int,
        delay_ms: int,
        key_groups: int,
    ) -> None:
        super().__init__(operator, table, columns, schema)
        self._waiting, self._source = waiting, source
        self._history, self._delay, self._groups = history_ms, delay_ms, key_groups
        self._epoch, self._watermark = 0, NO_WATERMARK
        self._due: int | None = None

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; what one that failed has left is forgotten."""
        super().begin(epoch, wall_ms, watermark)
        self._epoch, self._watermark = epoch, watermark

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Join the rows whose moments the watermark is past; the others wait."""
        ready = []
        if self._watermark < watermark:
            ready = self._rows_due(watermark)
        if self._held:
            held, self._held = concat_chunks(self._held), []
            moments = self._moments(held)
            is_due = moments < watermark
            if is_due.any():
                ready.append((held.filter(is_due), moments[is_due]))
            if not is_due.all():
                self._wait(held, moments, np.flatnonzero(~is_due))
        if ready:
            moments = np.concatenate([own for _, own in ready])
            self._join_due(*_in_order(concat_chunks([chunk for chunk, _ in ready]), moments))
        self._due = self._waiting.first_cluster(max(watermark, self._watermark))

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return the watermark that the next row waits for."""
        return None if self._due is None else self._due + 1, None

    def _moments(self, chunk: Chunk) -> Ints:
        assert chunk.times is not None
        seen = chunk.seen(self._delay, self._watermark)
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

    def _join_due(self, chunk: Chunk, moments: Ints) -> None:
        layout = self._table.layout
        asked = columns_of(chunk.batch, self._by, layout.keys)
        keys, places = TableKeys.distinct(layout, asked)
        names = list(dict.fromkeys(self._columns.values()))
        versions = RowVersions.of(self._table, keys, names)
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


def ktable_layouts(stage: Stage, operator: KeepTable | JoinKept) -> dict[str, TableLayout]:
    """Return the layout of a table, with a history or not, or of rows that wait for one."""
    if isinstance(operator, JoinKept):
        waiting = operator.waiting
        return {} if waiting is None else {waiting.name: _layout(stage, operator)}
    layout = ktable_layout if operator.history_ms is None else version_layout
    return {operator.store.name: layout(stage, operator)}


def kept_table_node(operator: KeepTable, build: NodeContext) -> Node:
    """Return the node of a table."""
    stage, table = build.stage, build.table(operator.store.name)
    if operator.history_ms is None:
        return KTableNode(operator, table, sends=_is_read(operator, stage))
    own = build.delay_ms(operator)
    lags = [stage.delays.get(one.name, own) for one in _readers(operator, stage)]
    slack = max(lags, default=own) - own
    return VersionedKTableNode(operator, table, delay_ms=own, slack_ms=slack)


def stream_table_node(operator: JoinKept, build: NodeContext) -> Node:
    """Return the node of a join with a table, of now or of event time."""
    schema = build.stage.schemas[operator.name]
    added = {new: old for new, old in operator.columns or () if new in schema.names}
    kept = _kept(operator.inputs[1], build.stage)
    table = build.table(kept.store.name)
    if operator.waiting is None:
        return StreamTableJoinNode(operator, table, added, schema)
    return TemporalJoinNode(
        operator,
        table,
        added,
        schema,
        waiting=build.table(operator.waiting.name),
        source=build.source_schema(operator),
        history_ms=kept.history_ms or 0,
        delay_ms=build.delay_ms(operator),
        key_groups=build.runtime.key_groups,
    )


def table_table_node(operator: JoinTables, build: NodeContext) -> Node:
    """Return the node of a join of two tables."""
    left, right = (build.table(_kept(name, build.stage).store.name) for name in operator.inputs)
    return TableTableJoinNode(operator, left, right, build.stage.schemas[operator.name])


def _kept(name: str, stage: Stage) -> KeepTable:
    found = next(one for one in stage.operators if one.name == name)
    assert isinstance(found, KeepTable)
    return found


def _readers(operator: KeepTable, stage: Stage) -> list[Operator]:
    return [reader for reader in stage.operators if operator.name in reader.inputs]


def _is_read(operator: KeepTable, stage: Stage) -> bool:
    """Say whether anybody takes the changes of a table."""
    return any(isinstance(one, Changes | JoinTables) for one in _readers(operator, stage))
