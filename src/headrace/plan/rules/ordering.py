"""``in_order``: the columns stay; it needs the key and event time."""

from __future__ import annotations

from dataclasses import replace

from headrace.graph.ordering import InOrder
from headrace.plan.flows import Flow
from headrace.plan.walk import Walk


def in_order_flow(walk: Walk, operator: InOrder, before: Flow) -> Flow | None:
    """Return the flow as it is, if its rows have a key and event time."""
    good = walk.need_key(operator, before, needed=True)
    for source in before.untimed:
        hint = f'give g.input({source!r}, time="...")'
        walk.report(operator, f"in_order needs event time, which input {source!r} has not: {hint}")
    walk.operators[operator.name] = replace(operator, keys=before.keys)
    return before if good and not before.untimed else None
