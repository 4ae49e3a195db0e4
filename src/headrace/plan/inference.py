"""Finds the columns, key and event time that leave each operator, and all mistakes on the way.

The rules are those of the operators' classes; here they are asked, in the order of the graph.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.graph.flows import differences
from headrace.graph.operators import Operator, SendTo
from headrace.plan.flows import InferenceContext, output_differences


def check_outputs(walk: InferenceContext) -> None:
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


class Inference(InferenceContext):
    """Walks a graph once, in order; ``flows``, ``operators`` and ``mistakes`` are the result."""

    def run(self) -> None:
        """Infer every operator that can be."""
        for operator in self.graph.operators:
            self.operators[operator.name] = operator
            if all(name in self.flows for name in operator.inputs):
                flow = operator.infer(self)
                if flow is not None and self._names_fit(operator, flow.schema):
                    self.flows[operator.name] = flow
        check_outputs(self)

    def _names_fit(self, operator: Operator, schema: pa.Schema) -> bool:
        hidden = [name for name in schema.names if name.startswith("__")]
        if hidden:
            self.report(operator, f"columns {hidden} begin with '__', which Headrace keeps")
        return not hidden
