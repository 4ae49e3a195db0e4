"""A plan for people and programs: as text, as a Mermaid flowchart, and as plain objects.

``explain`` prints levels, stages, tasks, operators, stores and what is sent; ``mermaid`` draws
streams, stages as boxes and exchanges as thick edges; ``plan_object`` gives the same for JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.durations import duration_text
from headrace.graph.operator_base import listed
from headrace.graph.operators import (
    FAIL,
    Input,
    Operator,
    SendTo,
    SendToSink,
)
from headrace.graph.semantics import Semantics
from headrace.plan.dead_letters import on_error_text, refused_to
from headrace.plan.parts import split_parts
from headrace.plan.semantics import commit_rows, promise
from headrace.plan.stages import (
    HIDDEN,
    ORIGIN,
    TIME,
    Exchange,
    InputBinding,
    JobPlan,
    SinkBinding,
    Stage,
)
from headrace.redaction import without_login

_WIDTH = 96


def explain(plan: JobPlan, width: int = _WIDTH) -> str:
    """Return a text that says what each level, stage and task of a plan does.

    Args:
        plan: of the job.
        width: that lines are broken at.
    """
    tasks = sum(stage.tasks for stage in plan.stages)
    lines = [
        f"job {plan.graph.name}: {counted(len(plan.levels), 'level')}, "
        f"{counted(len(plan.stages), 'stage')}, {counted(tasks, 'task')}, "
        f"{counted(plan.key_groups, 'key group')}"
    ]
    parts = split_parts(plan)
    if len(parts) > 1:
        lines[0] += f", {counted(len(parts), 'part')} with epochs of their own"
    lines += commit_rows(plan)
    for part in parts:
        if len(parts) > 1:
            lines += ["", f"part {part.job}"]
        for number, stages in enumerate(part.levels):
            lines += ["", f"level {number}"]
            for stage in stages:
                lines += _stage_lines(stage)
    return "\n".join(row for line in lines for row in _wrapped(line, width)) + "\n"


def _stage_lines(stage: Stage) -> Iterator[str]:
    if stage.keyed:
        keys = ", ".join(stage.receives[0].keys)
        what = f"each a range of key groups of ({keys})" if keys else "one has all messages"
    else:
        what = "one for each input partition"
    yield f"  stage {stage.index}: {counted(stage.tasks, 'task')}, {what}"
    for received in stage.receives:
        behind = ""
        if stage.timed and received.delay_ms:
            behind = f", watermark {duration_text(received.delay_ms)} behind"
        yield f"    from stage {received.source_stage} by {received.operator}{behind}"
        if received.stream:
            yield f"      {_through(received)}"
    bindings = {binding.operator: binding for binding in stage.inputs}
    outputs = {binding.operator: binding for binding in stage.outputs}
    sinks = {binding.operator: binding for binding in stage.sinks}
    for operator in stage.operators:
        if operator.name in bindings:
            rows = _input_rows(bindings[operator.name])
            if isinstance(operator, Input) and operator.frame is not None:
                rows.append("internal stream of a Spark DataFrame, whose rows it gets")
                if (instead := operator.frame.instead) is not None:
                    rows.append(f"by the settings: {instead.given.text}")
        elif operator.name in outputs:
            out = outputs[operator.name]
            by = ", all to the first" if stage.is_gathered else " by task"
            by = f" by ({', '.join(out.keys)})" if out.keys else by
            rows = [f"output {out.stream}: {counted(out.partitions, 'partition')}{by}"]
            rows.append(f"columns {listed(out.schema.names)}")
            rows += promise(out.semantics)
        elif operator.name in sinks:
            columns = sinks[operator.name].schema.names
            rows = [*operator.describe(), f"columns {listed(columns)}"]
            rows += promise(sinks[operator.name].semantics)
        else:
            rows = operator.describe()
        rows += operator.state_rows(stage)
        if operator.on_error != FAIL:
            rows.append(f"on error: {on_error_text(operator, stage)}")
        yield f"    {operator.name}"
        for row in rows:
            yield f"      {row}"
    for exchange in stage.sends:
        yield f"    -> stage {exchange.target_stage} by ({', '.join(exchange.keys)})"
        for row in _exchange_rows(stage, exchange):
            yield f"      {row}"


def _input_rows(binding: InputBinding) -> list[str]:
    total = len(binding.schema)
    read = f"columns {listed(binding.columns)}"
    if len(binding.columns) < total:
        read += f" ({len(binding.columns)} of {total})"
    rows = [f"input {binding.stream}: {counted(binding.partitions, 'partition')}", read]
    if binding.source:
        rows.insert(1, f"by the settings: {binding.source}")
    if binding.bootstrap:
        rows.append("read first, up to the end that it has when the job begins")
    if binding.priority:
        rows.append(f"priority {binding.priority}: read before inputs with a lower one")
    if binding.is_clock:
        rows.append("processing time: the wall clock of the epoch that reads a record")
    elif binding.is_timed:
        rows += _event_time(binding)
    return rows


def _event_time(binding: InputBinding) -> Iterator[str]:
    source = binding.time if binding.event is None else f"by {binding.event.text}"
    late = f"up to {duration_text(binding.lateness_ms)} late" if binding.lateness_ms else "in order"
    if (followed := binding.confidence) is not None:
        first = duration_text(followed.first_ms)
        late = f"late by the delays of {followed.part:.10g} of the records, at first {first}"
    yield f"event time {source}, {late}"
    if binding.idle_ms is not None:
        closes = ""
        if binding.closes_after_ms is not None:
            closes = "; with all partitions idle, windows close"
        yield f"idle after {duration_text(binding.idle_ms)}: holds no watermark back then{closes}"


def _exchange_rows(stage: Stage, exchange: Exchange) -> list[str]:
    users = [name for name in exchange.schema.names if name not in HIDDEN]
    rows = [f"sends {listed(users)}"]
    if exchange.combined is not None:
        names = listed([name for name, _ in exchange.combined.reader.aggregates])
        rows.append(f"or partial results of {names}, where keys repeat")
    if exchange.stream:
        rows.append(_through(exchange))
    if TIME in exchange.schema.names:
        rows[0] += "; event time and watermark"
    if ORIGIN in exchange.schema.names:
        rows[0] += "; origin, for dead letters or order"
    dropped = [name for name in stage.schemas[exchange.upstream].names if name not in users]
    if dropped:
        rows.append(f"drops {listed(dropped)}")
    return rows


def _through(exchange: Exchange) -> str:
    width = counted(exchange.partitions, "partition")
    place = f" in {without_login(exchange.address.partition('?')[0])}" if exchange.address else ""
    return f"through internal stream {exchange.stream}, {width}{place}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural where it is not one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _wrapped(row: str, width: int) -> Iterator[str]:
    """Break a long row between its words, continued lines indented further."""
    text = row.lstrip()
    indent = row[: len(row) - len(text)]
    line = indent
    for word in text.split(" "):
        if len(line) + len(word) > width and line.strip():
            yield line.rstrip()
            line = f"{indent}  "
        line += f"{word} "
    yield line.rstrip()


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
            label = "<br/>".join(_text(row) for row in [operator.name, *operator.describe()])
            lines.append(f'    {self._nodes[operator.name]}["{label}"]')
        if not inner:
            lines.append(f'    pass{stage.index}(["passes on"])')
        return [*lines, "  end"]

    def edges(self, stage: Stage) -> list[str]:
        inputs = {binding.operator: binding.stream for binding in stage.inputs}
        outputs = {binding.operator: binding.stream for binding in stage.outputs}
        outputs |= {binding.operator: _sink(binding) for binding in stage.sinks}
        received = {exchange.operator: exchange for exchange in stage.receives}
        lines = []
        for operator in stage.operators:
            for stream in refused_to(operator, stage):
                source = self._nodes.get(operator.name) or self._streams[inputs[operator.name]]
                lines.append(f"  {source} -. refused .-> {self._streams[stream]}")
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
                    source = self._nodes.get(before) or self._streams[inputs[before]]
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
        inputs = {binding.operator: binding.stream for binding in stage.inputs}
        return self._streams[inputs[operator]] if operator in inputs else f"pass{index}"


def _is_end(operator: Operator) -> bool:
    return isinstance(operator, Input | SendTo | SendToSink)


def _sink(binding: SinkBinding) -> str:
    return binding.sink.identity


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def plan_object(plan: JobPlan) -> dict[str, Any]:
    """Return a plan ready for JSON: its stages in order of parts and their levels."""
    return {
        "job": plan.graph.name,
        "key_groups": plan.key_groups,
        "stages": [
            {"part": part.job, **_stage(stage)}
            for part in split_parts(plan)
            for stage in part.stages
        ],
    }


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "stage": stage.index,
        "name": stage.name,
        "level": stage.level,
        "tasks": stage.tasks,
        "keys": list(stage.receives[0].keys) if stage.keyed else None,
        "inputs": [
            {
                "operator": one.operator,
                "stream": one.stream,
                "partitions": one.partitions,
                "columns": list(one.columns),
                "time": one.time,
                "lateness_ms": one.lateness_ms,
                "bootstrap": one.bootstrap,
                "priority": one.priority,
                "source": one.source,
            }
            for one in stage.inputs
        ],
        "operators": [{"name": one.name, "does": one.describe()} for one in stage.operators],
        "stores": [
            {"name": one.name, "kind": one.kind, "ttl_ms": one.ttl_ms, "changelog": one.changelog}
            for one in stage.stores
        ],
        "sends": [
            {
                "by": one.operator,
                "to": one.target_stage,
                "through": one.stream or None,
                "columns": [name for name in one.schema.names if name not in HIDDEN],
            }
            for one in stage.sends
        ],
        "outputs": [
            {"operator": one.operator, "stream": one.stream, "partitions": one.partitions}
            for one in stage.outputs
        ],
        "sinks": [
            {"operator": one.operator, "identity": one.sink.identity, "promise": one.sink.promise}
            for one in stage.sinks
        ],
    }
