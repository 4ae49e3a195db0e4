"""The node of ``aggregate`` and ``window``, and the layouts of their stores, for the registry."""

from __future__ import annotations

from headrace.graph.operators import RunningAggregate, WindowAggregate
from headrace.plan.stages import Stage
from headrace.records.schema import TableLayout
from headrace.runtime.node import Node
from headrace.runtime.node_context import NodeContext
from headrace.runtime.windows.builder import aggregate_node
from headrace.runtime.windows.layouts import table_layouts


def node(operator: RunningAggregate | WindowAggregate, build: NodeContext) -> Node:
    """Return the node."""
    return aggregate_node(
        build.stage, operator, build.stores, build.groups, build.around.key_groups
    )


def layouts(stage: Stage, operator: RunningAggregate | WindowAggregate) -> dict[str, TableLayout]:
    """Return the layout of its store, where that is columnar."""
    found = table_layouts(stage)
    name = operator.store.name
    return {name: found[name]} if name in found else {}
