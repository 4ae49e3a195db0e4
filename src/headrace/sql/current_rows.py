"""What a table of an app will be sent: open windows and running totals, made of committed state.

``CurrentRows`` lays the committed rows of a window before the window's own node, ends the inputs,
and passes what the node sends through the operators behind it: so it has the rows that would be
sent if no more came. Nothing of it reaches the job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.coordinator.inspection.job_reader import open_sources
from headrace.coordinator.manifest import JobState
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.operator_base import StoreSpec
from headrace.graph.operators import (
    COLUMNAR,
    IS_DELETED,
    Changes,
    Explode,
    Filter,
    JoinKept,
    JoinTables,
    KeepTable,
    Merge,
    Operator,
    PartitionBy,
    RunningAggregate,
    Select,
    SendTo,
    SendToSink,
    WindowAggregate,
)
from headrace.graph.stream_joins import JoinStreams
from headrace.graph.windows import Window
from headrace.plan.stages import UNKEYED, JobPlan, Stage
from headrace.records.evolution import cast_to_schema
from headrace.records.keys import encode_key, hash_key
from headrace.records.schema import TableLayout
from headrace.runtime.chunk import Chunk, concat_chunks
from headrace.runtime.ktable_joins import (
    StreamTableJoinNode,
    TableTableJoinNode,
    ktable_layouts,
)
from headrace.runtime.node import Node
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK
from headrace.runtime.stateless import BatchNode, ExplodeNode, FilterNode, SelectNode
from headrace.runtime.stream_join import KEY_BITS, TIME_BITS, JoinStreamsNode, join_layouts
from headrace.runtime.windows.builder import window_node
from headrace.runtime.windows.layouts import (
    Aggregating,
    aggregation_of,
    key_schema,
    table_layouts,
)
from headrace.runtime.windows.partial_table import ColumnarPartials
from headrace.runtime.windows.window_node import RunningNode
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import HashRange, TableKeys
from headrace.state.compaction import EVERY_ROW, MergedTable
from headrace.state.run_merge import TableSlice
from headrace.state.segment import SegmentReader

Root = tuple[Path, JobState]
"""The storage of a part of a job, and its state as of an epoch."""

Values = Mapping[str, tuple[Any, ...]]
"""By column, the values of the rows that are wanted; others may be read, too."""

_SMALL = 10_000
"""A table of so many rows is read whole: it takes as long as one key, and serves the next query."""

_MAX_KEYS = 64
"""So many keys are looked up one by one; of more the table is read."""


class CurrentRows:
    """The rows that one part of a job holds back: what it would send if no more rows came.

    From any thread, one at a time.

    Args:
        files: the file system.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: _Committed | None = None
        self._lock = threading.Lock()

    def read(self, plan: JobPlan, root: Root, operator: str, values: Values) -> pa.Table | None:
        """Return the rows that an operator would send on if no more came.

        Args:
            plan: of the part.
            root: its storage and state.
            operator: that sends to the table's stream.
            values: of the rows that are wanted; others may be among them.

        Returns:
            ``None`` where nothing before the operator holds rows back.

        Raises:
            InvalidInputError: what is between the windows and the table needs state of its own.
            CorruptDataError: a file is damaged, or was swept since.
        """
        with self._lock:
            held = self._held
            if held is None or held.digest != root[1].digest or held.plan is not plan:
                readers = {} if held is None else held.readers
                held = self._held = _Committed(plan, root, self._files, readers)
            return held.sent(operator, values)


class _Collector(Node):
    """Keeps what another node sends."""

    def __init__(self) -> None:
        super().__init__("")
        self.found: list[Chunk] = []

    def push(self, chunk: Chunk) -> None:
        self.found.append(chunk)


class _Committed:
    """The committed state of a part, and what operators make of it."""

    def __init__(
        self, plan: JobPlan, root: Root, files: Files, readers: Mapping[str, SegmentReader]
    ) -> None:
        self.plan, self._files = plan, files
        self._root, self._state = root
        self.digest = self._state.digest
        named = set(self._state.files())
        self.readers = {name: reader for name, reader in readers.items() if name in named}
        self._tables: dict[str, MergedTable] = {}
        self._sent: dict[str, pa.Table | None] = {}
        self._is_small = True
        self._stages = {o.name: stage for stage in plan.stages for o in stage.operators}
        self.operators: dict[str, Operator] = {o.name: o for o in plan.graph.operators}
        self.operators |= {o.name: o for stage in plan.stages for o in stage.operators}

    def sent(self, name: str, values: Values) -> pa.Table | None:
        """Return the rows that an operator would send; those of few are made once for all keys."""
        if name in self._sent:
            return self._sent[name]
        self._is_small = True
        found = self.rows(self.operators[name].inputs[0], values)
        rows = None if found is None else pa.Table.from_batches([found.batch])
        if rows is not None and self.is_of_tables(name):
            rows = rows.filter(pc.invert(rows.column(IS_DELETED)))  # those that fit no more
        if self._is_small:
            self._sent[name] = rows
        return rows

    def rows(self, name: str, values: Values) -> Chunk | None:
        """Return the rows that leave an operator; ``None``: nothing is held back before it."""
        operator = self.operators[name]
        match operator:
            case WindowAggregate():
                return self._windows(operator, values)
            case RunningAggregate():
                return self._totals(operator, values)
            case Changes() if self.is_of_tables(name):
                joining = self.operators[operator.inputs[0]]
                assert isinstance(joining, JoinTables)
                return self._joined(joining, values)
            case JoinStreams() if self._has_windows(name):
                return self._paired(operator, values)
            case JoinKept(waiting=None) if self._has_windows(operator.inputs[0]):
                return self._looked_up(operator, values)
            case PartitionBy():
                return self.rows(operator.inputs[0], values)
            case Merge():
                return self._merged(operator, values)
            case Filter(expression=pl.Expr() as expression) if not (
                self._is_total(operator) or self.is_of_tables(name)
            ):
                below = self.rows(operator.inputs[0], values)
                return _made(below, FilterNode(name, expression))
            case Select():
                old = _plain_columns(operator)
                below = self.rows(
                    operator.inputs[0], {old[one]: v for one, v in values.items() if one in old}
                )
                schema = self._schema(name)
                if below is not None and list(old) == schema.names:
                    columns = [below.batch.column(old[one]) for one in schema.names]
                    return below.with_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
                kind = ExplodeNode if isinstance(operator, Explode) else SelectNode
                return _made(below, kind(name, operator.expressions, schema))
        if not self._has_windows(name):
            return None
        raise InvalidInputError(
            f"between the windows and the table is {name!r}, {operator.describe()[0]}"
        )

    def is_of_tables(self, name: str) -> bool:
        """Say whether what reaches an operator are the changes of a join of tables."""
        operator = self.operators[name]
        while isinstance(operator, SendTo | SendToSink | Select | Filter | PartitionBy | Changes):
            operator = self.operators[operator.inputs[0]]
        return isinstance(operator, JoinTables)

    def _has_windows(self, name: str) -> bool:
        operator = self.operators[name]
        return isinstance(operator, WindowAggregate) or any(map(self._has_windows, operator.inputs))

    def _is_total(self, operator: Operator) -> bool:
        """Say whether rows are totals: which of them passed a filter depends on those before."""
        while isinstance(operator, Select | Filter | PartitionBy):
            operator = self.operators[operator.inputs[0]]
        return isinstance(operator, RunningAggregate)

    def _schema(self, name: str) -> pa.Schema:
        return self._stages[name].schemas[name]

    def _merged(self, operator: Merge, values: Values) -> Chunk | None:
        schema = self._schema(operator.name)
        found = [self.rows(name, values) for name in operator.inputs]
        held = [one for one in found if one is not None]
        fitted = [one.with_batch(cast_to_schema(one.batch, schema)) for one in held]
        return concat_chunks(fitted) if fitted else None

    def _windows(self, operator: WindowAggregate, values: Values) -> Chunk:
        """Return what the node of a window sends at the end of the inputs."""
        window, stage = operator.window, self._stages[operator.name]
        if _is_early(window):
            raise InvalidInputError(
                f"{operator.name!r} sends windows early: the last row of each is the newest"
            )
        delay_ms = stage.delays.get(operator.name, 0)
        common = self._common(operator, stage, self._aggregated(stage, operator, values))
        node = window_node(window, common, delay_ms, timed=stage.timed)
        node.targets = [sent := _Collector()]
        mark = self._state.watermarks.get(stage.name, NO_WATERMARK)
        if mark < END_WATERMARK:
            node.begin(self._state.epoch + 1, self._state.time_ms, mark - delay_ms)
            keys = stage.keys_of(operator)
            below = self.rows(operator.inputs[0], {n: v for n, v in values.items() if n in keys})
            if below is not None and below.rows:
                node.push(replace(below, groups=np.zeros(below.rows, np.uint16)))
            node.advance(END_WATERMARK, self._state.time_ms)
        return concat_chunks(sent.found) if sent.found else _no_rows(self._schema(operator.name))

    def _totals(self, operator: RunningAggregate, values: Values) -> Chunk:
        """Return the totals of each key."""
        if operator.every_ms is not None:
            raise InvalidInputError(
                f"{operator.name!r} sends {operator.describe()[0]}: the last row of each key is "
                "the newest"
            )
        stage = self._stages[operator.name]
        node = RunningNode(*self._common(operator, stage, ()))
        layout = table_layouts(stage, operator)[operator.store.name]
        schema = pa.schema([*layout.keys, *layout.values])
        stored = self._aggregated(stage, operator, values)
        batches = [one.select(schema.names) for one in stored]
        rows = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(batches, schema)))
        return Chunk(node.results(node.key_columns(rows)[0], rows))

    def _common(self, operator: Aggregating, stage: Stage, stored: Iterable[pa.RecordBatch]) -> Any:
        """Return what all nodes of aggregates take first, with a table of some rows."""
        aggregation = aggregation_of(stage, operator)
        table = self._table(table_layouts(stage, operator)[operator.store.name], stored)
        partials, schema = ColumnarPartials(table, aggregation), self._schema(operator.name)
        return operator.name, aggregation, partials, schema, self._state.key_groups

    def _joined(self, operator: JoinTables, values: Values) -> Chunk:
        """Return the joined row of each key: its node takes all keys for changed."""
        stage, wanted = self._stages[operator.name], [values.get(name) for name in operator.by]
        tables, keys = list[ColumnarTable](), list[list[pa.RecordBatch]]()
        for name in operator.inputs:
            table, stored = self._kept(stage, name, wanted)
            tables.append(table)
            keys.append([rows.select(table.layout.keys.names) for rows in stored])
        schema = self._schema(operator.name)
        node = TableTableJoinNode(operator, tables[0], tables[1], schema)
        node.targets = [sent := _Collector()]
        node.begin(self._state.epoch + 1, self._state.time_ms, NO_WATERMARK)
        for name, batches in zip(operator.inputs, keys, strict=True):
            for rows in batches:
                node.inlet(name).push(Chunk(rows))
        node.advance(END_WATERMARK, self._state.time_ms)
        if sent.found:
            return concat_chunks(sent.found)
        changes = schema.append(pa.field(IS_DELETED, pa.bool_()))
        return Chunk(pa.RecordBatch.from_pylist([], schema=changes))

    def _kept(
        self, stage: Stage, name: str, wanted: Sequence[tuple[Any, ...] | None]
    ) -> tuple[ColumnarTable, list[pa.RecordBatch]]:
        """Return a table as it is kept, and its rows; of some keys, where values are wanted."""
        kept = self.operators[name]
        assert isinstance(kept, KeepTable)
        layout = ktable_layouts(stage, kept)[kept.store.name]
        own = {name: one for name, one in zip(kept.keys, wanted, strict=True) if one}
        stored = list(self._stored(stage, kept.store, layout.keys, own))
        return self._table(layout, stored), stored

    def _looked_up(self, operator: JoinKept, values: Values) -> Chunk:
        """Return the rows of open windows, with the row that a table has for each now."""
        stage, schema = self._stages[operator.name], self._schema(operator.name)
        rows, kept = operator.inputs
        table, _ = self._kept(stage, kept, [values.get(name) for name in operator.by])
        added = {new: old for new, old in operator.columns or () if new in schema.names}
        node = StreamTableJoinNode(operator, table, added, schema)
        node.targets = [sent := _Collector()]
        node.begin(self._state.epoch + 1, self._state.time_ms, NO_WATERMARK)
        below = self.rows(rows, {n: v for n, v in values.items() if n in operator.by})
        if below is not None and below.rows:
            node.push(below)
        node.advance(END_WATERMARK, self._state.time_ms)
        return concat_chunks(sent.found) if sent.found else _no_rows(schema)

    def _paired(self, operator: JoinStreams, values: Values) -> Chunk:
        """Return the pairs that open windows are in: with one another, and with rows before."""
        stage, tables = self._stages[operator.name], list[ColumnarTable]()
        mark = self._state.watermarks.get(stage.name, NO_WATERMARK)
        layouts = join_layouts(stage, operator)
        wanted = [values.get(name) for name in operator.by[0]]
        for store in operator.stores:
            layout = layouts[store.name]
            table = ColumnarTable(layout)
            table.begin(mark)
            own = {name: one for name, one in zip(layout.keys.names, wanted, strict=True) if one}
            for rows in self._stored(stage, store, layout.keys, own, by_moment=True):
                table.append(rows)
            tables.append(table)
        schema = self._schema(operator.name)
        node = JoinStreamsNode(operator, stage, tables, self._state.key_groups)
        node.targets = [sent := _Collector()]
        if mark < END_WATERMARK:
            node.begin(self._state.epoch + 1, self._state.time_ms, mark)
            for name, keys in zip(operator.inputs, operator.by, strict=True):
                own = {key: one for key, one in zip(keys, wanted, strict=True) if one}
                inlet, below = node.inlet(name), self.rows(name, own)
                if below is not None and below.rows:
                    unknown = np.full(below.rows, NO_WATERMARK, np.int64)
                    inlet.push(replace(below, watermarks=unknown))
            node.advance(END_WATERMARK, self._state.time_ms)
        return concat_chunks(sent.found) if sent.found else _no_rows(schema)

    def _table(self, layout: TableLayout, stored: Iterable[pa.RecordBatch]) -> ColumnarTable:
        """Return a table of some rows."""
        table = ColumnarTable(layout)
        table.begin(self._state.time_ms)
        for rows in stored:
            keys = TableKeys.of_rows(table.layout, rows)
            table.put(keys, rows.select(table.layout.values.names))
        return table

    def _aggregated(
        self, stage: Stage, operator: Aggregating, values: Values
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the store of an aggregate."""
        return self._stored(stage, operator.store, key_schema(stage, operator), values)

    def _stored(
        self,
        stage: Stage,
        store: StoreSpec,
        keys: pa.Schema,
        values: Values,
        *,
        by_moment: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a store; ``by_moment``: of a join, by key and event time."""
        if store.kind != COLUMNAR:
            raise InvalidInputError(f"store {store.name!r} is {store.kind}, not columnar")
        if store.name not in self._tables:
            sources = open_sources(self._state, self._root, self._files, stage.name, self.readers)
            self._tables[store.name] = MergedTable(
                store.name, sources, self._state.time_ms, store.ttl_ms, self._state.watermarks
            )
        table = self._tables[store.name]
        is_small = table.rows <= _SMALL
        self._is_small &= is_small
        for part in _slices(keys, {} if is_small else values, by_moment=by_moment):
            yield from table.batches(part)


def _no_rows(schema: pa.Schema) -> Chunk:
    none = np.empty(0, np.int64)
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    return Chunk(empty, none, none, none.astype(np.uint16))


def _is_early(window: Window) -> bool:
    early = (window.early_ms, window.early_rows, window.early_idle_ms, window.early_within_ms)
    return any(one is not None for one in early)


def _made(below: Chunk | None, node: BatchNode) -> Chunk | None:
    return below if below is None else node.compute(below)


def _plain_columns(operator: Select) -> dict[str, str]:
    """Return the columns that are those of the input, with their names there."""
    found = {}
    for expression in operator.expressions[1 if operator.is_exploding else 0 :]:
        plain = expression.meta.undo_aliases()
        if plain.meta.is_column():
            found[expression.meta.output_name()] = plain.meta.output_name()
    return found


def _slices(keys: pa.Schema, values: Values, *, by_moment: bool) -> Iterator[TableSlice]:
    """Yield the parts of a table to read: by the hash of each key where all columns have values."""
    wanted = [tuple(dict.fromkeys(values.get(name, ()))) for name in keys.names]
    if keys.names == [UNKEYED] or not 0 < np.prod([len(one) for one in wanted]) <= _MAX_KEYS:
        yield EVERY_ROW
        return
    for key in product(*wanted):
        place = hash_key(encode_key(key))
        first, last = (place & KEY_BITS, place | TIME_BITS) if by_moment else (place, place)
        yield TableSlice(hashes=HashRange(first, last))
