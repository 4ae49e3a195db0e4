"""A graph beside another one of the same code: its outputs are streams of its own."""

from __future__ import annotations

from dataclasses import replace

from headrace.graph.operators import (
    JobGraph,
    KeepForSink,
    Operator,
    SendTo,
    SendToSink,
)


def with_own_outputs(graph: JobGraph, suffix: str) -> JobGraph:
    """Return a graph that sends to other streams: the names it has, a dot, and a suffix.

    What it would send to a sink, which has no other name, it keeps in a stream by the names of the
    job and the operator.
    """

    def own(operator: Operator) -> Operator:
        if isinstance(operator, SendTo):
            return replace(operator, stream=f"{operator.stream}.{suffix}")
        if isinstance(operator, SendToSink):
            stream = f"{graph.name}.{operator.name}"
            return KeepForSink(operator.name, operator.inputs, operator.site, stream)
        return operator

    return replace(graph, operators=tuple(map(own, graph.operators)))
