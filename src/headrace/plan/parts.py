"""Cuts a plan into parts where rows go through internal streams of the bus.

A part is the stages that are joined by exchange files, so that they share epochs. Each is a
plan of its own, with levels of its own; numbers and names of stages stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from headrace.bus.readable import is_address
from headrace.config import FILE
from headrace.errors import InvalidInputError
from headrace.graph.diagnostics import carrier_mistakes
from headrace.graph.operator_base import Flow, StreamInfo
from headrace.graph.operators import (
    BUS,
    Input,
    JobGraph,
    Operator,
    PartitionBy,
    SendToSink,
)
from headrace.plan.compatibility import JOB
from headrace.plan.stages import (
    Exchange,
    JobPlan,
    Stage,
)
from headrace.records.schema import normalise_schema
from headrace.redaction import without_login

STREAM_SUFFIX = ".exchange"
MAX_NAME = 200


def internal_stream_name(job: str, operator: str) -> str:
    """Return the name of the internal stream of a ``partition_by``."""
    return f"{job}.{operator}{STREAM_SUFFIX}"


def internal_stream_names(graph: JobGraph) -> dict[str, str]:
    """Return the internal stream of each ``partition_by`` that has one."""
    return {
        operator.name: internal_stream_name(graph.name, operator.name)
        for operator in graph.operators
        if isinstance(operator, PartitionBy) and operator.is_durable
    }


def carriers_of(graph: JobGraph) -> dict[str, str]:
    """Return the address of the log that carries each internal stream which the bus does not."""
    return {
        internal_stream_name(graph.name, operator.name): operator.via
        for operator in graph.operators
        if isinstance(operator, PartitionBy) and operator.is_durable and operator.via != BUS
    }


def with_carrier(operator: Operator, address: str) -> Operator:
    """Return a ``partition_by`` whose rows pass by the topic of an address, or by the bus.

    Args:
        operator: the ``partition_by``.
        address: of the topic, as a setting gives it; ``FILE``: the bus.

    Raises:
        InvalidInputError: it is neither, or cannot carry an internal stream.
    """
    assert isinstance(operator, PartitionBy)
    where = f"setting outputs.{operator.name}.address"
    if not is_address(address):
        if address != FILE:
            raise InvalidInputError(
                f"{where} is {address!r}, but the stream between two parts of a job has a name of "
                f"its own; expected {FILE} for the bus, or an address such as "
                "kafka://HOST:9092/TOPIC"
            )
        return replace(operator, via=BUS)
    if wrong := carrier_mistakes(address):
        raise InvalidInputError(f"{where}: {'; '.join(wrong)}")
    return replace(operator, via=address)


def through_bus(
    exchanges: Iterable[Exchange],
    graph: JobGraph,
    streams: Mapping[str, StreamInfo],
    tasks: Sequence[int],
    origins: tuple[str, ...],
) -> list[Exchange]:
    """Return exchanges of which some go through an internal stream, as the graph says.

    Args:
        exchanges: through files.
        graph: of the job.
        streams: those that exist; the internal stream keeps the partitions that it has.
        tasks: of each stage: those of the receiving one are the partitions of a new stream.
        origins: streams of the job's inputs, by number.
    """
    names, carriers = internal_stream_names(graph), carriers_of(graph)

    def placed(exchange: Exchange) -> Exchange:
        stream = names.get(exchange.operator)
        if stream is None:
            return exchange
        found = streams.get(stream)
        return replace(
            exchange,
            schema=normalise_schema(exchange.schema),
            stream=stream,
            partitions=tasks[exchange.target_stage] if found is None else found.partitions,
            origins=origins,
            address=carriers.get(stream, ""),
            combined=None,
        )

    return list(map(placed, exchanges))


def waiting_columns(
    operators: Mapping[str, Operator], flows: Mapping[str, Flow]
) -> dict[str, set[str]]:
    """Return the columns that rows keep in each internal stream: all, for they outlive the code."""
    return {
        operator.name: set(flows[operator.name].schema.names)
        for operator in operators.values()
        if isinstance(operator, PartitionBy) and operator.is_durable
    }


def check_parts(
    stages: Sequence[Stage],
    operators: Mapping[str, Operator],
    report: Callable[[Operator, str], None],
) -> None:
    """Report parts that would wait for each other, and names that no stream can have."""
    feeds = [exchange for stage in stages for exchange in stage.feeds]
    for feed in feeds:
        if len(feed.stream) > MAX_NAME:
            report(operators[feed.operator], "its internal stream has too long a name; give name=")
    _check_carriers(feeds, operators, report)
    if group_stages(stages) is None:
        report(
            operators[feeds[0].operator],
            'with via="bus" what comes before it has epochs of its own, but meets what comes after '
            'it again in another partition_by: give that one via="bus" as well, or none',
        )


def width_mistakes(stages: Sequence[Stage]) -> list[str]:
    """Say which stages have tasks that the partitions of an internal stream cannot be dealt to."""
    return [
        f"stage {stage.name!r}: has {stage.tasks} tasks, which do not divide the {feed.partitions} "
        f"partitions of {feed.stream!r} evenly; set job.tasks, or tasks= of partition_by, to a "
        "divisor"
        for stage in stages
        for feed in stage.feeds
        if feed.partitions % stage.tasks
    ]


def _check_carriers(
    feeds: Sequence[Exchange],
    operators: Mapping[str, Operator],
    report: Callable[[Operator, str], None],
) -> None:
    """Report logs that are to carry an internal stream, and are used for something else, too."""
    used: dict[str, str] = {}
    for operator in operators.values():
        if isinstance(operator, Input | SendToSink) and operator.address:
            used[_place(operator.address)] = operator.name
    for feed in feeds:
        if not feed.address:
            continue
        place = _place(feed.address)
        other = used.setdefault(place, feed.operator)
        if other != feed.operator:
            text = f"via {place} is used by {other!r}, too; give it a log of its own"
            report(operators[feed.operator], text)


def _place(address: str) -> str:
    """Return an address without its options."""
    return without_login(address.partition("?")[0])


def split_parts(plan: JobPlan) -> tuple[JobPlan, ...]:
    """Return the parts of a plan, each after those that feed it; one part is the plan itself.

    Args:
        plan: without a ring of parts, which ``plan`` refuses.
    """
    groups = group_stages(plan.stages)
    assert groups is not None
    if len(groups) == 1:
        return (plan,)
    return tuple(_part(plan, stages, number) for number, stages in enumerate(groups))


def group_stages(stages: Sequence[Stage]) -> list[list[Stage]] | None:
    """Return the stages that share epochs, senders first; ``None`` where parts form a ring."""
    part = {stage.index: stage.index for stage in stages}

    def find(index: int) -> int:
        while part[index] != index:
            index = part[index]
        return index

    edges = [exchange for stage in stages for exchange in stage.receives]
    for edge in edges:
        if not edge.stream:
            part[find(edge.source_stage)] = find(edge.target_stage)
    members: dict[int, list[Stage]] = {}
    for stage in stages:
        members.setdefault(find(stage.index), []).append(stage)
    before: dict[int, set[int]] = {root: set() for root in members}
    for edge in edges:
        if edge.stream:
            before[find(edge.target_stage)].add(find(edge.source_stage))
    ordered: list[int] = []
    while len(ordered) < len(members):
        ready = [r for r in members if r not in ordered and before[r] <= set(ordered)]
        if not ready:
            return None
        ordered.append(min(ready, key=lambda root: members[root][0].index))
    touched = {find(index) for e in edges if e.stream for index in (e.source_stage, e.target_stage)}
    later = [root for root in ordered if root in touched][1:]
    # What is joined to nothing else, by the bus neither, shares epochs with the first part.
    first = [stage for stage in stages if find(stage.index) not in later]
    return [first, *(members[root] for root in later)]


def _part(plan: JobPlan, stages: list[Stage], number: int) -> JobPlan:
    levels: dict[int, int] = {}
    for stage in stages:  # in the order of the whole plan's levels: senders first
        senders = [e.source_stage for e in stage.receives if not e.stream]
        levels[stage.index] = max((levels[sender] + 1 for sender in senders), default=0)
    own = [replace(stage, level=levels[stage.index]) for stage in stages]
    own.sort(key=lambda stage: (stage.level, stage.index))
    names = {JOB, *(b.operator for s in own for b in s.reads)}
    names |= {operator.name for stage in own for operator in stage.operators}
    names |= {sent.stream for stage in own for sent in stage.sends if sent.stream}
    used = {table for stage in own for table in stage.tables}
    return replace(
        plan,
        stages=tuple(own),
        fingerprint={n: text for n, text in plan.fingerprint.items() if n in names},
        tables=tuple(table for table in plan.tables if table.name in used),
        part=_name(stages[0]) if number else "",
    )


def _name(first: Stage) -> str:
    """Name a part by what its first stage reads first."""
    received: tuple[Exchange, ...] = first.receives
    if received:
        return received[0].operator
    return first.inputs[0].pattern or first.inputs[0].operator
