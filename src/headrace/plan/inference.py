"""Finds the columns, key and event time that leave each operator, and all mistakes on the way.

An operator whose input is broken is passed over, so that one mistake is told once.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.graph.joins import JoinStreams
from headrace.graph.operators import (
    Deduplicate,
    Filter,
    FilterMessages,
    FlatMapMessages,
    Generate,
    Input,
    JoinTable,
    MapBatches,
    MapMessages,
    Merge,
    Operator,
    PartitionBy,
    Port,
    Process,
    RunningAggregate,
    Select,
    SendToSink,
    Split,
    WindowAggregate,
)
from headrace.graph.ordering import InOrder
from headrace.graph.several import ProcessSeveral
from headrace.graph.table_operators import Changes, JoinKept, JoinTables, KeepTable
from headrace.plan.flows import Flow, declared
from headrace.plan.rules.inputs import input_flow
from headrace.plan.rules.joins import join_flow, late_input
from headrace.plan.rules.keyed import aggregate_flow, deduplicate_flow, partition_flow
from headrace.plan.rules.monoids import generate_flow
from headrace.plan.rules.ordering import in_order_flow
from headrace.plan.rules.outputs import check_outputs
from headrace.plan.rules.processes import several_flow, side_flow
from headrace.plan.rules.rows import function_flow, select_flow, split_flow
from headrace.plan.rules.several import join_table_flow, merge_flow
from headrace.plan.rules.tables import (
    changes_flow,
    join_kept_flow,
    join_tables_flow,
    keep_table_flow,
)
from headrace.plan.walk import Walk


class Inference(Walk):
    """Walks a graph once, in order; ``flows``, ``operators`` and ``mistakes`` are the result."""

    def run(self) -> None:
        """Infer every operator that can be."""
        for operator in self.graph.operators:
            self.operators[operator.name] = operator
            if all(name in self.flows for name in operator.inputs):
                flow = self._infer(operator)
                if flow is not None and self._names_fit(operator, flow.schema):
                    self.flows[operator.name] = flow
        check_outputs(self)

    def _names_fit(self, operator: Operator, schema: pa.Schema) -> bool:
        hidden = [name for name in schema.names if name.startswith("__")]
        if hidden:
            self.report(operator, f"columns {hidden} begin with '__', which Headrace keeps")
        return not hidden

    def _infer(self, operator: Operator) -> Flow | None:
        if isinstance(operator, Input):
            return input_flow(self, operator)
        before = self.flows[operator.inputs[0]]
        owner = self.operators[operator.inputs[0]]
        if isinstance(operator, Port) and isinstance(owner, WindowAggregate | InOrder):
            return self.flows[owner.inputs[0]]  # late records, as they came
        if isinstance(operator, Port) and isinstance(owner, JoinStreams):
            return self.flows[late_input(operator, owner)]
        if isinstance(operator, Port) and isinstance(owner, ProcessSeveral):
            return side_flow(self, operator, owner)
        if isinstance(operator, Port) and operator.returns is not None:
            return declared(operator, self.flows[owner.inputs[0]], operator.returns)
        if not len(before.schema):
            text = f"operator {operator.inputs[0]!r} declares no columns; give it returns="
            self.report(operator, text)
            return None
        match operator:
            case Select():
                return select_flow(self, operator, before)
            case Filter():
                assert operator.expression is not None
                good = self.condition(operator, before, operator.expression, "filter")
                return before if good else None
            case Split():
                return split_flow(self, operator, before)
            case Generate():
                return generate_flow(self, operator, before)
            case ProcessSeveral():
                return several_flow(self, operator)
            case MapMessages() | FlatMapMessages() | FilterMessages() | MapBatches() | Process():
                return function_flow(self, operator, before)
            case PartitionBy():
                return partition_flow(self, operator, before)
            case JoinTable():
                return join_table_flow(self, operator, before)
            case KeepTable():
                return keep_table_flow(self, operator, before)
            case Changes():
                return changes_flow(self, operator, before)
            case JoinKept():
                return join_kept_flow(self, operator)
            case JoinTables():
                return join_tables_flow(self, operator)
            case JoinStreams():
                return join_flow(self, operator)
            case Merge():
                return merge_flow(self, operator)
            case InOrder():
                return in_order_flow(self, operator, before)
            case Deduplicate():
                return deduplicate_flow(self, operator, before)
            case RunningAggregate() | WindowAggregate():
                return aggregate_flow(self, operator, before)
            case SendToSink():
                self._bind(operator, before)
        return before

    def _bind(self, operator: SendToSink, before: Flow) -> None:
        """Tell a sink what is known of its rows."""
        if operator.sink is not None:
            sink = operator.sink.bound(before.time, before.window_ms or 0)
            self.operators[operator.name] = replace(operator, sink=sink)
            for text in sink.column_mistakes(before.schema):
                self.report(operator, text)
