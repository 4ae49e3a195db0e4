"""Draws a plan as a Mermaid flowchart: streams, stages as boxes, exchanges as thick edges."""

from __future__ import annotations

from headrace.graph.operators import DEAD_LETTER, Input, Operator, SendTo, SendToSink
from headrace.graph.semantics import Semantics
from headrace.plan.dead_letters import DEAD
from headrace.plan.explain import counted, describe
from headrace.plan.stages import HIDDEN, JobPlan, SinkBinding, Stage


def mermaid(plan: JobPlan) -> str:
    """Return the text of a flowchart; GitHub and mermaid.live draw it."""
    drawing = _Drawing(plan)
    lines = ["flowchart TB", *drawing.streams()]
    for stage in plan.stages:
        lines += drawing.stage(stage)
    for stage in plan.stages:
        lines += drawing.edges(stage)
    return "\n".join(lines) + "\n"


class _Drawing:
    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        inputs = [binding.stream for stage in plan.stages for binding in stage.inputs]
        outputs = [binding.stream for stage in plan.stages for binding in stage.outputs]
        outputs += [_sink(binding) for binding in plan.sinks]
        names = dict.fromkeys([*inputs, *outputs])
        self._streams = {name: f"stream{number}" for number, name in enumerate(names)}
        ends = {b.stream: b.semantics for b in plan.outputs}
        ends |= {_sink(binding): binding.semantics for binding in plan.sinks}
        self._semantics = {n: s for n, s in ends.items() if s != Semantics.EXACTLY_ONCE}
        inner = [o.name for stage in plan.stages for o in stage.operators if not _is_end(o)]
        self._nodes = {name: f"op{number}" for number, name in enumerate(inner)}

    def streams(self) -> list[str]:
        lines = []
        for name, node in self._streams.items():
            own = self._semantics.get(name)
            label = _text(name) if own is None else f"{_text(name)}<br/>{own.words}"
            lines.append(f'  {node}[("{label}")]')
        return lines

    def stage(self, stage: Stage) -> list[str]:
        inner = [operator for operator in stage.operators if not _is_end(operator)]
        by = f" by {', '.join(stage.receives[0].keys)}" if stage.keyed else ""
        title = f"stage {stage.index}: {counted(stage.tasks, 'task')}{by}"
        lines = [f'  subgraph stage{stage.index}["{_text(title)}"]']
        for operator in inner:
            label = "<br/>".join(_text(row) for row in [operator.name, *describe(operator)])
            lines.append(f'    {self._nodes[operator.name]}["{label}"]')
        if not inner:
            lines.append(f'    pass{stage.index}(["passes on"])')
        return [*lines, "  end"]

    def edges(self, stage: Stage) -> list[str]:
        feeds = {binding.operator: binding.stream for binding in stage.inputs}
        outputs = {binding.operator: binding.stream for binding in stage.outputs}
        outputs |= {binding.operator: _sink(binding) for binding in stage.sinks}
        received = {exchange.operator: exchange for exchange in stage.receives}
        lines = []
        for operator in stage.operators:
            if operator.on_error == DEAD_LETTER:
                source = self._nodes.get(operator.name) or self._streams[feeds[operator.name]]
                lines.append(f"  {source} -. refused .-> {self._streams[outputs[DEAD]]}")
            target = self._nodes.get(operator.name) or self._streams.get(
                outputs.get(operator.name, "")
            )
            if target is None:
                continue
            for before in operator.inputs:
                if before in received:
                    exchange = received[before]
                    sent = ", ".join(n for n in exchange.schema.names if n not in HIDDEN)
                    sent += f" through {exchange.stream}" if exchange.stream else ""
                    source = self._source(exchange.source_stage, exchange.upstream)
                    lines.append(f'  {source} == "{_text(sent)}" ==> {target}')
                else:
                    source = self._nodes.get(before) or self._streams[feeds[before]]
                    lines.append(f"  {source} --> {target}")
        if not stage.operators:
            lines += [
                f"  {self._source(exchange.source_stage, exchange.upstream)} ==> pass{stage.index}"
                for exchange in stage.receives
            ]
        return lines

    def _source(self, index: int, operator: str) -> str:
        """The node whose rows a ``partition_by`` takes."""
        if operator in self._nodes:
            return self._nodes[operator]
        stage = self._plan.stages[index]
        feeds = {binding.operator: binding.stream for binding in stage.inputs}
        return self._streams[feeds[operator]] if operator in feeds else f"pass{index}"


def _is_end(operator: Operator) -> bool:
    return isinstance(operator, Input | SendTo | SendToSink)


def _sink(binding: SinkBinding) -> str:
    return binding.sink.identity


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
