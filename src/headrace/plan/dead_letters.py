"""Dead letters in a plan: the stream they go to, and which rows keep where they came from.

A row that an operator refuses is kept with the record of the stream that it was made of. So
rows on their way to an operator with ``on_error="dead_letter"`` carry their origin, in two
hidden columns where they pass a ``partition_by``; no others do, and those of aggregates have
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from headrace.graph.operator_base import Flow, StreamInfo
from headrace.graph.operators import (
    DEAD_LETTER,
    InOrder,
    Input,
    JobGraph,
    Operator,
    PartitionBy,
    Process,
)
from headrace.plan.stages import (
    OFFSET,
    ORIGIN,
    OutputBinding,
    Stage,
)

DEAD_LETTERS = "__dead"
"""Stands for an operator's name in the binding of the stream of dead letters."""

PARTITION_BITS = 16

ORIGINS = [pa.field(ORIGIN, pa.int32()), pa.field(OFFSET, pa.int64())]

DEAD_SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("job", pa.string()),
        ("epoch", pa.int64()),
        ("operator", pa.string()),
        ("code", pa.string()),
        ("kind", pa.string()),
        ("message", pa.string()),
        ("stream", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("is_original", pa.bool_()),
        ("record", pa.binary()),
    ]
)


def dead_stream(job: str, chosen: str | None = None) -> str:
    """Return the stream of a job's dead letters: the one chosen, else its own."""
    return chosen or f"{job}.dead"


def has_dead_letters(operators: Iterable[Operator]) -> bool:
    """Say whether any operator makes dead letters."""
    return any(operator.on_error == DEAD_LETTER for operator in operators)


def traced_operators(operators: Mapping[str, Operator]) -> set[str]:
    """Return the operators whose rows have to know the record that they were made of."""
    traced: set[str] = set()
    keyed = _keyed(operators)
    for operator in reversed(list(operators.values())):
        is_source = isinstance(operator, Input)
        if isinstance(operator, InOrder):  # rows of one time go by the record they were made of
            traced |= set(operator.inputs)
        if operator.on_error == DEAD_LETTER:
            traced |= {operator.name} if is_source else set(operator.inputs)
        if isinstance(operator, Process) and operator.calls and operator.name not in keyed:
            traced |= set(operator.inputs)  # calls are known by the offset of their record
        if operator.name in traced and not operator.is_of_many:
            traced |= set(operator.inputs)
    return traced


def _keyed(operators: Mapping[str, Operator]) -> set[str]:
    """The operators of stages that are partitioned by key."""
    found: set[str] = set()
    for operator in operators.values():
        if isinstance(operator, PartitionBy) or not found.isdisjoint(operator.inputs):
            found.add(operator.name)
    return found


def dead_bindings(
    graph: JobGraph, stream: str, streams: Mapping[str, StreamInfo], mistakes: list[str]
) -> tuple[OutputBinding, ...]:
    """Return the output that dead letters go to; nothing where no operator makes any."""
    if not has_dead_letters(graph.operators):
        return ()
    head = f"dead letters go to stream {stream!r}"
    if stream in {operator.stream for operator in graph.operators if isinstance(operator, Input)}:
        mistakes.append(f"{head}, which is also an input: set job.dead_letters to another")
    info = streams.get(stream)
    if info is not None and not info.schema.equals(DEAD_SCHEMA):
        mistakes.append(f"{head}, which holds other columns: set job.dead_letters to another")
    partitions = 1 if info is None else info.partitions
    return (OutputBinding(DEAD_LETTERS, stream, partitions, DEAD_SCHEMA, (), "at"),)


def with_dead_letters(
    stages: Iterable[Stage], bindings: tuple[OutputBinding, ...]
) -> tuple[Stage, ...]:
    """Return stages of which those have the output of dead letters that make any."""
    return tuple(
        replace(stage, outputs=stage.outputs + bindings)
        if has_dead_letters(stage.operators)
        else stage
        for stage in stages
    )


def letter_columns(
    operators: Mapping[str, Operator], flows: Mapping[str, Flow]
) -> dict[str, set[str]]:
    """Return the columns that leave operators, and that dead letters name a row's key by."""
    found: dict[str, set[str]] = {}
    for operator in operators.values():
        if operator.on_error == DEAD_LETTER:
            for before in operator.inputs:
                flow = flows[before]
                found.setdefault(before, set()).update(set(flow.keys) & set(flow.schema.names))
    return found


def refused_to(operator: Operator, stage: Stage) -> list[str]:
    """Return the stream that gets what an operator of a stage refuses; none where none does."""
    if operator.on_error != DEAD_LETTER:
        return []
    return [binding.stream for binding in stage.outputs if binding.operator == DEAD_LETTERS]


def on_error_text(operator: Operator, stage: Stage) -> str:
    """Return in words what happens to the rows that an operator of a stage refuses."""
    streams = refused_to(operator, stage)
    return f"dead letter to {streams[0]}" if streams else operator.on_error


def dead_streams(graph: JobGraph, chosen: str | None) -> dict[str, str]:
    """Return the stream of a job's dead letters, if it makes any, and how to choose another."""
    if not has_dead_letters(graph.operators):
        return {}
    return {dead_stream(graph.name, chosen): "set job.dead_letters to another"}
