"""Prints a plan for people: levels, stages, tasks, operators, stores, what is sent.

``diagram`` draws the same as a flowchart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.graph.durations import duration_text
from headrace.graph.frames import FrameSource
from headrace.graph.joins import JoinStreams
from headrace.graph.operators import (
    DEAD_LETTER,
    FAIL,
    Deduplicate,
    Explode,
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
    SendTo,
    SendToSink,
    Split,
    StoreSpec,
    Union,
    WindowAggregate,
)
from headrace.graph.ordering import InOrder
from headrace.graph.processors import words_of
from headrace.graph.remote import shown_url
from headrace.graph.several import ProcessSeveral, Source
from headrace.graph.signatures import name_of
from headrace.graph.states import MonoidTotal
from headrace.graph.table_operators import (
    Changes,
    JoinKept,
    JoinTables,
    KeepTable,
    kept_stores,
)
from headrace.plan.asynchronous import calls_text
from headrace.plan.dead_letters import DEAD
from headrace.plan.joins import describe_join, kept_rows
from headrace.plan.kept import kept_row, late_rows
from headrace.plan.parts import split
from headrace.plan.reading import describe_kept
from headrace.plan.semantics import commit_rows, promise
from headrace.plan.stages import HIDDEN, ORIGIN, TIME, Exchange, InputBinding, JobPlan, Stage

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
    parts = split(plan)
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
            by = f" by ({', '.join(out.keys)})" if out.keys else " by task"
            rows = [f"output {out.stream}: {counted(out.partitions, 'partition')}{by}"]
            rows.append(f"columns {_listed(out.schema.names)}")
            rows += promise(out.semantics)
        elif operator.name in sinks:
            columns = sinks[operator.name].schema.names
            rows = [*describe(operator), f"columns {_listed(columns)}"]
            rows += promise(sinks[operator.name].semantics)
        else:
            rows = describe(operator)
        if isinstance(operator, RunningAggregate | WindowAggregate):
            rows.append(kept_row(operator, stage.schemas[operator.inputs[0]]))
        rows += kept_rows(stage, operator)
        if operator.on_error == DEAD_LETTER:
            rows.append(f"on error: dead letter to {outputs[DEAD].stream}")
        elif operator.on_error != FAIL:
            rows.append(f"on error: {operator.on_error}")
        yield f"    {operator.name}"
        for row in rows:
            yield f"      {row}"
    for exchange in stage.sends:
        yield f"    -> stage {exchange.target_stage} by ({', '.join(exchange.keys)})"
        for row in _exchange_rows(stage, exchange):
            yield f"      {row}"


def _input_rows(binding: InputBinding) -> list[str]:
    total = len(binding.schema)
    read = f"columns {_listed(binding.columns)}"
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
        yield f"idle after {duration_text(binding.idle_ms)}: holds no watermark back then"


def _exchange_rows(stage: Stage, exchange: Exchange) -> list[str]:
    users = [name for name in exchange.schema.names if name not in HIDDEN]
    rows = [f"sends {_listed(users)}"]
    if exchange.combined is not None:
        names = _listed([name for name, _ in exchange.combined.reader.aggregates])
        rows.append(f"or partial results of {names}, where keys repeat")
    if exchange.stream:
        rows.append(_through(exchange))
    if TIME in exchange.schema.names:
        rows[0] += "; event time and watermark"
    if ORIGIN in exchange.schema.names:
        rows[0] += "; origin, for dead letters or order"
    dropped = [name for name in stage.schemas[exchange.upstream].names if name not in users]
    if dropped:
        rows.append(f"drops {_listed(dropped)}")
    return rows


def _through(exchange: Exchange) -> str:
    width = counted(exchange.partitions, "partition")
    return f"through internal stream {exchange.stream}, {width}"


def _beside(operator: Explode) -> list[str]:
    return [f"with {_listed(operator.text[1:])}"] if operator.text[1:] else []


def describe(operator: Operator) -> list[str]:
    """Return what an operator does, one row for each part."""
    match operator:
        case Explode():
            return [f"a row for each element of {operator.text[0]}", *_beside(operator)]
        case Select():
            return [f"map to {_listed(operator.text)}"]
        case Filter():
            return [f"filter {operator.text}"]
        case Generate():
            used = "" if operator.uses is None else f", uses {_listed(operator.uses)}"
            return [f"partial results by key with {name_of(operator.function)}{used}"]
        case MapMessages() | FlatMapMessages() | FilterMessages() | MapBatches():
            kinds = {MapMessages: "map", FlatMapMessages: "flat_map", MapBatches: "map_batches"}
            used = "" if operator.uses is None else f", uses {_listed(operator.uses)}"
            kind = kinds.get(type(operator), "filter")
            return [f"{kind} with {name_of(operator.function)}{used}"]
        case Split():
            asked = [f"{branch.name}: {branch.text}" for branch in operator.branches]
            return ["split, each row to the first that is true", *asked]
        case PartitionBy():
            return [f"partition by {_listed(operator.keys) or 'nothing: all are together'}"]
        case Port():
            kind = "branch" if operator.returns is None else "side"
            return [f"{kind} {operator.port} of {operator.inputs[0]}"]
        case JoinStreams():
            return describe_join(operator)
        case Union():
            return [f"union of {_listed(operator.inputs)}"]
        case Deduplicate():
            return _deduplicate(operator)
        case InOrder():
            return _in_order(operator)
        case Merge():
            return [f"merge of {_listed(operator.inputs)}"]
        case WindowAggregate(window=window):
            grace = f", grace {duration_text(window.grace_ms)}" if window.grace_ms else ""
            head = f"{window.text()}{grace}"
            return [head, *late_rows(window), *_aggregates(operator), _store(operator.store)]
        case RunningAggregate():
            return [_totals(operator), *_aggregates(operator), _store(operator.store)]
        case ProcessSeveral():
            own = ", ".join(map(_source, operator.sources))
            head = f"process of {own} with {name_of(operator.factory)}"
            return [head, *map(_store, operator.stores), *_tables(operator)]
        case Process():
            used = "" if operator.uses is None else f", uses {_listed(operator.uses)}"
            head = f"{words_of(operator.factory)} {name_of(operator.factory)}{used}"
            calls = [] if operator.calls is None else [calls_text(operator.calls)]
            return [head, *calls, *map(_store, operator.stores), *_tables(operator)]
        case JoinTable():
            return _join(operator)
        case KeepTable() | Changes() | JoinKept() | JoinTables():
            return [*describe_kept(operator), *map(_store, kept_stores(operator))]
        case Input(frame=FrameSource()):
            return ["of a Spark DataFrame", f"through internal stream {operator.stream}"]
        case Input(priority=int(priority)) if priority:
            return [f"{operator.stream}, priority {priority}"]
        case Input() | SendTo():
            return [operator.stream]
        case SendToSink() if operator.sink is not None:
            return [f"sink {operator.sink.identity}", operator.sink.promise]
    return [type(operator).__name__]


def _in_order(operator: InOrder) -> list[str]:
    late = ["late rows go to side late"] if operator.late == "side_output" else []
    head = "rows by event time, each kept until the watermark has passed it"
    return [head, *late, _store(replace(operator.store, ttl_ms=None))]


def _totals(operator: RunningAggregate) -> str:
    if operator.every_ms is not None:
        return f"totals every {duration_text(operator.every_ms)}"
    if any(isinstance(aggregate, MonoidTotal) for _, aggregate in operator.aggregates):
        return "totals, added to once an epoch"
    return "totals after each message"


def _source(source: Source) -> str:
    return source.name + ("" if source.uses is None else f" ({_listed(source.uses)})")


def _tables(operator: Process) -> list[str]:
    return [
        f"broadcast store {t.name} of {t.origin} by ({', '.join(t.key)})" for t in operator.tables
    ]


def _deduplicate(operator: Deduplicate) -> list[str]:
    head = f"first row of each ({', '.join(operator.columns)})"
    spec = operator.store
    if operator.within_ms is not None:
        head += f" within {duration_text(operator.within_ms)} of event time"
        spec = replace(spec, ttl_ms=None)
    elif spec.ttl_ms is None:
        head += ", ids kept for good"
    return [head, _store(spec)]


def _join(operator: JoinTable) -> list[str]:
    table, columns = operator.table, operator.columns
    pairs = (f"{mine} = {key}" for mine, key in zip(operator.on, table.key, strict=True))
    added = "all columns" if columns is None else _listed([new for new, _ in columns])
    return [
        f"{operator.how} join with broadcast store {table.name} on {', '.join(pairs)}",
        f"table of {table.origin}, adds {added}",
    ]


def _aggregates(operator: RunningAggregate | WindowAggregate) -> list[str]:
    return [f"{name} = {aggregate.describe()}" for name, aggregate in operator.aggregates]


def _store(spec: StoreSpec) -> str:
    if spec.remote is not None:
        where = "the setting remote.url" if spec.remote.url is None else shown_url(spec.remote.url)
        return (
            f"store {spec.name} (remote, {spec.remote.access}, at {where}): at-least-once; sent "
            "before the epoch is committed, and again if it is run again; no changelog"
        )
    kept = "" if spec.ttl_ms is None else f", {duration_text(spec.ttl_ms)} to live"
    if not spec.changelog:
        kept += ", no changelog): not durable; empty again when its process or host is lost"
        return f"store {spec.name} ({spec.kind}{kept}"
    return f"store {spec.name} ({spec.kind}{kept})"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural where it is not one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(names: object) -> str:
    return ", ".join(names) if isinstance(names, list | tuple) else str(names)


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
