"""Outputs: that a stream is sent the columns that it has."""

from __future__ import annotations

from headrace.graph.operators import (
    SendTo,
)
from headrace.plan.columns import differences, output_differences
from headrace.plan.walk import Walk


def check_outputs(walk: Walk) -> None:
    """Report outputs that are sent other columns or partitions than the stream has."""
    first: dict[str, SendTo] = {}
    for operator in walk.graph.operators:
        if not isinstance(operator, SendTo) or operator.name not in walk.flows:
            continue
        schema = walk.flows[operator.name].schema
        info = walk.streams.get(operator.stream)
        other = first.setdefault(operator.stream, operator)
        if info is not None:
            differ = output_differences(operator.stream, info, schema)
            if differ:
                text = f"stream {operator.stream!r} exists with other columns: {differ}"
                walk.report(operator, text)
            if operator.partitions not in (None, info.partitions):
                text = (
                    f"stream {operator.stream!r} exists with {info.partitions} partitions; "
                    f"found partitions={operator.partitions}: leave it out"
                )
                walk.report(operator, text)
        elif other is not operator:
            differ = differences(walk.flows[other.name].schema, schema)
            if differ:
                text = f"{other.name!r} sends other columns to {operator.stream!r}: {differ}"
                walk.report(operator, text)
