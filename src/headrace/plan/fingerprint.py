"""What must not change under old state: one stable JSON text for each operator that has some.

Functions, filters and other stateless steps are left out: changing them is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.graph.durations import duration_text
from headrace.graph.joins import JoinStreams
from headrace.graph.operators import (
    Deduplicate,
    Input,
    Operator,
    Process,
    RunningAggregate,
    StoreSpec,
    WindowAggregate,
)
from headrace.graph.ordering import InOrder
from headrace.graph.table_operators import JoinKept, KeepTable
from headrace.plan.flows import Flow
from headrace.plan.joins import join_layouts
from headrace.plan.stages import Stage
from headrace.records.layout import TableLayout

JOB = "job"
PATTERN = "pattern"
STREAM = "stream"
SINK = "sink"
GRACE = "grace"
FEED = "internal stream of"
SENT = "what is sent by"
OPERATOR = "operator"
JOIN = "join of streams"
HOW = "how"


def fingerprint(
    stages: tuple[Stage, ...],
    flows: Mapping[str, Flow],
    key_groups: int,
) -> dict[str, str]:
    """Return the fingerprint of a plan, by operator; ``job`` is that of the whole."""
    found: dict[str, dict[str, Any]] = {JOB: {"kind": "job", "key groups": key_groups}}
    for stage in stages:
        for binding in stage.inputs:
            found[binding.operator] = {
                "kind": "input",
                STREAM: binding.stream,
                "partitions": binding.partitions,
            }
            if binding.pattern:
                found[binding.operator][PATTERN] = binding.pattern
        for feed in stage.feeds:
            found[feed.operator] = {"kind": FEED, "stage": stage.name, "width": feed.partitions}
        for sent in stage.sends:
            if sent.stream:  # of the sending part, whose rows so far no new reader would have
                found[sent.stream] = {"kind": SENT, OPERATOR: sent.operator}
        for sink in stage.sinks:
            found[sink.operator] = {"kind": SINK, "to": sink.sink.identity}
        for operator in stage.operators:
            if not isinstance(operator, Input):
                described = _describe(operator)
                if described is not None:
                    described["stage"] = stage.name
                    flow = flows[operator.inputs[0]]
                    described["key"] = _key(flow, flow.keys)
                    if isinstance(operator, Deduplicate):
                        described["by"] = _key(flow, operator.columns)
                    if isinstance(operator, InOrder):
                        columns = tuple(stage.schemas[operator.name].names)
                        described["columns"] = _key(flow, columns)
                        if behind := stage.delays.get(operator.name, 0):
                            described["behind"] = duration_text(behind)
                    if isinstance(operator, JoinStreams):
                        described |= _joined(operator, stage)
                    if isinstance(operator, KeepTable | JoinKept):
                        described["columns"] = _key(flow, tuple(flow.schema.names))
                    found[operator.name] = described
    return {name: json.dumps(parts, sort_keys=True) for name, parts in found.items()}


def _describe(operator: Operator) -> dict[str, Any] | None:
    if isinstance(operator, RunningAggregate | WindowAggregate):
        described = {
            "kind": "window" if isinstance(operator, WindowAggregate) else "aggregate",
            "aggregates": [f"{name} = {a.describe()}" for name, a in operator.aggregates],
            "types": [str(getattr(a, "type", "")) for _, a in operator.aggregates],
            "stores": [_store(operator.store)],
        }
        if isinstance(operator, WindowAggregate):
            window = operator.window
            described |= window.describe() | {GRACE: duration_text(window.grace_ms)}
        elif operator.every_ms is not None:
            described["every"] = duration_text(operator.every_ms)
        return described
    if isinstance(operator, Deduplicate):
        # How long ids are kept may change, but not by which clock.
        clock = "event time" if operator.within_ms is not None else "wall clock"
        return {
            "kind": "deduplicate",
            "kept by": clock if operator.store.ttl_ms is not None else "nothing",
            "stores": [_store(operator.store)],
        }
    if isinstance(operator, InOrder):
        return {"kind": "in order", "stores": [_store(operator.store)]}
    if isinstance(operator, JoinStreams):
        return {"kind": JOIN, "stores": [_store(spec) for spec in operator.stores]}
    if isinstance(operator, KeepTable):
        keeps = "the last row" if operator.history_ms is None else "versions"
        return {"kind": "table", "keeps": keeps, "stores": [_store(operator.store)]}
    if isinstance(operator, JoinKept) and operator.waiting is not None:
        return {"kind": "join", "stores": [_store(operator.waiting)]}
    if isinstance(operator, Process):
        return {"kind": "process", "stores": [_store(spec) for spec in operator.stores]}
    return None


def _joined(operator: JoinStreams, stage: Stage) -> dict[str, Any]:
    """What is kept of both sides, and for how long: rows that went do not come back."""
    left, right = join_layouts(stage, operator)
    return {
        "left columns": _kept(left),
        "right columns": _kept(right),
        HOW: operator.how,
        GRACE: duration_text(operator.reach.grace_ms),
        **operator.reach.describe(),
    }


def _kept(layout: TableLayout) -> list[str]:
    return [f"{column.name}: {column.type}" for column in (*layout.keys, *layout.values)]


def _key(flow: Flow, columns: tuple[str, ...]) -> list[str]:
    kinds = {column.name: column.type for column in flow.schema}
    return [f"{key}: {kinds[key]}" if key in kinds else key for key in columns]


def _store(spec: StoreSpec) -> str:
    value = spec.value
    kind = value.__qualname__ if isinstance(value, type) else str(value)
    # How long may change, but whether values say when they were written may not.
    ttl = "" if spec.ttl_ms is None else ", ttl"
    log = "" if spec.changelog else ", no changelog"
    return f"{spec.name}: {kind} ({spec.kind}{ttl}{log})"
