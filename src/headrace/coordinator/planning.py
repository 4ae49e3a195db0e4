"""What an epoch will do: ranges and due tasks, as pure functions of the state."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from headrace.bus.bus import Stream
from headrace.bus.retention import offset_gone
from headrace.coordinator.feeds import have_ended
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.reading import Read, Waiting, in_turn, read_first, reads_of
from headrace.coordinator.task_files import TaskState, merge_order
from headrace.coordinator.watermarks import until_of
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.plan.stages import JobPlan, Stage, job_of
from headrace.records.keys import group_range
from headrace.task.orders import (
    END_WATERMARK,
    NO_WATERMARK,
    InputRange,
    StateTarget,
    TaskOrder,
)

MERGES_CONSIDERED = 1_000
"""Tasks of a stage whose files an epoch looks at; of more, each has its turn every few epochs."""

NEW_TASK = TaskState()


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
    return deal_ranges(reads_of(plan), state, ends, max_rows, order)


def deal_ranges(
    reads: Iterable[Read],
    state: JobState,
    ends: Mapping[str, Sequence[int]],
    max_rows: int,
    order: str = "even",
) -> list[InputRange]:
    """Do as ``plan_ranges`` for the inputs that are given."""
    waiting: list[Waiting] = []
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
                waiting.append(Waiting(read, wanted, end - start))
    ranges: list[InputRange] = []
    left = max_rows
    for same in in_turn(read_first(state, waiting), order):
        if ranges and left <= 0:
            break
        shares = _deal([one.rows for one in same], left)
        left -= sum(shares)
        ranges += [
            msgspec.structs.replace(one.wanted, stop=one.wanted.start + share)
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
                    "lost, or it is another stream of that name; restore it, or begin anew: "
                    f"headrace jobs reset {job_of(state.job)}",
                    stream=binding.stream,
                    partition=partition,
                )


def check_kept(ranges: Sequence[InputRange], streams: Mapping[str, Stream]) -> None:
    """Refuse ranges whose rows their streams have dropped.

    Args:
        ranges: that are to be read.
        streams: by input operator.

    Raises:
        OffsetGoneError: names stream, partition, the offset wanted and the oldest kept.
    """
    begins = {operator: streams[operator].begins() for operator in {r.operator for r in ranges}}
    for wanted in ranges:
        begin = begins[wanted.operator][wanted.partition]
        if wanted.start < begin:
            name = streams[wanted.operator].spec.name
            raise offset_gone(name, wanted.partition, wanted.start, begin)


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
            "keeps them for ever: headrace bus create NAME --compact --key COLUMNS",
            stream=stream.spec.name,
        )
    return _limits(state, stream.spec.name, stream.ends())


def _deal(lags: Sequence[int], budget: int) -> list[int]:
    shares = [0] * len(lags)
    order = sorted(range(len(lags)), key=lags.__getitem__)
    for number, index in enumerate(order):
        fair = max(1, budget // (len(order) - number))
        shares[index] = min(lags[index], fair)
        budget -= shares[index]
    return shares


def at_end(plan: JobPlan, state: JobState) -> bool:
    """Say whether a bounded run has read all of its inputs, and all that other parts send."""
    if state.until is None:
        return False
    for stage in plan.stages:
        for binding in stage.inputs:
            positions = state.inputs.get(binding.operator, {})
            for partition, until in enumerate(state.until.get(binding.stream, ())):
                if positions.get(partition, InputPosition(0)).next_offset < until:
                    return False
    return have_ended(plan.feeds, state.inputs)


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
    feeds: Mapping[int, list[InputRange]] | None = None,
    bound: int = END_WATERMARK,
) -> list[TaskOrder]:
    """Return the tasks of a keyed stage that have rows, something due, or another host than before.

    One that has ``moved`` runs so that its new host is committed.
    """
    orders = []
    turns = -(-stage.tasks // MERGES_CONSIDERED)
    passed = state.watermarks.get(stage.name, NO_WATERMARK)
    for task in range(stage.tasks):
        name = task_name(stage.name, task)
        held = state.tasks.get(name, NEW_TASK)
        due = held.event_deadline is not None and held.event_deadline <= watermark
        due = due or (held.wall_deadline is not None and held.wall_deadline <= wall_ms)
        ranges = (feeds or {}).get(task, [])
        has_news = rows[task] or any(wanted.start < wanted.stop for wanted in ranges)
        if has_news or due or all_tasks or name in moved:
            groups = group_range(task, stage.tasks, state.key_groups)
            size = held.snapshot_bytes + held.segment_bytes
            target = StateTarget(held.epoch, held.attempt, held.shape, size)
            merge = None
            if (task + state.epoch) % turns == 0:
                closed = passed if held.held is None else min(passed, held.held)
                merge = merge_order(held, state.time_ms, closed)
            order = TaskOrder(
                stage.name, task, groups, ranges, target, merge, bound, held=held.held
            )
            orders.append(order)
    return orders


def next_wall_deadline(state: JobState) -> int | None:
    """Return the wall clock at which a timer is due or watermarks move on, ms."""
    walls = [t.wall_deadline for t in state.tasks.values() if t.wall_deadline is not None]
    return min(walls if state.wake_ms is None else [*walls, state.wake_ms], default=None)
