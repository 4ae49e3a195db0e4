"""Which inputs an epoch reads first: those of tables, those of high priority, those behind.

Pure functions of the job's state and of what its streams hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.watermarks import until_of
from headrace.plan.stages import JobPlan
from headrace.task.orders import NO_WATERMARK, InputRange

LAGGING = "lagging"
"""The order in which, of inputs of one priority, the one furthest behind is read first."""


class Read(NamedTuple):
    """An input operator, its stream, the stage that reads it, and what its turn depends on.

    ``lateness_ms`` is that of an input with event times; ``None``: it has none.
    """

    operator: str
    stream: str
    stage: str
    priority: int = 0
    lateness_ms: int | None = None


def reads_of(plan: JobPlan) -> list[Read]:
    """Return all that a plan reads from the bus by offset."""
    return [
        Read(
            one.operator,
            one.stream,
            stage.name,
            one.priority,
            one.lateness_ms if one.is_timed and not one.is_clock else None,
        )
        for stage in plan.stages
        for one in stage.reads
    ]


class Waiting(NamedTuple):
    """A partition with news: where reading goes on, and how many rows there are."""

    read: Read
    wanted: InputRange
    rows: int


def first_ends(plan: JobPlan, ends: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return up to where inputs are read before any other, as of now, by operator.

    Args:
        plan: of the job.
        ends: next offset of each partition, by stream.
    """
    bindings = [binding for stage in plan.stages for binding in stage.inputs]
    return {b.operator: list(ends[b.stream]) for b in bindings if b.bootstrap}


class Unread(NamedTuple):
    """A partition that is read first, and where that ends."""

    operator: str
    partition: int
    next_offset: int
    end: int


def unread_first(state: JobState, streams: Mapping[str, str]) -> Iterator[Unread]:
    """Yield the partitions that are not yet where they have to be before others are read.

    Args:
        state: after the last epoch.
        streams: of each input operator.
    """
    for operator, ends in state.bootstrap.items():
        until = (state.until or {}).get(streams.get(operator, ""))
        for partition, end in enumerate(ends):
            limit = end if until is None else min(end, until_of(until, partition))
            held = state.inputs.get(operator, {}).get(partition, InputPosition(0))
            if operator in streams and held.next_offset < limit:
                yield Unread(operator, partition, held.next_offset, limit)


def read_first(state: JobState, waiting: Sequence[Waiting]) -> list[Waiting]:
    """Return what may be read now: while tables are filled only their inputs, up to their ends.

    Args:
        state: after the last epoch.
        waiting: all partitions with news.
    """
    streams = {one.read.operator: one.read.stream for one in waiting}
    left = {(one.operator, one.partition): one for one in unread_first(state, streams)}
    if not left:
        return list(waiting)
    first = []
    for one in waiting:
        found = left.get((one.read.operator, one.wanted.partition))
        if found is not None:
            first.append(one._replace(rows=min(one.rows, found.end - found.next_offset)))
    return first


def in_turn(waiting: Sequence[Waiting], order: str) -> list[list[Waiting]]:
    """Return partitions in the order in which they get an epoch's rows: class after class.

    Args:
        waiting: partitions with news.
        order: of inputs of one priority: ``even``: at the same time; or ``lagging``.
    """
    by_priority = sorted(waiting, key=lambda one: -one.read.priority)
    classes = [list(same) for _, same in groupby(by_priority, lambda one: one.read.priority)]
    if order != LAGGING:
        return classes
    return [one for same in classes for one in _by_lag(same)]


def _by_lag(waiting: Sequence[Waiting]) -> list[list[Waiting]]:
    """The oldest watermark first, then without event time the most unread rows."""
    inputs: dict[str, list[Waiting]] = {}
    for one in waiting:
        inputs.setdefault(one.read.operator, []).append(one)

    def lag(own: list[Waiting]) -> tuple[bool, int]:
        lateness_ms = own[0].read.lateness_ms
        if lateness_ms is None:
            return True, -sum(one.rows for one in own)
        return False, min(_watermark(one.wanted, lateness_ms) for one in own)

    return sorted(inputs.values(), key=lag)


def _watermark(seen: InputRange, lateness_ms: int) -> int:
    if seen.delays or seen.max_time == NO_WATERMARK:
        return seen.watermark
    return seen.max_time - lateness_ms
