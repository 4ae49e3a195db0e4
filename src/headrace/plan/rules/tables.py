"""Tables: the columns that are kept, and those that joins with them add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.graph.operators import BUS, Operator, PartitionBy
from headrace.graph.table_operators import (
    IS_DELETED,
    Changes,
    JoinKept,
    JoinTables,
    KeepTable,
)
from headrace.plan.flows import Flow
from headrace.plan.rules.joins import added_columns
from headrace.plan.walk import Walk


def keep_table_flow(walk: Walk, operator: KeepTable, before: Flow) -> Flow | None:
    """Return the flow as it is; finds the key, and what is null in a row that deletes."""
    good = walk.need_key(operator, before, needed=True)
    if operator.history_ms is not None and before.untimed:
        source = before.untimed[0]
        text = f'history= counts event time, which input {source!r} has not: give time="..."'
        walk.report(operator, text)
        good = False
    if (feed := _through_bus(walk, operator)) is not None:
        text = (
            "a table is read before what is joined with it, which takes epochs in common: take "
            f'via="bus" out of {feed.name!r}'
        )
        walk.report(operator, text)
        good = False
    if not good:
        return None
    beside = (*before.keys, before.time)
    values = tuple(name for name in before.schema.names if name not in beside)
    walk.operators[operator.name] = replace(operator, keys=before.keys, values=values)
    return before


def _through_bus(walk: Walk, operator: Operator) -> PartitionBy | None:
    """The repartition by way of the bus that rows reach an operator by, if one is the last."""
    for name in operator.inputs:
        owner = walk.operators[name]
        if isinstance(owner, PartitionBy):
            if owner.via == BUS:
                return owner
        elif (found := _through_bus(walk, owner)) is not None:
            return found
    return None


def changes_flow(walk: Walk, operator: Changes, before: Flow) -> Flow | None:
    """Return the columns of a table and the flag."""
    if IS_DELETED in before.schema.names:
        walk.report(operator, f"adds a column {IS_DELETED!r}, which the table has: rename it")
        return None
    flag = pa.field(IS_DELETED, pa.bool_())
    return replace(before, schema=before.schema.append(flag), takes=None)


def join_kept_flow(walk: Walk, operator: JoinKept) -> Flow | None:
    """Return the columns of a stream and those of a table's row."""
    rows, table = (walk.flows[name] for name in operator.inputs)
    if not walk.need_key(operator, rows, needed=True):
        return None
    if operator.waiting is not None and rows.untimed:
        source = rows.untimed[0]
        text = f'as_of="event" needs event time, which input {source!r} has not: give time="..."'
        walk.report(operator, text)
        return None
    columns = _added(walk, operator, rows, table)
    if columns is None:
        return None
    walk.operators[operator.name] = replace(operator, columns=columns, by=rows.keys)
    return replace(rows, schema=_with(rows.schema, table.schema, columns), takes=None)


def join_tables_flow(walk: Walk, operator: JoinTables) -> Flow | None:
    """Return the columns of two tables; the key has the names of the first one's."""
    left, right = (walk.flows[name] for name in operator.inputs)
    columns = _added(walk, operator, left, right)
    if columns is None:
        return None
    walk.operators[operator.name] = replace(operator, columns=columns, by=left.keys)
    untimed = tuple(dict.fromkeys((*left.untimed, *right.untimed)))
    schema = _with(left.schema, right.schema, columns)
    return Flow(schema, left.keys, None, untimed)


def _added(
    walk: Walk, operator: JoinKept | JoinTables, left: Flow, right: Flow
) -> tuple[tuple[str, str], ...] | None:
    """The columns that the right side adds, after what is wrong with them was told."""
    columns, wrong = added_columns(operator, left, right)
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
