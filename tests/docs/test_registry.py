"""Each operator of a graph has a node that runs it."""

from __future__ import annotations

from headrace.graph.operators import Input, Operator, PartitionBy, Reshape
from headrace.graph.operators.stateless import MessageFunction
from headrace.runtime.node_factory import NODES, load

_WITHOUT_NODE = {Input, PartitionBy, MessageFunction, Reshape}
"""A stage reads and exchanges by itself; the planner replaces ``Reshape``; one is a base."""


def _kinds(base: type[Operator]) -> set[type[Operator]]:
    below = {kind for one in base.__subclasses__() for kind in _kinds(one)}
    return below | set(base.__subclasses__())


def test_each_operator_is_registered() -> None:
    known = {kind for kind in _kinds(Operator) if kind.__module__.startswith("headrace.")}
    assert known - _WITHOUT_NODE == set(NODES)


def test_what_is_registered_is_there() -> None:
    for runtime in NODES.values():
        assert callable(load(runtime.node))
        assert not runtime.layouts or callable(load(runtime.layouts))
