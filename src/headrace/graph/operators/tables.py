"""Tables, their changes, and joins with them and with broadcast stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.durations import duration_text
from headrace.graph.aggregates import unknown_column
from headrace.graph.flows import Columns, added_columns
from headrace.graph.operator_base import (
    Flow,
    Operator,
    Planning,
    RowForm,
    StageView,
    StoreSpec,
    TableBinding,
    key_mark,
    listed,
    store_mark,
    store_text,
)
from headrace.graph.operators.stateless import PartitionBy
from headrace.graph.shared_stores import BroadcastSpec

IS_DELETED = "is_deleted"
"""The column of a table's changes that says that the key is deleted."""


@dataclass(frozen=True)
class JoinTable(Operator):
    """``join_table``: add columns of the broadcast store's row whose key the message has.

    ``on`` names columns of the stream in the order of the table's key; ``columns`` are pairs of
    a new name and a column of the table, ``None``: all but the key.
    """

    table: BroadcastSpec = field(default_factory=lambda: BroadcastSpec("", ()))
    on: tuple[str, ...] = ()
    how: str = "left"
    columns: tuple[tuple[str, str], ...] | None = None

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow with the columns of a broadcast store."""
        table = walk.bind_table(self, self.table)
        if table is None:
            return None
        columns, known = self._added(table), before.schema
        wrong = [
            f"on: {unknown_column(name, known.names)}"
            for name in self.on
            if name not in known.names
        ]
        wrong += [
            f"columns: {unknown_column(old, table.schema.names)}"
            for _, old in columns
            if old not in table.schema.names
        ]
        if not wrong:
            wrong += self._mistakes(table, columns, known)
        for text in wrong:
            walk.report(self, text)
        if wrong:
            return None
        made = [pa.field(new, table.schema.field(old).type) for new, old in columns]
        return replace(before, schema=pa.schema([*known, *made]))

    def _added(self, bound: TableBinding) -> tuple[tuple[str, str], ...]:
        """Return (new name, name in the table) for each column that a join adds."""
        if self.columns is not None:
            return self.columns
        return tuple((name, name) for name in bound.schema.names if name not in bound.key)

    def _mistakes(
        self, table: TableBinding, columns: Iterable[tuple[str, str]], known: pa.Schema
    ) -> list[str]:
        """Say what keeps a join from the columns that are there."""
        wrong = []
        for name, key in zip(self.on, table.key, strict=True):
            mine, theirs = known.field(name).type, table.schema.field(key).type
            both_whole = pa.types.is_integer(mine) and pa.types.is_integer(theirs)
            if not both_whole and not mine.equals(theirs):
                wrong.append(
                    f"column {name!r} is {mine}, but {key!r} of {table.name!r} is {theirs}; cast "
                    "it with map first"
                )
        names = [new for new, _ in columns]
        taken = sorted({name for name in names if name in known.names or names.count(name) > 1})
        if taken:
            wrong.append(
                f"columns {taken} would be there twice: choose others with columns=[...], or "
                'rename them with columns={"new": "old"}'
            )
        return wrong

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what is looked up by, and what is passed on."""
        return (wanted & set(flows[upstream].schema.names)) | set(self.on)

    def describe(self) -> list[str]:
        """Return the table, and what it adds."""
        table, columns = self.table, self.columns
        pairs = (f"{mine} = {key}" for mine, key in zip(self.on, table.key, strict=True))
        added = "all columns" if columns is None else listed([new for new, _ in columns])
        return [
            f"{self.how} join with broadcast store {table.name} on {', '.join(pairs)}",
            f"table of {table.origin}, adds {added}",
        ]

    @property
    def broadcast_stores(self) -> tuple[BroadcastSpec, ...]:
        """The table."""
        return (self.table,)

    def columns_of_table(self, bound: TableBinding, made: Sequence[str]) -> set[str]:
        """Return what it adds that later operators use."""
        return {old for new, old in self._added(bound) if new in made}


@dataclass(frozen=True)
class KeepTable(Operator):
    """``table``: the last row of each key of a stream, in a store.

    ``keys`` are its key, and ``values`` the columns that are null together in a row that deletes
    it; found by the planner. Behind a join of tables, rows say so themselves. With ``history_ms``
    the versions of so long are kept, by event time.
    """

    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))
    keys: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    history_ms: int | None = None

    keeps_columns: ClassVar[bool] = True
    row_form: ClassVar[RowForm] = "latest"

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow as it is; finds the key, and what is null in a row that deletes."""
        good = walk.need_key(self, before, needed=True)
        if self.history_ms is not None and before.untimed:
            source = before.untimed[0]
            text = f'history= counts event time, which input {source!r} has not: give time="..."'
            walk.report(self, text)
            good = False
        if (feed := _through_bus(walk, self)) is not None:
            text = (
                "a table is read before what is joined with it, which takes epochs in common: take "
                f'via="bus" out of {feed.name!r}'
            )
            walk.report(self, text)
            good = False
        if not good:
            return None
        beside = (*before.keys, before.time)
        values = tuple(name for name in before.schema.names if name not in beside)
        walk.operators[self.name] = replace(self, keys=before.keys, values=values)
        return before

    def describe(self) -> list[str]:
        """Return what is kept of a key."""
        kept = "last row"
        if self.history_ms is not None:
            kept = f"versions of {duration_text(self.history_ms)}"
        key = f" ({', '.join(self.keys)})" if self.keys else ""
        return [f"table: {kept} of each key{key}", store_text(self.store)]

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any]:
        """Return what is kept, and its columns."""
        return {
            "kind": "table",
            "keeps": "the last row" if self.history_ms is None else "versions",
            "stores": [store_mark(self.store)],
            "columns": key_mark(before, tuple(before.schema.names)),
        }

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """The rows."""
        return (self.store,)

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Versions are kept by event time."""
        return self.history_ms is not None


def _through_bus(walk: Planning, operator: Operator) -> PartitionBy | None:
    """The repartition through the bus that rows reach an operator by, if one is the last."""
    for name in operator.inputs:
        owner = walk.operators[name]
        if isinstance(owner, PartitionBy):
            if owner.is_durable:
                return owner
        elif (found := _through_bus(walk, owner)) is not None:
            return found
    return None


@dataclass(frozen=True)
class Changes(Operator):
    """``changes``: the rows of a table as they change, with ``is_deleted``."""

    keeps_columns: ClassVar[bool] = True

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns of a table and the flag."""
        if IS_DELETED in before.schema.names:
            walk.report(self, f"adds a column {IS_DELETED!r}, which the table has: rename it")
            return None
        flag = pa.field(IS_DELETED, pa.bool_())
        return replace(before, schema=before.schema.append(flag), takes=None)

    def describe(self) -> list[str]:
        """Return the table."""
        return [f"changes of table {self.inputs[0]}"]


@dataclass(frozen=True)
class JoinKept(Operator):
    """``join`` of a stream, its first input, with a table of the same key, its second.

    ``by`` are the columns of the stream with the key, found by the planner. With a ``waiting``
    store, rows wait there until event time has passed them, and take the version of the table
    that held at their own.
    """

    how: str = "inner"
    columns: Columns = None
    suffix: str | None = None
    by: tuple[str, ...] = ()
    waiting: StoreSpec | None = None

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns of a stream and those of a table's row."""
        rows, table = (walk.flows[name] for name in self.inputs)
        if not walk.need_key(self, rows, needed=True):
            return None
        if self.waiting is not None and rows.untimed:
            source = rows.untimed[0]
            text = (
                f'as_of="event" needs event time, which input {source!r} has not: give time="..."'
            )
            walk.report(self, text)
            return None
        columns = _added(walk, self, rows, table)
        if columns is None:
            return None
        walk.operators[self.name] = replace(self, columns=columns, by=rows.keys)
        return replace(rows, schema=_with(rows.schema, table.schema, columns), takes=None)

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return the key and what is passed on; rows that wait keep all."""
        before = flows[upstream]
        everything = set(before.schema.names)
        own = set(before.keys) if self.waiting is None else everything
        return (wanted & everything) | own

    def describe(self) -> list[str]:
        """Return the table, and the moment of the row that is taken of it."""
        moment = "" if self.waiting is None else " as of event time"
        head = f"{self.how} join with table {self.inputs[1]}{moment}"
        return [head, *map(store_text, self.state_stores)]

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any] | None:
        """Return the columns of the rows that wait, if any do."""
        if self.waiting is None:
            return None
        columns = key_mark(before, tuple(before.schema.names))
        return {"kind": "join", "stores": [store_mark(self.waiting)], "columns": columns}

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """The rows that wait."""
        return () if self.waiting is None else (self.waiting,)

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Rows wait for event time."""
        return self.waiting is not None

    def asks_time(self, upstream: str, after: bool) -> bool:
        """Of a table's rows, only versions have times."""
        return self.waiting is not None if upstream == self.inputs[1] else after


@dataclass(frozen=True)
class JoinTables(Operator):
    """``join`` of two tables of the same key: what changes of their joined rows.

    The key has the names ``by`` of the first one's, found by the planner.
    """

    how: str = "inner"
    columns: Columns = None
    suffix: str | None = None
    by: tuple[str, ...] = ()

    keeps_columns: ClassVar[bool] = True

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns of two tables; the key has the names of the first one's."""
        left, right = (walk.flows[name] for name in self.inputs)
        columns = _added(walk, self, left, right)
        if columns is None:
            return None
        walk.operators[self.name] = replace(self, columns=columns, by=left.keys)
        untimed = tuple(dict.fromkeys((*left.untimed, *right.untimed)))
        schema = _with(left.schema, right.schema, columns)
        return Flow(schema, left.keys, None, untimed)

    def describe(self) -> list[str]:
        """Return the tables."""
        first, second = self.inputs
        return [f"{self.how} join of tables {first} and {second}"]


def _added(
    walk: Planning, operator: JoinKept | JoinTables, left: Flow, right: Flow
) -> tuple[tuple[str, str], ...] | None:
    """The columns that the right side adds, after what is wrong with them was reported."""
    columns, wrong = added_columns(operator.columns, operator.suffix, left, right)
    wrong += _key_mistakes(left, right)
    for text in wrong:
        walk.report(operator, text)
    return None if wrong else columns


def _key_mistakes(left: Flow, right: Flow) -> list[str]:
    wrong = []
    for mine, theirs in zip(left.keys, right.keys, strict=True):
        one, other = left.schema.field(mine).type, right.schema.field(theirs).type
        if not one.equals(other):
            wrong.append(
                f"key column {mine!r} is {one}, but {theirs!r} of the table is {other}: cast one "
                "of them with map before its partition_by"
            )
    return wrong


def _with(left: pa.Schema, right: pa.Schema, columns: Sequence[tuple[str, str]]) -> pa.Schema:
    made = [pa.field(new, right.field(old).type) for new, old in columns]
    return pa.schema([*left, *made])
