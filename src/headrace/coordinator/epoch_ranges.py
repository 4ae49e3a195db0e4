"""What an epoch reads and which tasks are due: pure functions of the job's state.

First the order of inputs (those of tables, those of high priority, those behind), then a range
of offsets for each partition with news, then the tasks that have rows, timers or a new host. Rows
that are gone before they were read are an error that names the offsets, or passed by a ``Jump``,
as their log says: the positions of the epoch contain it, and the count ``expired`` of the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import msgspec

from headrace.bus.bus import Stream
from headrace.bus.log import offset_gone
from headrace.bus.readable import EARLIEST, FAIL
from headrace.coordinator.manifest import NEW_TASK, InputPosition, JobState, next_compaction
from headrace.coordinator.watermarks import until_of
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.plan.stages import JobPlan, Stage, job_of
from headrace.records.keys import group_range
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK, InputRange, StateTarget, TaskOrder

LAGGING_FIRST = "lagging"
"""The order in which, of inputs of one priority, the one furthest behind is read first."""


class InputRead(NamedTuple):
    """An input operator, its stream, the stage that reads it, and what its turn depends on.

    ``lateness_ms`` is that of an input with event times; ``None``: it has none.
    """

    operator: str
    stream: str
    stage: str
    priority: int = 0
    lateness_ms: int | None = None


def input_reads(plan: JobPlan) -> list[InputRead]:
    """Return all that a plan reads from the bus by offset."""
    found: list[InputRead] | None = plan.derived.get("input_reads")
    if found is None:
        found = plan.derived["input_reads"] = _input_reads(plan)
    return found


def _input_reads(plan: JobPlan) -> list[InputRead]:
    return [
        InputRead(
            one.operator,
            one.stream,
            stage.name,
            one.priority,
            one.lateness_ms if one.is_timed and not one.is_clock else None,
        )
        for stage in plan.stages
        for one in stage.reads
    ]


class PendingPartition(NamedTuple):
    """A partition with new rows: where reading continues, and how many rows there are."""

    read: InputRead
    wanted: InputRange
    rows: int


def bootstrap_ends(plan: JobPlan, ends: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return up to where inputs are read before any other, as of now, by operator.

    Args:
        plan: of the job.
        ends: next offset of each partition, by stream.
    """
    bindings = [binding for stage in plan.stages for binding in stage.inputs]
    return {b.operator: list(ends[b.stream]) for b in bindings if b.bootstrap}


@dataclass(frozen=True)
class BootstrapPartition:
    """A partition that is read to an end before inputs that are not."""

    operator: str
    partition: int
    next_offset: int
    end: int


def bootstrap_partitions(
    state: JobState, streams: Mapping[str, str]
) -> Iterator[BootstrapPartition]:
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
                yield BootstrapPartition(operator, partition, held.next_offset, limit)


def readable_now(state: JobState, waiting: Sequence[PendingPartition]) -> list[PendingPartition]:
    """Return what may be read now: while tables are filled only their inputs, up to their ends.

    Args:
        state: after the last epoch.
        waiting: all partitions with news.
    """
    if not state.bootstrap:
        return list(waiting)
    streams = {one.read.operator: one.read.stream for one in waiting}
    left = {(one.operator, one.partition): one for one in bootstrap_partitions(state, streams)}
    if not left:
        return list(waiting)
    first = []
    for one in waiting:
        found = left.get((one.read.operator, one.wanted.partition))
        if found is not None:
            first.append(one._replace(rows=min(one.rows, found.end - found.next_offset)))
    return first


def by_priority(waiting: Sequence[PendingPartition], order: str) -> list[list[PendingPartition]]:
    """Return partitions in the order in which they get an epoch's rows: class after class.

    Args:
        waiting: partitions with news.
        order: of inputs of one priority: ``even``: at the same time; or ``lagging``.
    """
    by_priority = sorted(waiting, key=lambda one: -one.read.priority)
    classes = [list(same) for _, same in groupby(by_priority, lambda one: one.read.priority)]
    if order != LAGGING_FIRST:
        return classes
    return [one for same in classes for one in _by_lag(same)]


def _by_lag(waiting: Sequence[PendingPartition]) -> list[list[PendingPartition]]:
    """The oldest watermark first, then without event time the most unread rows."""
    inputs: dict[str, list[PendingPartition]] = {}
    for one in waiting:
        inputs.setdefault(one.read.operator, []).append(one)

    def lag(own: list[PendingPartition]) -> tuple[bool, int]:
        lateness_ms = own[0].read.lateness_ms
        if lateness_ms is None:
            return True, -sum(one.rows for one in own)
        return False, min(_watermark(one.wanted, lateness_ms) for one in own)

    return sorted(inputs.values(), key=lag)


def _watermark(seen: InputRange, lateness_ms: int) -> int:
    if seen.delays or seen.max_time == NO_WATERMARK:
        return seen.watermark
    return seen.max_time - lateness_ms


MERGES_CONSIDERED = 1_000
"""Tasks of a stage whose files an epoch looks at; of more, each has its turn every few epochs."""


def task_name(stage: str, task: int) -> str:
    """Return the name of a task in manifests."""
    return f"{stage}/{task}"


def plan_ranges(
    plan: JobPlan,
    state: JobState,
    ends: Mapping[str, Sequence[int]],
    max_rows: int,
    order: str = "even",
) -> list[InputRange]:
    """Give input partitions with news a range; together at most about ``max_rows``.

    Those that are to be read first get all they need before others get any, see ``reading``.
    Within a class rows are dealt evenly; what a short partition leaves goes to the longer ones.

    Args:
        plan: of the job.
        state: after the last epoch.
        ends: next offset of each partition, by stream; cut at the run's end if it has one.
        max_rows: at least one row for each partition of the first class is planned even when this
            is less.
        order: of inputs of one priority.
    """
    return share_ranges(input_reads(plan), state, ends, max_rows, order)


def share_ranges(
    reads: Iterable[InputRead],
    state: JobState,
    ends: Mapping[str, Sequence[int]],
    max_rows: int,
    order: str = "even",
) -> list[InputRange]:
    """Do as ``plan_ranges`` for the inputs that are given."""
    waiting: list[PendingPartition] = []
    for read in reads:
        limits = _limits(state, read.stream, ends[read.stream])
        positions = state.inputs.get(read.operator, {})
        # What was passed while a partition was idle or not there, or with another lateness,
        # stays passed.
        floor = state.watermarks.get(read.stage, NO_WATERMARK)
        for partition, end in enumerate(limits):
            held = positions.get(partition, InputPosition(0))
            start = held.next_offset
            if end > start:
                more = (held.max_time, floor, held.watermark, held.delays)
                wanted = InputRange(read.operator, partition, start, start, *more)
                waiting.append(PendingPartition(read, wanted, end - start))
    if not waiting:
        return []
    ranges: list[InputRange] = []
    left = max_rows
    for same in by_priority(readable_now(state, waiting), order):
        if ranges and left <= 0:
            break
        shares = _share_rows([one.rows for one in same], left)
        left -= sum(shares)
        ranges += [
            msgspec.structs.replace(
                one.wanted, stop=one.wanted.start + share, behind=one.rows - share
            )
            for one, share in zip(same, shares, strict=True)
        ]
    return ranges


def check_ends(plan: JobPlan, state: JobState, ends: Mapping[str, Sequence[int]]) -> None:
    """Refuse a stream that ends before what the job has read of it.

    Args:
        plan: of the job.
        state: after the last epoch.
        ends: next offset of each partition, by stream.

    Raises:
        CorruptDataError: names stream and partition, its end and the job's position.
    """
    for binding in plan.reads:
        found = ends[binding.stream]
        for partition, position in state.inputs.get(binding.operator, {}).items():
            end = found[partition] if partition < len(found) else 0
            if position.next_offset > end:
                raise CorruptDataError(
                    f"stream {binding.stream!r} partition {partition} ends at offset {end}, "
                    f"but job {state.job!r} has read up to {position.next_offset}: rows were "
                    "lost, or it is another stream of that name; restore it, or start over: "
                    f"headrace jobs reset {job_of(state.job)}",
                    stream=binding.stream,
                    partition=partition,
                )


def check_retained(
    plan: JobPlan, ranges: Sequence[InputRange], streams: Mapping[str, Stream]
) -> None:
    """Refuse ranges whose rows their streams have dropped.

    Args:
        plan: of the job.
        ranges: that are to be read.
        streams: that it reads, by name.

    Raises:
        OffsetGoneError: names stream, partition, the offset wanted and the oldest kept.
    """
    begins: dict[str, list[int]] = {}
    for wanted in ranges:
        name = plan.stream_of[wanted.operator]
        if name not in begins:
            begins[name] = streams[name].begins()
        begin = begins[name][wanted.partition]
        if wanted.start < begin:
            raise offset_gone(streams[name].spec.name, wanted.partition, wanted.start, begin)


def _limits(state: JobState, stream: str, ends: Sequence[int]) -> list[int]:
    if state.until is None or stream not in state.until:
        return list(ends)
    until = state.until[stream]
    return [min(end, until_of(until, p)) for p, end in enumerate(ends)]


def table_limits(state: JobState, name: str, stream: Stream) -> list[int]:
    """Return up to where a broadcast store is read: its stream's ends, or those of the run.

    Args:
        state: after the last epoch.
        name: of the store.
        stream: that fills it.

    Raises:
        InvalidInputError: the stream has dropped records, so that the table is not whole.
    """
    begins = stream.begins()
    if any(begins):
        raise InvalidInputError(
            f"broadcast store {name!r} needs all records of stream {stream.spec.name!r}, but its "
            f"partitions begin at {begins}; append the latest row of each key to a new stream that "
            "keeps them forever: headrace bus create NAME --compact --key COLUMNS",
            stream=stream.spec.name,
        )
    return _limits(state, stream.spec.name, stream.ends())


def _share_rows(lags: Sequence[int], budget: int) -> list[int]:
    shares = [0] * len(lags)
    order = sorted(range(len(lags)), key=lags.__getitem__)
    for number, index in enumerate(order):
        fair = max(1, budget // (len(order) - number))
        shares[index] = min(lags[index], fair)
        budget -= shares[index]
    return shares


def has_read_all(plan: JobPlan, state: JobState) -> bool:
    """Say whether a bounded run has read all of its inputs."""
    if state.until is None:
        return False
    for stage in plan.stages:
        for binding in stage.inputs:
            positions = state.inputs.get(binding.operator, {})
            for partition, until in enumerate(state.until.get(binding.stream, ())):
                if positions.get(partition, InputPosition(0)).next_offset < until:
                    return False
    return True


def source_tasks(stage: Stage, ranges: Iterable[InputRange]) -> list[TaskOrder]:
    """Return the tasks of a source stage that have something to read."""
    mine = {binding.operator for binding in stage.inputs}
    by_task: dict[int, list[InputRange]] = {}
    for wanted in ranges:
        if wanted.operator in mine:
            by_task.setdefault(wanted.partition, []).append(wanted)
    return [TaskOrder(stage.name, task, ranges=by_task[task]) for task in sorted(by_task)]


def keyed_tasks(  # noqa: PLR0913 - each is a fact of its own, by name
    stage: Stage,
    state: JobState,
    rows: Sequence[int],
    watermark: int,
    wall_ms: int,
    *,
    all_tasks: bool = False,
    moved: Container[str] = (),
    ranges: Mapping[int, list[InputRange]] | None = None,
    bound: int = END_WATERMARK,
) -> list[TaskOrder]:
    """Return the tasks of a keyed stage that have rows, something due, or another host than before.

    One that has ``moved`` runs so that its new host is committed. ``ranges`` are what tasks read by
    offset, beside the ``rows`` that they are sent.
    """
    orders = []
    turns = -(-stage.tasks // MERGES_CONSIDERED)
    passed = state.watermarks.get(stage.name, NO_WATERMARK)
    for task in range(stage.tasks):
        name = task_name(stage.name, task)
        held = state.tasks.get(name, NEW_TASK)
        due = held.event_deadline is not None and held.event_deadline <= watermark
        due = due or (held.wall_deadline is not None and held.wall_deadline <= wall_ms)
        own = ranges.get(task, []) if ranges else []
        has_news = rows[task] or (own and any(one.start < one.stop for one in own))
        if has_news or due or all_tasks or name in moved:
            groups = group_range(task, stage.tasks, state.key_groups)
            target = StateTarget(held.epoch, held.attempt, held.shape, held.file_bytes)
            merge = None
            if (task + state.epoch) % turns == 0:
                closed = (
                    passed
                    if held.watermark_hold_ms is None
                    else min(passed, held.watermark_hold_ms)
                )
                file = f"{state.epoch + 1:012d}-{state.generation:08d}-{stage.name}-{task}.seg"
                merge = next_compaction(held, state.time_ms, closed, file)
            order = TaskOrder(
                stage.name,
                task,
                groups,
                own,
                target,
                merge,
                bound,
                watermark_hold_ms=held.watermark_hold_ms,
                swept_ms=held.swept_ms,
            )
            orders.append(order)
    return orders


def next_wall_deadline(state: JobState) -> int | None:
    """Return the wall clock at which a timer is due or watermarks move on, ms."""
    walls = [t.wall_deadline for t in state.tasks.values() if t.wall_deadline is not None]
    return min(walls if state.wake_ms is None else [*walls, state.wake_ms], default=None)


EXPIRED = "expired"
"""The count of an input: offsets that were gone before they were read."""


class Jump(NamedTuple):
    """A jump in a partition of an input, from an offset to another one."""

    operator: str
    stream: str
    partition: int
    start: int
    stop: int
    policy: str

    @property
    def text(self) -> str:
        """What it is, in words."""
        return (
            f"input {self.stream!r} has no offset {self.start} of partition {self.partition} any "
            f"more; the job continues at {self.stop}, as offsets_expired={self.policy} says: "
            f"{self.stop - self.start} offsets are not read"
        )


def jumps_past_expired(
    plan: JobPlan,
    state: JobState,
    streams: Mapping[str, Stream],
    ends: Mapping[str, Sequence[int]],
) -> list[Jump]:
    """Return the jumps over what is gone, in streams that say that there shall be some.

    Args:
        plan: of the job.
        state: after the last epoch.
        streams: that the plan reads, by name.
        ends: next offset of each partition, by stream.
    """
    found = []
    for binding in plan.reads:
        stream = streams[binding.stream]
        if stream.expired == FAIL:
            continue
        begins = stream.begins()
        goals = begins if stream.expired == EARLIEST else ends[binding.stream]
        for partition, at in state.inputs.get(binding.operator, {}).items():
            if partition < len(begins) and at.next_offset < begins[partition]:
                place = (binding.operator, binding.stream, partition)
                goal = max(begins[partition], goals[partition])
                found.append(Jump(*place, at.next_offset, goal, stream.expired))
    return found


def positions_after(
    jumps: Sequence[Jump], state: JobState, added: Mapping[str, Mapping[int, InputPosition]]
) -> dict[str, dict[int, InputPosition]]:
    """Return positions that become known, with those that jumps lead to."""
    found = {name: dict(positions) for name, positions in added.items()}
    for jump in jumps:
        before = state.inputs[jump.operator][jump.partition]
        after = msgspec.structs.replace(before, next_offset=jump.stop)
        found.setdefault(jump.operator, {})[jump.partition] = after
    return found


def expired_counts(jumps: Sequence[Jump]) -> dict[str, Counter[str]]:
    """Return how many offsets jumps pass, by input."""
    counts: dict[str, Counter[str]] = {}
    for jump in jumps:
        counts.setdefault(jump.operator, Counter())[EXPIRED] += jump.stop - jump.start
    return counts
