"""How far event time has come: of partitions, stages, and when it moves on without a row.

Pure functions of the state after an epoch's rows and of the epoch's wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.bus import Stream
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.plan.stages import JobPlan, Stage
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK

Positions = Mapping[str, Mapping[int, InputPosition]]

MARK_MS = 1000
"""How often another part gets a watermark that is the wall clock, when nothing else is."""


@dataclass(frozen=True)
class Now:
    """What is known when an epoch is planned.

    Args:
        time_ms: the epoch's wall clock.
        ends: next offset of each partition, by stream.
        rested: by stream, the ends of partitions that get no new rows.
    """

    time_ms: int = 0
    ends: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rested: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def resting(
    streams: Mapping[str, Stream], ends: Mapping[str, Sequence[int]]
) -> dict[str, dict[int, int]]:
    """Return the ends of partitions that get no new rows by the settings, by stream."""
    found: dict[str, dict[int, int]] = {}
    for name, known in ends.items():
        stream = streams[name]
        first = stream.settings.counts(stream.created.partitions)[0]
        found[name] = dict(enumerate(known[first:], first))
    return found


def until_of(until: Sequence[int], partition: int) -> int:
    """Where a partition ends in a bounded run; what was added since is not of the run."""
    return until[partition] if partition < len(until) else 0


class Timed(Protocol):
    """What is known of an input with event times: its binding, or its entry in a catalog."""

    @property
    def operator(self) -> str: ...  # noqa: D102 - as in ``InputBinding``, all of them

    @property
    def stream(self) -> str: ...  # noqa: D102

    @property
    def partitions(self) -> int: ...  # noqa: D102

    @property
    def lateness_ms(self) -> int: ...  # noqa: D102

    @property
    def idle_ms(self) -> int | None: ...  # noqa: D102

    @property
    def is_clock(self) -> bool: ...  # noqa: D102


def is_idle(binding: Timed, partition: int, position: InputPosition, now: Now) -> bool:
    """Say whether a partition that was read to its end has brought nothing for too long."""
    if binding.idle_ms is None or now.time_ms - position.read_ms < binding.idle_ms:
        return False
    ends = now.ends.get(binding.stream, ())
    return position.next_offset >= until_of(ends, partition)


def holding(
    binding: Timed, state: JobState, inputs: Positions, now: Now
) -> Iterator[tuple[int, int]]:
    """Yield each partition of a timed input that counts for its stage, and its watermark.

    One that has been read to its end holds nothing back, if the end is that of a bounded run, no
    new rows go to the partition, or it is idle.
    """
    until = (state.until or {}).get(binding.stream)
    for partition in range(binding.partitions):
        position = inputs.get(binding.operator, {}).get(partition, InputPosition(0))
        if until is not None and position.next_offset >= until_of(until, partition):
            continue
        end = now.rested.get(binding.stream, {}).get(partition)
        if end is not None and position.next_offset >= end:
            continue
        if not is_idle(binding, partition, position, now):
            yield partition, _watermark(binding, position, now)


def _watermark(binding: Timed, position: InputPosition, now: Now) -> int:
    return now.time_ms if binding.is_clock else position.watermark_behind(binding.lateness_ms)


def input_watermark(time: Timed, positions: Mapping[int, InputPosition], now: Now) -> int | None:
    """Return the watermark of an input by itself: the least of those partitions that are not idle.

    Returns:
        Milliseconds; of all partitions the highest where all are idle; ``None``: not known yet.
    """
    marks = {p: _watermark(time, position, now) for p, position in positions.items()}
    counted = [marks[p] for p in marks if not is_idle(time, p, positions[p], now)]
    found = min(counted) if counted else max(marks.values(), default=NO_WATERMARK)
    return found if found > NO_WATERMARK else None


def source_watermark(
    stage: Stage, state: JobState, inputs: Positions, now: Now | None = None
) -> int:
    """Return the minimum over the partitions of a source stage's timed inputs that count."""
    now, timed = now or Now(), stage.timed_inputs
    if not timed:
        return NO_WATERMARK
    lowest = min(
        (mark for binding in timed for _, mark in holding(binding, state, inputs, now)),
        default=END_WATERMARK,
    )
    if lowest < END_WATERMARK:
        return lowest
    # Only the epoch of its own for the end of the inputs closes everything.
    return max(
        (
            _watermark(binding, position, now)
            for binding in timed
            for position in inputs.get(binding.operator, {}).values()
        ),
        default=NO_WATERMARK,
    )


def source_watermarks(
    plan: JobPlan, state: JobState, inputs: Positions, now: Now
) -> dict[str, int]:
    """Return the watermark of each source stage.

    One whose partitions are all idle follows the least of those that are not, of the stages whose
    rows meet its own: it holds none of them back, and what it brings later is late where theirs is.
    With all of these idle, too, it closes what it has begun, where inputs say ``idle_closes``. The
    manifest has that watermark, so a replay has it too, and it never goes back.
    """
    found: dict[str, int] = {}
    idle: set[str] = set()
    for stage in plan.stages:
        if not stage.keyed:
            found[stage.name] = source_watermark(stage, state, inputs, now)
            if stage.may_idle and _is_idle_stage(stage, state, inputs, now):
                idle.add(stage.name)
    meeting = _meeting(plan) if idle else []
    for name in idle:
        others = {other for group in meeting if name in group for other in group} - idle
        if others:
            found[name] = max(found[name], min(found[other] for other in others))
        else:
            found[name] = max(found[name], _closing_watermark(plan.by_name[name], inputs))
    return found


def _is_idle_stage(stage: Stage, state: JobState, inputs: Positions, now: Now) -> bool:
    timed = stage.timed_inputs
    if any(True for binding in timed for _ in holding(binding, state, inputs, now)):
        return False
    return any(
        is_idle(binding, partition, position, now)
        for binding in timed
        for partition, position in inputs.get(binding.operator, {}).items()
    )


def _closing_watermark(stage: Stage, inputs: Positions) -> int:
    """Return the watermark at which all that records of idle inputs are part of has been sent."""
    return max(
        (
            position.max_time + binding.closes_after_ms
            for binding in stage.timed_inputs
            if binding.closes_after_ms is not None
            for position in inputs.get(binding.operator, {}).values()
            if position.max_time > NO_WATERMARK
        ),
        default=NO_WATERMARK,
    )


def _meeting(plan: JobPlan) -> list[set[str]]:
    """The source stages of the part that each keyed stage gets rows from, by whatever way."""
    sources: dict[int, set[str]] = {}
    for stage in plan.stages:
        feeds = [sources[e.source_stage] for e in stage.clocked]
        sources[stage.index] = set().union(*feeds) if stage.keyed else {stage.name}
    return [sources[stage.index] for stage in plan.stages if stage.keyed]


class HoldsWatermark(Protocol):
    """What is known of a task whose messages may wait for asynchronous calls."""

    @property
    def watermark_hold_ms(self) -> int | None: ...  # noqa: D102 - as in ``TaskState``


def passed_on(watermarks: Mapping[str, int], tasks: Mapping[str, HoldsWatermark]) -> dict[str, int]:
    """Return the watermark of what each stage sends on.

    Args:
        watermarks: of the stages.
        tasks: by "stage/task".
    """
    found = dict(watermarks)
    for name, task in tasks.items():
        stage = name.rpartition("/")[0]
        if task.watermark_hold_ms is not None and stage in found:
            found[stage] = min(found[stage], task.watermark_hold_ms)
    return found


def keyed_watermark(stage: Stage, names: Mapping[int, str], watermarks: Mapping[str, int]) -> int:
    """Return the watermark of a keyed stage from those of the stages that send it files."""
    lowest = END_WATERMARK
    for exchange in stage.clocked:
        sender = watermarks.get(names[exchange.source_stage], NO_WATERMARK)
        if sender in (NO_WATERMARK, END_WATERMARK):
            lowest = min(lowest, sender)
        else:
            lowest = min(lowest, sender - exchange.delay_ms)
    return lowest


def next_wake(
    plan: JobPlan,
    state: JobState,
    inputs: Positions,
    now: Now,
    deadlines: Mapping[str, int],
) -> int | None:
    """Return the wall clock at which watermarks move on without a row, ms; ``None``: they do not.

    A partition becomes idle; or something is due by a watermark that is the wall clock itself;
    or another part wants to know of such a watermark.

    Args:
        plan: of the job.
        state: before the epoch.
        inputs: positions after it.
        now: of the epoch.
        deadlines: the lowest watermark at which a task of a keyed stage has something due.
    """
    wakes = [
        inputs[binding.operator][partition].read_ms + binding.idle_ms
        for stage in plan.stages
        for binding in stage.timed_inputs
        if binding.idle_ms is not None
        for partition, _ in holding(binding, state, inputs, now)
        if partition in inputs.get(binding.operator, {})
    ]
    behind: dict[int, int | None] = {}
    for stage in plan.stages:
        lag = behind[stage.index] = _behind_clock(stage, behind)
        if lag is not None and stage.name in deadlines:
            wakes.append(deadlines[stage.name] + lag)
        if lag is not None and any(exchange.stream for exchange in stage.sends):
            wakes.append(now.time_ms + MARK_MS)  # what is due behind it is another part's affair
    return min(wakes, default=None)


def _behind_clock(stage: Stage, behind: Mapping[int, int | None]) -> int | None:
    """How far a stage's watermark is behind the wall clock; ``None``: that alone moves it not."""
    if not stage.keyed:
        timed = stage.timed_inputs
        return 0 if timed and all(binding.is_clock for binding in timed) else None
    received = (*stage.clocked, *stage.feeds)
    lags = [(behind.get(exchange.source_stage), exchange.delay_ms) for exchange in received]
    known = [lag + delay for lag, delay in lags if lag is not None]
    return max(known) if len(known) == len(lags) else None
