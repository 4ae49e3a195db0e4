"""Binds the names that a graph gives its streams to streams of a bus: aliases and patterns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from headrace.bus.bus import Bus
from headrace.coordinator.table_files import broadcast_specs
from headrace.errors import InvalidInputError
from headrace.graph.operators import Input, JobGraph, Merge, Operator, SendTo, is_pattern
from headrace.plan.dead_letters import has_dead_letters
from headrace.plan.parts import STREAM_SUFFIX
from headrace.plan.stages import MARK


def with_streams(graph: JobGraph, bus: Bus) -> JobGraph:
    """Return the graph with the streams that its aliases and patterns stand for now.

    An input of a pattern becomes one input for each stream, merged under the name that the
    pattern's input had. A job keeps the streams of its aliases until it is started again.

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
            names = readable_names(bus) if names is None else names
            operators += _expanded(operator, names)
        elif isinstance(operator, Input | SendTo) and operator.stream in aliases:
            operators.append(replace(operator, stream=aliases[operator.stream]))
        else:
            operators.append(operator)
    return replace(graph, operators=tuple(operators))


def check_apart(graph: JobGraph, bus: Bus, dead: str) -> None:
    """Refuse a pattern that matches what the job itself sends, which it would read without end.

    Args:
        graph: as it was written.
        bus: the streams.
        dead: stream of the job's dead letters.

    Raises:
        InvalidInputError: names pattern and stream.
    """
    aliases = bus.aliases()
    sent = [
        aliases.get(one.stream, one.stream) for one in graph.operators if isinstance(one, SendTo)
    ]
    sent += [dead] if has_dead_letters(graph.operators) else []
    for name, pattern in patterns_of(graph).items():
        for stream in matching(pattern, sent):
            how = (
                "set job.dead_letters to another" if stream == dead else "name the output otherwise"
            )
            raise InvalidInputError(
                f"input {name!r} reads {pattern!r}, which matches {stream!r}, a stream that job "
                f"{graph.name!r} sends to: it would read what it sends without end; {how}, or "
                "narrow the pattern",
                stream=stream,
            )


def readable_names(bus: Bus) -> list[str]:
    """Return the names of the streams that patterns may match: internal ones are none."""
    return [name for name in bus.names() if not _is_internal(bus, name)]


def _is_internal(bus: Bus, name: str) -> bool:
    return name.endswith(STREAM_SUFFIX) and MARK in bus.stream(name).spec.schema.names


def patterns_of(graph: JobGraph) -> dict[str, str]:
    """Return the pattern of each input that has one, by the name of the input."""
    inputs = [operator for operator in graph.operators if isinstance(operator, Input)]
    return {one.name: one.stream for one in inputs if is_pattern(one.stream)}


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern."""
    return [name for name in names if fnmatchcase(name, pattern)]


def expanded(named: Mapping[str, str], patterns: Mapping[str, str], bus: Bus) -> dict[str, str]:
    """Return the stream of each input, and of those that patterns stand for now.

    Args:
        named: stream by input, of those without a pattern.
        patterns: pattern by input.
        bus: the streams.
    """
    names = readable_names(bus) if patterns else []
    found = {
        one_of(operator, name): name
        for operator, pattern in patterns.items()
        for name in matching(pattern, names)
    }
    return {**named, **found}


def one_of(operator: str, stream: str) -> str:
    """Return the name of the input that reads one of the streams of a pattern's input."""
    return f"{operator}:{stream}"


def _expanded(operator: Input, names: list[str]) -> Iterator[Operator]:
    found = matching(operator.stream, names)
    if not found:
        raise InvalidInputError(
            f"no stream matches {operator.stream!r}; found {names[:10]}: create one first, or "
            "change the pattern",
            stream=operator.stream,
        )
    inputs = [
        replace(operator, name=one_of(operator.name, name), stream=name, pattern=operator.name)
        for name in found
    ]
    yield from inputs
    yield Merge(operator.name, tuple(one.name for one in inputs), operator.site)
