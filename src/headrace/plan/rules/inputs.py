"""Inputs: the columns of a stream, and where its event time comes from."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.operators import (
    EventTime,
    Input,
)
from headrace.plan.columns import differences
from headrace.plan.expressions import Resolved
from headrace.plan.flows import Flow
from headrace.plan.taking import with_class
from headrace.plan.walk import Walk


def input_flow(walk: Walk, operator: Input) -> Flow | None:
    """Return what an input brings: the columns of its stream, and its event time."""
    info = walk.streams.get(operator.stream)
    if info is None and operator.schema is None:
        known = f"; streams are {sorted(walk.streams)}" if walk.streams else ""
        text = f"no stream {operator.stream!r}; create it, or give schema= to plan without it"
        walk.report(operator, text + known)
        return None
    schema = operator.schema if info is None else info.schema
    assert schema is not None
    if info is not None and operator.schema is not None:
        differ = differences(operator.schema, info.schema, extra_allowed=True)
        if differ:
            text = f"stream {operator.stream!r} does not have the schema given: {differ}"
            walk.report(operator, text)
            return None
        schema = operator.schema
    if operator.event is not None:
        return _made_time(walk, operator, operator.event, schema)
    time = operator.time or (info.time if info is not None else None)
    whole = schema if info is None else info.schema
    if time is not None:
        if time not in whole.names:
            walk.report(operator, f"event time: {unknown_column(time, whole.names)}")
            return None
        kind = whole.field(time).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
            text = f"event-time column {time!r} is {kind}; expected a timestamp or integer ms"
            walk.report(operator, text)
            return None
    shown = time if time in schema.names else None
    untimed = () if time is not None else (operator.name,)
    return Flow(schema, untimed=untimed, time=shown, takes=operator.takes)


def _made_time(walk: Walk, operator: Input, event: EventTime, schema: pa.Schema) -> Flow | None:
    """The flow of an input whose event times are made; finds the columns they need."""
    if event.expression is not None:
        resolved = Resolved(event.expression, schema)
        if not walk.resolve(operator, resolved, "time="):
            return None
        kinds = [column.type for column in resolved.schema]
        if len(kinds) != 1 or not (
            pa.types.is_timestamp(kinds[0]) or pa.types.is_integer(kinds[0])
        ):
            found = ", ".join(map(str, kinds))
            text = f"time={event.text} gives {found}; expected a timestamp or integer ms"
            walk.report(operator, text)
            return None
        uses = tuple(name for name in schema.names if name in resolved.reads)
        event = replace(event, uses=uses)
    elif event.function is not None:
        event, wrong = with_class(event, schema, operator.takes)
        for text in wrong:
            walk.report(operator, text)
        uses = tuple(schema.names) if event.uses is None else event.uses
        asking = replace(operator, takes=event.takes)
        if wrong or not walk.can_be_message(asking, uses, schema):
            return None
        event = replace(event, uses=uses)
    walk.operators[operator.name] = replace(operator, event=event)
    return Flow(schema, takes=operator.takes)
