"""Operators about keys: repartition, totals, ids."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.operators import (
    Deduplicate,
    PartitionBy,
    RunningAggregate,
    WindowAggregate,
)
from headrace.graph.windows import Tumbling
from headrace.plan.flows import Flow
from headrace.plan.routing import (
    deduplicate_mistakes,
    key_mistakes,
)
from headrace.plan.walk import Walk

MOMENT = pa.timestamp("us", tz="UTC")


def partition_flow(walk: Walk, operator: PartitionBy, before: Flow) -> Flow | None:
    """Return the flow by another key."""
    wrong = key_mistakes(operator.keys, before.schema)
    for text in wrong:
        walk.report(operator, text)
    return None if wrong else replace(before, keys=operator.keys, lost=None)


def deduplicate_flow(walk: Walk, operator: Deduplicate, before: Flow) -> Flow | None:
    """Return the flow as it is, if it has the key and ids."""
    wrong = deduplicate_mistakes(operator, before.schema, before.untimed)
    for text in wrong:
        walk.report(operator, text)
    return before if walk.need_key(operator, before, needed=True) and not wrong else None


def aggregate_flow(
    walk: Walk, operator: RunningAggregate | WindowAggregate, before: Flow
) -> Flow | None:
    """Return the key, the heads of windows and the totals; binds the aggregates."""
    window = operator.window if isinstance(operator, WindowAggregate) else None
    is_periodic = isinstance(operator, RunningAggregate) and operator.every_ms is not None
    needs_time = is_periodic if window is None else window.is_timed
    good = walk.need_key(operator, before, needed=True)
    if needs_time and before.untimed:
        what = "aggregate(every=...)" if is_periodic else "window"
        source = before.untimed[0]
        hint = f'give g.input({source!r}, time="...")'
        text = f"{what} needs event time, which input {source!r} has not: {hint}"
        walk.report(operator, text)
        good = False
    fields, bound = [], []
    for name, aggregate in operator.aggregates:
        try:
            fields.append((name, aggregate.result_type(before.schema)))
            bound.append((name, aggregate.bind(before.schema)))
        except InvalidInputError as error:
            walk.report(operator, f"{name}: {error.message}")
            good = False
    if not good:
        return None
    walk.operators[operator.name] = replace(operator, aggregates=tuple(bound))
    heads = ["at"] if is_periodic else []
    size = window.size_ms if isinstance(window, Tumbling) else None
    if window is not None:
        heads = list(window.heads)
    time = heads[0] if heads else None
    if size is not None and before.time == "window_start" and before.window_ms == size:
        # The start of a window of the same size is that of the window it falls into.
        heads = [name for name in heads if name != "window_start" or name not in before.keys]
    clash = [name for name in heads if name in before.keys]
    if clash:
        text = f"key columns {clash} have the names of columns it makes: rename them with map"
        walk.report(operator, text)
        return None
    keys = [(key, before.schema.field(key).type) for key in before.keys]
    made = [(name, MOMENT) for name in heads]
    flags = [(name, pa.bool_()) for name in (window.flags if window is not None else ())]
    schema = pa.schema([*keys, *made, *fields, *flags])
    return replace(before, schema=schema, time=time, window_ms=size)
