"""``Stream``: the fluent API. Each method adds one operator to the graph and runs nothing.

Functions and expressions are told apart by type: a Polars expression works on columns, any
other callable on messages. Mistakes go to the graph, which reports all of them at build.
"""

from __future__ import annotations

from headrace.graph.arguments import shown, with_on_error
from headrace.graph.daily import DailyTable
from headrace.graph.join_steps import JoinSteps
from headrace.graph.keyed_steps import KeyedSteps
from headrace.graph.ledger import Output, SinkOutput
from headrace.graph.monoid_steps import MonoidSteps
from headrace.graph.operators import (
    ON_ERROR,
    Operator,
    SendTo,
    SendToSink,
)
from headrace.graph.order_steps import OrderSteps
from headrace.graph.process_steps import ProcessSteps
from headrace.graph.route_steps import RouteSteps
from headrace.graph.row_steps import RowSteps
from headrace.graph.sinks import Sink
from headrace.graph.sites import user_site
from headrace.graph.table_steps import TableSteps
from headrace.graph.window_steps import WindowSteps


class Stream(
    RowSteps,
    RouteSteps,
    KeyedSteps,
    OrderSteps,
    WindowSteps,
    ProcessSteps,
    MonoidSteps,
    JoinSteps,
    TableSteps,
):
    """What leaves one operator; each method adds the next operator and returns its stream."""

    def send_to(self, output: Output | SinkOutput | Sink, name: str | None = None) -> None:
        """Append the messages to an output stream, or send them to a receiver outside.

        Args:
            output: from ``Graph.output`` or ``Graph.output_sink``; or a sink, such as
                ``hr.sinks.parquet(folder)``.
            name: of the operator; a sink knows by it which epochs it has.
        """
        site = user_site()
        if isinstance(output, Sink):
            output = SinkOutput(self._ledger, output, site)
            self._ledger.add_sink(output, [])
        target = _as_output(output)

        def make(chosen: str, wrong: list[str]) -> Operator:
            if target is None:
                wrong.append(f'send_to takes g.output("name") or a sink; found {shown(output)}')
                return SendTo(chosen, (self.name,), site)
            if target.ledger is not self._ledger:
                wrong.append(f"output {target.label!r} belongs to another graph")
            self._ledger.mark_sent(target)
            if isinstance(target, SinkOutput):
                parts = (target.sink, target.semantics)
                made = SendToSink(chosen, (self.name,), site, *parts)
                if isinstance(target.sink, DailyTable) and target.sink.late in ON_ERROR:
                    return with_on_error(wrong, made, target.sink.late)
                return made
            to = (target.stream, target.partitions, target.semantics)
            return SendTo(chosen, (self.name,), site, *to)

        self._add(f"to_{'output' if target is None else target.label}", name, make, self.keys)


def _as_output(value: object) -> Output | SinkOutput | None:
    return value if isinstance(value, Output | SinkOutput) else None
