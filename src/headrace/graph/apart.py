"""A graph beside another one of the same code: its outputs are streams of its own."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import InvalidInputError
from headrace.graph.operators import JobGraph, Operator, SendTo, SendToSink


def with_own_outputs(graph: JobGraph, suffix: str) -> JobGraph:
    """Return a graph that sends to other streams: the names it has, a dot, and a suffix.

    Raises:
        InvalidInputError: it sends to a sink, which it would share with the other one.
    """
    sinks = [one.name for one in graph.operators if isinstance(one, SendToSink)]
    if sinks:
        raise InvalidInputError(
            f"job {graph.name!r} sends to sinks by {', '.join(sinks)}, which can be given no "
            "outputs of its own as streams can: leave them out for a run beside the live one"
        )

    def own(operator: Operator) -> Operator:
        if isinstance(operator, SendTo):
            return replace(operator, stream=f"{operator.stream}.{suffix}")
        return operator

    return replace(graph, operators=tuple(map(own, graph.operators)))
