"""Finds the columns that later operators use, walking the graph backwards.

In an exchange moving bytes is the cost, and a wide stream is read by column: what nobody
uses is neither read nor sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from headrace.graph.joins import JoinStreams
from headrace.graph.operators import (
    BUS,
    DEAD_LETTER,
    Deduplicate,
    Explode,
    Filter,
    FilterMessages,
    FlatMapMessages,
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
    WindowAggregate,
)
from headrace.graph.ordering import InOrder
from headrace.graph.several import reading
from headrace.graph.table_operators import Changes, JoinKept, JoinTables, KeepTable
from headrace.plan.expressions import Resolved, broadcast
from headrace.plan.flows import Flow
from headrace.plan.rules.joins import late_input

_TABLES = (KeepTable, Changes, JoinTables)
"""Tables keep all columns: code that uses others later finds them."""

_WHOLE = (MapMessages, FlatMapMessages, MapBatches, Process, SendTo, SendToSink, *_TABLES)


def prune(
    operators: dict[str, Operator], flows: dict[str, Flow]
) -> tuple[dict[str, Operator], dict[str, pa.Schema]]:
    """Return the operators without unused expressions, and the columns that leave each.

    What goes through an internal stream keeps all columns: rows of it outlive the code.

    Args:
        operators: in graph order, bound.
        flows: all columns that leave each.
    """
    needed: dict[str, set[str]] = {name: set() for name in operators}
    pruned = dict(operators)
    for name in reversed(operators):
        wanted = needed[name] or set(flows[name].schema.names[:1])
        operator = operators[name]
        if isinstance(operator, PartitionBy) and operator.via == BUS:
            wanted = set(flows[name].schema.names)  # rows may wait for code that uses others
        needed[name] = wanted
        if isinstance(operator, Select):
            operator = pruned[name] = _prune_select(operator, flows, wanted)
        if isinstance(operator, JoinStreams):
            _read_by_join(operator, wanted, flows, needed)
            continue
        for before in operator.inputs:
            owner = operators[before]
            if isinstance(operator, Port) and isinstance(owner, JoinStreams):
                needed[late_input(operator, owner)] |= wanted
                continue
            if isinstance(operator, Port) and isinstance(owner, WindowAggregate | InOrder):
                needed[owner.inputs[0]] |= wanted  # late records, as they came
                continue
            needed[before] |= _reads(reading(operator, before), flows[before], wanted)
            if operator.on_error == DEAD_LETTER:
                needed[before] |= set(flows[before].keys) & set(flows[before].schema.names)
    schemas = {}
    for name, flow in flows.items():
        keep = set(flow.schema.names) if isinstance(operators[name], _WHOLE) else needed[name]
        schemas[name] = pa.schema([column for column in flow.schema if column.name in keep])
    return pruned, schemas


def _read_by_join(
    operator: JoinStreams, wanted: set[str], flows: Mapping[str, Flow], needed: dict[str, set[str]]
) -> None:
    """Note what a join reads of either side: keys, and what is wanted of it."""
    left, right = operator.inputs
    needed[left] |= (wanted & set(flows[left].schema.names)) | set(operator.by[0])
    added = {old for new, old in operator.columns or () if new in wanted}
    needed[right] |= added | set(operator.by[1])


def _reads(operator: Operator, before: Flow, wanted: set[str]) -> set[str]:
    """The columns of its input that an operator reads or passes on."""
    everything = set(before.schema.names)
    match operator:
        case Select():
            parts = [Resolved(expression, before.schema) for expression in operator.expressions]
            return set().union(*(part.reads for part in parts))
        case Filter():
            assert operator.expression is not None
            return wanted | Resolved(operator.expression, before.schema).reads
        case FilterMessages():
            return wanted | (everything if operator.uses is None else set(operator.uses))
        case MapMessages() | FlatMapMessages() | MapBatches():
            return everything if operator.uses is None else set(operator.uses)
        case InOrder():
            return wanted | set(before.keys)
        case PartitionBy():
            return wanted | set(operator.keys)
        case Split():
            return wanted | _asked(operator, before)
        case Port():
            return wanted if operator.returns is None else set()
        case Merge():
            return wanted & everything
        case Deduplicate():
            return wanted | set(operator.columns)
        case JoinTable():
            return (wanted & everything) | set(operator.on)
        case JoinKept():
            own = set(before.keys) if operator.waiting is None else everything
            return (wanted & everything) | own
        case RunningAggregate() | WindowAggregate():
            read = {column for _, a in operator.aggregates for column in a.columns()}
            return read | set(before.keys)
        case Process():
            present = {key for key in before.keys if key in everything}
            for spec in operator.stores:
                present |= set(spec.remote.load) if spec.remote is not None else set()
            return everything if operator.uses is None else set(operator.uses) | present
    return everything


def _asked(operator: Split, before: Flow) -> set[str]:
    """The columns that the conditions of a split read."""
    read: set[str] = set()
    for branch in operator.branches:
        if branch.expression is not None:
            read |= Resolved(branch.expression, before.schema).reads
        else:
            read |= set(operator.uses or before.schema.names)
    return read


def _prune_select(operator: Select, flows: dict[str, Flow], wanted: set[str]) -> Select:
    source = flows[operator.inputs[0]].schema
    parts = [Resolved(expression, source) for expression in operator.expressions]
    first = parts[:1] if isinstance(operator, Explode) else []  # it says how many rows there are
    kept = first + [part for part in parts[len(first) :] if wanted & set(part.schema.names)]
    expressions = [part.expression for part in kept]
    if not any(part.reads for part in kept):
        # Constants alone would make one row, whatever the number of messages.
        expressions[0] = broadcast(expressions[0], kept[0].schema.names[0])
    return replace(
        operator, expressions=tuple(expressions), text=tuple(str(part) for part in expressions)
    )
