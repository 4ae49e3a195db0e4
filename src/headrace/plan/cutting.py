"""Cuts a graph at its ``partition_by`` operators into stages, and orders these by level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.graph.operators import Operator, PartitionBy


@dataclass(frozen=True)
class Cut:
    """Which stage each operator is in; a ``partition_by`` counts to the stage it feeds."""

    stage_of: dict[str, int]
    levels: tuple[int, ...]


def cut(operators: Mapping[str, Operator], report: Callable[[Operator, str], None]) -> Cut | None:
    """Return the stages, numbered by level and then by their first operator.

    All readers of one ``partition_by`` are in one stage, so its rows are written once. A
    graph in which a stage would feed itself is reported, and ``None`` returned.
    """
    parent = {name: name for name in operators}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]  # or 900 streams of a pattern would take long
            name = parent[name]
        return name

    for operator in operators.values():
        if not isinstance(operator, PartitionBy):
            for before in operator.inputs:
                parent[find(operator.name)] = find(before)
    edges: dict[str, set[str]] = {find(name): set() for name in operators}
    for operator in operators.values():
        if isinstance(operator, PartitionBy):
            edges[find(operator.name)].add(find(operator.inputs[0]))
    levels = _levels(edges)
    if levels is None:
        for operator in operators.values():
            if len(operator.inputs) > 1:
                report(
                    operator,
                    "joins rows from before and after a partition_by of the same stage, which "
                    "would have to wait for itself: put a partition_by of its own before each",
                )
                break
        return None
    first = {find(name): at for at, name in reversed(list(enumerate(operators)))}
    order = sorted(edges, key=lambda root: (levels[root], first[root]))
    number = {root: index for index, root in enumerate(order)}
    return Cut(
        {name: number[find(name)] for name in operators}, tuple(levels[root] for root in order)
    )


def _levels(edges: dict[str, set[str]]) -> dict[str, int] | None:
    """Longest way from a stage without senders, or ``None`` where there is a ring."""
    levels: dict[str, int] = {}
    while len(levels) < len(edges):
        ready = [
            root for root, senders in edges.items() if root not in levels and senders <= set(levels)
        ]
        if not ready:
            return None
        for root in ready:
            levels[root] = max((levels[sender] + 1 for sender in edges[root]), default=0)
    return levels
