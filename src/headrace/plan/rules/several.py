"""Operators that put streams and tables together."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.operators import (
    JoinTable,
    Merge,
    Union,
)
from headrace.plan.flows import Flow
from headrace.plan.routing import (
    merge_mistakes,
    union_schema,
)
from headrace.plan.tables import join_mistakes, joined
from headrace.plan.walk import Walk


def merge_flow(walk: Walk, operator: Merge) -> Flow | None:
    """Return the columns that several streams have as one."""
    flows = [walk.flows[name] for name in operator.inputs]
    first = flows[0]
    schemas = {name: walk.flows[name].schema for name in operator.inputs}
    if isinstance(operator, Union):
        schema, wrong = union_schema(schemas, first.keys)
    else:
        schema, wrong = first.schema, merge_mistakes(schemas)
    for text in wrong:
        walk.report(operator, text)
    if wrong:
        return None
    untimed = tuple(dict.fromkeys(name for flow in flows for name in flow.untimed))
    lost = next((flow.lost for flow in flows if flow.lost is not None), None)
    time = first.time if len({flow.time for flow in flows}) == 1 else None
    return Flow(schema, first.keys, lost, untimed, time)


def join_table_flow(walk: Walk, operator: JoinTable, before: Flow) -> Flow | None:
    """Return the flow with the columns of a broadcast store."""
    table = walk.tables.bind(operator, operator.table)
    if table is None:
        return None
    columns, known = joined(operator, table), before.schema
    wrong = [
        f"on: {unknown_column(name, known.names)}"
        for name in operator.on
        if name not in known.names
    ]
    wrong += [
        f"columns: {unknown_column(old, table.schema.names)}"
        for _, old in columns
        if old not in table.schema.names
    ]
    if not wrong:
        wrong += join_mistakes(operator, table, columns, known)
    for text in wrong:
        walk.report(operator, text)
    if wrong:
        return None
    made = [pa.field(new, table.schema.field(old).type) for new, old in columns]
    return replace(before, schema=pa.schema([*known, *made]))
