"""``process`` of several streams: each has messages of its own, all have one key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.operators import Port, Process
from headrace.graph.several import ProcessSeveral, Source
from headrace.plan.flows import Flow, declared
from headrace.plan.taking import with_class
from headrace.plan.walk import Walk


def several_flow(walk: Walk, operator: ProcessSeveral) -> Flow | None:
    """Return the columns that the class declares; binds it to those of its streams."""
    flows = [walk.flows[name] for name in operator.inputs]
    bound = [
        _bound(walk, operator, upstream, source)
        for upstream, source in zip(operator.inputs, operator.sources, strict=True)
    ]
    keyed = [walk.need_key(operator, flow, needed=True) for flow in flows]
    wrong = list(_unlike_keys(operator, flows)) if all(keyed) else []
    wrong += _unknown_loads(operator, flows)
    for table in operator.tables:
        found = walk.tables.bind(operator, table)
        if found is not None:
            walk.tables.check_message(operator, found)
    for text in wrong:
        walk.report(operator, text)
    if wrong or not all(keyed):
        return None
    sources = [source for source in bound if source is not None]
    if len(sources) < len(bound):
        return None
    walk.operators[operator.name] = replace(operator, sources=tuple(sources))
    returns = pa.schema([]) if operator.returns is None else operator.returns
    return _after(walk, operator, returns)


def side_flow(walk: Walk, side: Port, owner: ProcessSeveral) -> Flow:
    """Return the columns of a side."""
    assert side.returns is not None
    return _after(walk, owner, side.returns)


def _after(walk: Walk, operator: ProcessSeveral, schema: pa.Schema) -> Flow:
    flows = [walk.flows[name] for name in operator.inputs]
    first = flows[0]
    untimed = tuple(dict.fromkeys(name for flow in flows for name in flow.untimed))
    made = declared(operator, replace(first, time=None, takes=None), schema)
    return replace(made, untimed=untimed, window_ms=None)


def _bound(walk: Walk, operator: ProcessSeveral, upstream: str, source: Source) -> Source | None:
    """Bind one stream's messages to its columns."""
    flow = walk.flows[upstream]
    if not len(flow.schema):
        walk.report(operator, f"operator {upstream!r} declares no columns; give it returns=")
        return None
    asking = Process(operator.name, site=operator.site, uses=source.uses, takes=source.takes)
    taking, wrong = with_class(asking, flow.schema, flow.takes)
    for text in wrong:
        walk.report(operator, f"stream {source.name!r}: {text}")
    uses: tuple[str, ...] | None = getattr(taking, "uses", None)
    read = flow.schema.names if uses is None else uses
    if wrong or not walk.can_be_message(taking, read, flow.schema):
        return None
    return replace(source, uses=uses, takes=taking.takes, keys=flow.keys)


def _unlike_keys(operator: ProcessSeveral, flows: list[Flow]) -> Iterator[str]:
    first, names = flows[0], [source.name for source in operator.sources]
    for name, flow in zip(names[1:], flows[1:], strict=True):
        for mine, theirs in zip(first.keys, flow.keys, strict=True):
            one, other = first.schema.field(mine).type, flow.schema.field(theirs).type
            both_whole = pa.types.is_integer(one) and pa.types.is_integer(other)
            if not both_whole and not one.equals(other):
                yield (
                    f"key {mine!r} of {names[0]!r} is {one}, but {theirs!r} of {name!r} is "
                    f"{other}: rows with such keys never meet; cast one with map before "
                    "partition_by"
                )


def _unknown_loads(operator: ProcessSeveral, flows: list[Flow]) -> Iterator[str]:
    for spec in operator.stores:
        for column in spec.remote.load if spec.remote is not None else ():
            for flow in flows:
                if column not in flow.schema.names:
                    where = f"store {spec.name!r}, load="
                    yield f"{where}: {unknown_column(column, flow.schema.names)}"
