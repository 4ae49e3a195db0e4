"""Two streams that are joined: their keys, their times, and the columns of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.joins import LATE_SIDES, JoinStreams
from headrace.graph.operators import Port
from headrace.graph.table_operators import JoinKept, JoinTables
from headrace.plan.flows import Flow
from headrace.plan.walk import Walk
from headrace.records.widening import common_type


def join_flow(walk: Walk, operator: JoinStreams) -> Flow | None:
    """Return the columns of pairs; binds the join to the columns of both sides."""
    left, right = (walk.flows[name] for name in operator.inputs)
    found = [walk.need_key(operator, flow, needed=True) for flow in (left, right)]
    if not all(found):
        return None
    kinds, wrong = _key_types(operator, left, right)
    wrong += _untimed(left, right)
    columns, mistakes = added_columns(operator, left, right)
    wrong += mistakes
    for text in wrong:
        walk.report(operator, text)
    if wrong:
        return None
    walk.operators[operator.name] = replace(
        operator, columns=columns, by=(left.keys, right.keys), kinds=tuple(kinds)
    )
    common = dict(zip(left.keys, kinds, strict=True))
    fields = [pa.field(f.name, common.get(f.name, f.type)) for f in left.schema]
    fields += [pa.field(new, right.schema.field(old).type) for new, old in columns]
    untimed = tuple(dict.fromkeys((*left.untimed, *right.untimed)))
    return Flow(pa.schema(fields), left.keys, untimed=untimed)


def late_input(operator: Port, owner: JoinStreams) -> str:
    """Return which input the late rows of a side come from."""
    return owner.inputs[LATE_SIDES.index(operator.port)]


def _key_types(
    operator: JoinStreams, left: Flow, right: Flow
) -> tuple[list[pa.DataType], list[str]]:
    """Return the types of the key in the result, and what keeps keys of the sides apart."""
    kinds, wrong = [], []
    names = operator.inputs
    for mine, theirs in zip(left.keys, right.keys, strict=True):
        one, other = left.schema.field(mine).type, right.schema.field(theirs).type
        both_whole = pa.types.is_integer(one) and pa.types.is_integer(other)
        common = common_type(one, other) if both_whole else one if one.equals(other) else None
        if common is None:
            wrong.append(
                f"key {mine!r} of {names[0]!r} is {one}, but {theirs!r} of {names[1]!r} is "
                f"{other}: rows with such keys never meet; cast one with map before partition_by"
            )
        else:
            kinds.append(common)
    return kinds, wrong


def _untimed(left: Flow, right: Flow) -> Iterator[str]:
    for source in dict.fromkeys((*left.untimed, *right.untimed)):
        yield (
            f"a join of two streams needs event time, which input {source!r} has not: give "
            f'g.input({source!r}, time="...")'
        )


def added_columns(
    operator: JoinStreams | JoinKept | JoinTables, left: Flow, right: Flow
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return (new name, name in the right stream) of what is added, and what is wrong with it."""
    known, taken = right.schema.names, left.schema.names
    wanted = operator.columns
    if wanted is None:
        wanted = tuple((name, name) for name in known if name not in right.keys)
    wrong = [f"columns: {unknown_column(old, known)}" for _, old in wanted if old not in known]
    if operator.suffix is not None:
        ending = operator.suffix
        wanted = tuple((f"{new}{ending}" if new in taken else new, old) for new, old in wanted)
    if doubled := _doubled([*taken, *(new for new, _ in wanted)]):
        wrong.append(
            f"columns {doubled} would be there twice: give suffix='_right', or choose and rename "
            'columns of the right stream with columns={"new": "old"}'
        )
    return wanted, wrong


def _doubled(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
