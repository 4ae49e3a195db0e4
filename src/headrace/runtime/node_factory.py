"""Which node runs each operator: the registry, what makes nodes by it, and what they are given.

A new operator has one line in ``NODES``. Modules are loaded when a stage has the operator first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.errors import InternalError
from headrace.graph import operators, processors, stream_joins
from headrace.graph.operators import Operator
from headrace.plan.stages import CallLimits, Stage
from headrace.records.schema import TableLayout
from headrace.runtime.async_loop import CallLoop
from headrace.runtime.context import RemoteStores
from headrace.runtime.node import Node
from headrace.state.broadcast import BroadcastTable
from headrace.state.columnar_table import ColumnarTable
from headrace.state.task_state import TaskState


@dataclass(frozen=True)
class RuntimeContext:
    """What is the same for all tasks of a job in a process.

    Args:
        job: its name.
        key_groups: of the job.
        limits: of calls of the user's functions.
        bus: where records are read again that become dead letters.
        loop: of the process, for asynchronous calls.
        hot_keys: whether heavy keys are looked for.
    """

    job: str
    key_groups: int
    limits: CallLimits
    bus: Bus
    loop: CallLoop
    hot_keys: bool = True


@dataclass(frozen=True)
class NodeContext:
    """What nodes of a task are made of.

    Args:
        stage: the stage.
        task: number of the task.
        groups: its key groups, first and after last; unused for source tasks.
        runtime: what it has in common with the other tasks.
        state: its stores, caught up; ``None`` where the stage has none.
        remotes: opens its remote stores.
        tables: the broadcast stores of the process, at the epoch's offsets.
        asks: in a stage that reads by offset, what makes its asynchronous calls; else empty.
    """

    stage: Stage
    task: int
    groups: tuple[int, int]
    runtime: RuntimeContext
    state: TaskState | None
    remotes: RemoteStores
    tables: Mapping[str, BroadcastTable]
    asks: Mapping[str, Node] = field(default_factory=dict)

    def source_schema(self, operator: Operator) -> pa.Schema:
        """Return the columns that reach an operator by its first input."""
        return self.stage.schemas[operator.inputs[0]]

    def table(self, store: str) -> ColumnarTable:
        """Return a store of columns."""
        return self.stores.table(store)

    @property
    def stores(self) -> TaskState:
        """The stores of the task, where an operator has some."""
        assert self.state is not None
        return self.state

    def delay_ms(self, operator: Operator) -> int:
        """Return how far the watermark that reaches an operator is behind the stage's."""
        return self.stage.delays.get(operator.name, 0)


@dataclass(frozen=True)
class Runtime:
    """What runs an operator, each as ``module:name`` below ``headrace.runtime``.

    Args:
        node: from the operator and a ``NodeContext`` to its node.
        layouts: from the stage and the operator to the layouts of its columnar stores, by name.
    """

    node: str
    layouts: str = ""


_AGGREGATES = Runtime("windows.builder:aggregate_node", "windows.layouts:table_layouts")
_TABLE_LAYOUTS = "ktable_joins:ktable_layouts"
NODES: dict[type[Operator], Runtime] = {
    operators.Select: Runtime("stateless:SelectNode.of"),
    operators.Explode: Runtime("stateless:ExplodeNode.of"),
    operators.Filter: Runtime("stateless:FilterNode.of"),
    operators.Sample: Runtime("stateless:SampleNode.of"),
    operators.MapMessages: Runtime("stateless:MessageNode.of"),
    operators.FlatMapMessages: Runtime("stateless:MessageNode.of"),
    operators.FilterMessages: Runtime("stateless:MessageNode.of"),
    operators.InspectMessages: Runtime("stateless:MessageNode.of"),
    operators.MapBatches: Runtime("stateless:MapBatchesNode.of"),
    operators.Split: Runtime("stateless:SplitNode.of"),
    operators.Port: Runtime("stateless:ForwardNode.of"),
    operators.Merge: Runtime("stateless:ForwardNode.of"),
    operators.Union: Runtime("stateless:ForwardNode.of"),
    operators.Changes: Runtime("stateless:ForwardNode.of"),
    operators.JoinTable: Runtime("stateless:BroadcastJoinNode.of"),
    operators.Generate: Runtime("processors:PreAggregateNode.of"),
    operators.Deduplicate: Runtime("deduplicate:DeduplicateNode.of", "deduplicate:id_layouts"),
    operators.InOrder: Runtime("in_order:InOrderNode.of", "in_order:in_order_layouts"),
    operators.RunningAggregate: _AGGREGATES,
    operators.WindowAggregate: _AGGREGATES,
    operators.Process: Runtime("process_nodes:process_node"),
    processors.ProcessSeveral: Runtime("process_nodes:multi_input_node"),
    operators.KeepTable: Runtime("ktable_joins:kept_table_node", _TABLE_LAYOUTS),
    operators.JoinKept: Runtime("ktable_joins:stream_table_node", _TABLE_LAYOUTS),
    operators.JoinTables: Runtime("ktable_joins:table_table_node"),
    stream_joins.JoinStreams: Runtime("stream_join:JoinStreamsNode.of", "stream_join:join_layouts"),
    operators.SendTo: Runtime("outputs:OutputNode.of"),
    operators.KeepForSink: Runtime("outputs:OutputNode.of"),
    operators.SendToSink: Runtime("outputs:sink_node"),
}


def make_node(operator: Operator, build: NodeContext) -> Node:
    """Return the node of an operator that is no input and no ``partition_by``."""
    node: Node = load(_runtime(operator).node)(operator, build)
    return node


def layouts_of(stage: Stage, operator: Operator) -> dict[str, TableLayout]:
    """Return the layouts of the columnar stores of an operator, by name."""
    runtime = NODES.get(type(operator))
    if runtime is None or not runtime.layouts:
        return {}
    found: dict[str, TableLayout] = load(runtime.layouts)(stage, operator)
    return found


def _runtime(operator: Operator) -> Runtime:
    try:
        return NODES[type(operator)]
    except KeyError:
        kind = type(operator).__name__
        raise InternalError(f"operator {operator.name!r} of kind {kind} has no node") from None


@cache
def load(target: str) -> Callable[..., Any]:
    """Return what a ``module:name`` of the registry is."""
    module, _, name = target.partition(":")
    found: Callable[..., Any] = attrgetter(name)(import_module(f"headrace.runtime.{module}"))
    return found
