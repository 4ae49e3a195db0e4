"""``monoid``: partial results by key, and where they may go."""

from __future__ import annotations

from headrace.graph.operators import (
    Generate,
    KeepForSink,
    Operator,
    PartitionBy,
    RunningAggregate,
    SendToSink,
)
from headrace.graph.states import MonoidTotal
from headrace.plan.flows import Flow
from headrace.plan.rules.rows import function_flow
from headrace.plan.walk import Walk


def generate_flow(walk: Walk, operator: Generate, before: Flow) -> Flow | None:
    """Return the key and the partial result; refuse readers whose input would depend on epochs."""
    for reader in _readers(walk, operator.name):
        if isinstance(reader, PartitionBy):
            for total in _readers(walk, reader.name):
                _check_total(walk, total)
        elif not isinstance(reader, SendToSink | KeepForSink):
            walk.report(
                reader,
                "reads what a monoid keeps on a server; read the totals there, or keep them with "
                "state='local' and every=",
            )
    return function_flow(walk, operator, before)


def _check_total(walk: Walk, total: Operator) -> None:
    is_total = isinstance(total, RunningAggregate) and any(
        isinstance(aggregate, MonoidTotal) for _, aggregate in total.aggregates
    )
    if not is_total or not isinstance(total, RunningAggregate) or total.every_ms is not None:
        return
    for reader in _readers(walk, total.name):
        walk.report(
            reader,
            f"reads the totals of {total.name!r}, which sends none: they are combined once an "
            "epoch, and epochs end anywhere; give monoid(..., every=)",
        )


def _readers(walk: Walk, name: str) -> list[Operator]:
    return [operator for operator in walk.graph.operators if name in operator.inputs]
