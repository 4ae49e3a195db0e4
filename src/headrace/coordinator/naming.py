"""Binds the names that a graph gives its streams to streams of a bus: aliases and patterns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from headrace.bus.bus import Bus
from headrace.coordinator.table_files import broadcast_specs
from headrace.errors import InvalidInputError
from headrace.graph.operators import Input, JobGraph, Merge, Operator, SendTo, is_pattern


def with_streams(graph: JobGraph, bus: Bus) -> JobGraph:
    """Return the graph with the streams that its aliases and patterns stand for now.

    An input of a pattern becomes one input for each stream, merged under the name that the
    pattern's input had. A job keeps what it was started with until it is started again.

    Raises:
        InvalidInputError: no stream matches a pattern, or a broadcast store names an alias,
            which could be swapped while it is read.
    """
    aliases = bus.aliases()
    for table in broadcast_specs(graph).values():
        if table.stream in aliases:
            raise InvalidInputError(
                f"broadcast store {table.name!r} reads {table.stream!r}, which is an alias; name "
                f"its stream, {aliases[table.stream]!r}",
                stream=table.stream,
            )
    names: list[str] | None = None
    operators: list[Operator] = []
    for operator in graph.operators:
        if isinstance(operator, Input) and is_pattern(operator.stream):
            names = bus.names() if names is None else names
            operators += _expanded(operator, names)
        elif isinstance(operator, Input | SendTo) and operator.stream in aliases:
            operators.append(replace(operator, stream=aliases[operator.stream]))
        else:
            operators.append(operator)
    return replace(graph, operators=tuple(operators))


def _expanded(operator: Input, names: list[str]) -> Iterator[Operator]:
    matching = [name for name in names if fnmatchcase(name, operator.stream)]
    if not matching:
        raise InvalidInputError(
            f"no stream matches {operator.stream!r}; found {names[:10]}: create one first, or "
            "change the pattern",
            stream=operator.stream,
        )
    inputs = [
        replace(operator, name=f"{operator.name}:{name}", stream=name, pattern=operator.name)
        for name in matching
    ]
    yield from inputs
    yield Merge(operator.name, tuple(one.name for one in inputs), operator.site)
