"""Operators that take one row after the other: expressions, functions, branches."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.operators import (
    Explode,
    FilterMessages,
    FlatMapMessages,
    Operator,
    Process,
    Select,
    Split,
)
from headrace.plan.expressions import Resolved
from headrace.plan.flows import Flow, declared, follow
from headrace.plan.taking import branch_mistakes, with_class
from headrace.plan.walk import Walk


def select_flow(walk: Walk, operator: Select, before: Flow) -> Flow | None:
    """Return the columns that expressions make; splits those that make several."""
    parts = [Resolved(expression, before.schema) for expression in operator.expressions]
    is_exploding = isinstance(operator, Explode)
    good = [walk.resolve(operator, part, "flat_map" if is_exploding else "map") for part in parts]
    if not all(good):
        return None
    parts = [piece for part in parts for piece in part.split()]
    fields = [column for part in parts for column in part.schema]
    if is_exploding:
        if not pa.types.is_list(fields[0].type):
            found = f"{parts[0].expression} is {fields[0].type}"
            mistake = f"flat_map makes rows of a list; {found}; expected a list, or give a function"
            walk.report(operator, mistake)
            return None
        fields[0] = pa.field(fields[0].name, fields[0].type.value_type)
    names = [column.name for column in fields]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        walk.report(operator, f"columns {doubled} are made more than once; use .alias()")
        return None
    expressions = tuple(part.expression for part in parts)
    text = tuple(str(expression) for expression in expressions)
    walk.operators[operator.name] = replace(operator, expressions=expressions, text=text)

    def is_kept(name: str) -> bool:
        kept = parts[1:] if is_exploding else parts
        return any(name in part.schema.names and part.keeps(name) for part in kept)

    return follow(operator, before, pa.schema(fields), is_kept)


def split_flow(walk: Walk, operator: Split, before: Flow) -> Flow | None:
    """Return the flow as it is, if all conditions of branches are good."""
    asked = [branch.expression for branch in operator.branches]
    expressions = [expression for expression in asked if expression is not None]
    good = [walk.condition(operator, before, one, "split") for one in expressions]
    if len(expressions) < len(asked):
        read = operator.uses or before.schema.names
        good.append(walk.can_be_message(operator, read, before.schema))
        for text in branch_mistakes(operator, before.schema):
            walk.report(operator, text)
            good.append(False)
    return before if all(good) else None


def function_flow(walk: Walk, operator: Operator, before: Flow) -> Flow | None:
    """Return the columns that a function declares, and bind what its messages are."""
    operator, wrong = with_class(operator, before.schema, before.takes)
    for text in wrong:
        walk.report(operator, text)
    uses: tuple[str, ...] | None = getattr(operator, "uses", None)
    read = before.schema.names if uses is None else uses
    if wrong or not walk.can_be_message(operator, read, before.schema):
        return None
    walk.operators[operator.name] = operator
    if isinstance(operator, FilterMessages):
        return before
    if isinstance(operator, Process):
        for table in operator.tables:
            bound = walk.tables.bind(operator, table)
            if bound is not None:
                walk.tables.check_message(operator, bound)
        local = [spec for spec in operator.stores if spec.kind != "remote"]
        walk.need_key(operator, before, bool(local))
        for spec in operator.stores:
            for name in spec.remote.load if spec.remote is not None else ():
                if name not in before.schema.names:
                    where = f"store {spec.name!r}, load="
                    walk.report(operator, f"{where}: {unknown_column(name, before.schema.names)}")
    if isinstance(operator, FlatMapMessages) and operator.beside:
        operator = walk.operators[operator.name] = _with_beside(walk, operator, before.schema)
    returns: pa.Schema | None = getattr(operator, "returns", None)
    return declared(operator, before, pa.schema([]) if returns is None else returns)


def _with_beside(walk: Walk, operator: FlatMapMessages, source: pa.Schema) -> FlatMapMessages:
    """Put the columns that a function's results begin with before those it returns."""
    returns = walk.flows[operator.like].schema if operator.like else operator.returns
    own = pa.schema([]) if returns is None else returns
    heads = [source.field(name) for name in operator.beside if name not in own.names]
    return replace(operator, returns=pa.schema([*heads, *own]))
