"""Which ``partition_by`` may send partial results in the place of rows.

Where nothing but one aggregate reads a ``partition_by``, the sending tasks may fold rows first, by
key and by the span of event time that the aggregate folds them by anyway. Results are the same, for
partial results combine in any grouping (sums of floats: up to rounding); what goes through
the exchange is less. Rows that are late go as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from headrace.graph.aggregates import Aggregate
from headrace.graph.monoid import Monoid
from headrace.graph.operators import Operator, RunningAggregate, WindowAggregate
from headrace.graph.windows import GlobalWindow, Hopping, Tumbling, Window
from headrace.plan.stages import HIDDEN, Combined, Exchange


def combining(exchange: Exchange, operators: Mapping[str, Operator]) -> Exchange:
    """Return an exchange that may send partial results, where that changes no result.

    Args:
        exchange: through files.
        operators: of the job, bound.
    """
    readers = _readers(operators, exchange.operator)
    reader = readers[0] if len(readers) == 1 else None
    if not isinstance(reader, RunningAggregate | WindowAggregate):
        return exchange
    if isinstance(reader, RunningAggregate):
        if reader.every_ms is None and _readers(operators, reader.name):
            return exchange  # the totals after each message
    elif not _is_plain(reader.window):
        return exchange
    if not all(_is_cheap(aggregate) for _, aggregate in reader.aggregates):
        return exchange
    hidden = [field for field in exchange.schema if field.name in HIDDEN]
    users = pa.schema([field for field in exchange.schema if field.name not in HIDDEN])
    partials = [
        pa.field(f"{name}.{part}", kind)
        for name, aggregate in reader.aggregates
        for part, kind in aggregate.partial_types(users).items()
    ]
    if {field.name for field in partials} & set(users.names):
        return exchange  # who reads could not tell them from rows
    keys = [users.field(key) for key in exchange.keys]
    schema = pa.schema([*keys, *partials, *hidden])
    return replace(exchange, combined=Combined(reader, schema))


def _readers(operators: Mapping[str, Operator], name: str) -> list[Operator]:
    return [operator for operator in operators.values() if name in operator.inputs]


def _is_plain(window: Window) -> bool:
    """Say whether rows count in it by key and a span of event time alone, or are dropped."""
    match window:
        case Tumbling():
            return window == Tumbling(window.size_ms, grace_ms=window.grace_ms)
        case Hopping():
            return window == Hopping(window.size_ms, window.every_ms, grace_ms=window.grace_ms)
    return window == GlobalWindow()


def _is_cheap(aggregate: Aggregate) -> bool:
    """Say whether two partial results combine at about the cost of taking a row in.

    A sketch takes rows in by the thousand, but combines one by one.
    """
    return isinstance(aggregate, Monoid) or aggregate.combine_pair("<", "") is not None
