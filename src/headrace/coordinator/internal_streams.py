"""Internal streams in the driver: what the parts of a job that the bus joins add to its epochs.

What a part sends to another is one of its outputs. Each partition gets a mark after the rows of an
epoch: whatever follows has an event time of at least its watermark, or nothing follows. The part
that receives reads by offset what the marks stand between; see decision 0009.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields

import pyarrow as pa
from msgspec.structs import replace

from headrace.bus import Bus, Fence, StreamSpec
from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.hooks import JobHook
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.outputs import producer_of, sequence_of
from headrace.coordinator.watermarks import Positions, passed_on
from headrace.errors import PartsError, UnavailableError
from headrace.faults import fault
from headrace.graph.operator_base import HOW
from headrace.graph.stream_joins import INNER
from headrace.plan.compatibility import FEED
from headrace.plan.stages import GROUP, MARK, Exchange, JobPlan, Stage, job_of
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK, InputRange, TaskOrder

OVERLAPPING_WINDOWS = ("hopping", "sliding")


class InternalStreams(JobHook):
    """What a part does to the internal streams that it sends to and receives from.

    Args:
        bus: the streams.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def create_streams(self, plan: JobPlan, fence: Fence) -> None:
        """Make the streams, unless they are there."""
        create_internal_streams(plan, self._bus, fence)

    def planned(self, run: EpochRun) -> EpochRun:
        """Return an epoch that reads them."""
        return InternalEpochRun.of(run) if run.plan.feeds else run

    def has_read_all(self, plan: JobPlan, state: JobState) -> bool:
        """Say whether all partitions of what is received have been read to their end."""
        return _have_ended(plan.feeds, state.inputs)

    @contextmanager
    def publishing(self, state: JobState, plan: JobPlan, fence: Fence) -> Iterator[set[str]]:
        """Append the marks of the last epoch after its rows; any number of times the same."""
        names = {exchange.stream for _, exchange in plan.internal_sends}
        with ExitStack() as sent:
            for name in sorted(names):
                sent.enter_context(self._bus.stream(name).together())
            yield names
            marks = passed_on(state.watermarks, state.tasks)
            for stage, exchange in plan.internal_sends:
                watermark = marks.get(stage.name, NO_WATERMARK)
                _publish_mark(state, exchange, watermark, self._bus, fence, is_timed=stage.timed)

    def sent_ends(self, plan: JobPlan) -> dict[str, list[int]]:
        """Return the next offset of each partition of the streams that the part sends to."""
        names = {exchange.stream for _, exchange in plan.internal_sends}
        return {name: self._bus.stream(name).ends() for name in sorted(names)}

    def swept(self, state: JobState, plan: JobPlan, fence: Fence) -> None:
        """Release the rows that the state has taken in."""
        for feed in plan.feeds:
            stream = self._bus.stream(feed.stream)
            for partition, position in state.inputs.get(feed.operator, {}).items():
                with suppress(UnavailableError):  # somebody appends; another epoch will do it
                    fault("feed.trim_due")
                    stream.trim(partition, position.next_offset, fence=fence)
                    fault("feed.trimmed")


def internal_stream_hooks(plan: JobPlan, bus: Bus) -> tuple[JobHook, ...]:
    """Return what joins a part to others by the bus; nothing where it is the whole job."""
    return (InternalStreams(bus),) if plan.feeds or plan.internal_sends else ()


class InternalEpochRun(EpochRun):
    """An epoch some of whose keyed stages read internal streams, beside the files of the epoch."""

    @classmethod
    def of(cls, run: EpochRun) -> InternalEpochRun:
        """Return an epoch that is only planned as one that reads internal streams."""
        return cls(**{one.name: getattr(run, one.name) for one in fields(run)})

    def keyed_due(
        self,
        stage: Stage,
        bound: int,
        watermark: int,
        ranges: Mapping[int, list[InputRange]] | None = None,
        *,
        all_tasks: bool = False,
    ) -> list[TaskOrder]:
        """Return the tasks of a keyed stage that run, with what they read of their partitions."""
        if not stage.feeds:
            return super().keyed_due(stage, bound, watermark, ranges, all_tasks=all_tasks)
        inputs = self._positions
        if not self.ended:
            watermark = min(watermark, _open_watermark(stage, inputs))
            if watermark == END_WATERMARK:  # only the epoch of its own closes everything
                watermark = NO_WATERMARK
        ranges = _ranges(stage, self.ranges, inputs)
        # What a task has closed is only known of one that runs: both bounds may have moved.
        all_tasks = bound < END_WATERMARK
        due = super().keyed_due(stage, bound, watermark, ranges, all_tasks=all_tasks)
        # Each task learns how far it had come by the last epoch, by its own partitions.
        before = self._bound(stage, passed_on(self.state.watermarks, self.state.tasks))
        return [
            replace(order, passed=min([before, *(wanted.max_time for wanted in order.ranges)]))
            for order in due
        ]

    def finish_level(self, level: int) -> None:
        """Note the watermarks of stages that read the bus once their reports are in."""
        for stage in self.plan.levels[level]:
            if stage.feeds:
                bound = self._bound(stage, self._passed_on)
                reached = min(bound, _least_mark(stage.feeds, self._positions))
                self.watermarks[stage.name] = max(self.watermarks[stage.name], reached)
        super().finish_level(level)


def create_internal_streams(plan: JobPlan, bus: Bus, fence: Fence | None = None) -> None:
    """Make the internal streams that a part sends to or receives from, unless they are there.

    Raises:
        PartsError: one holds rows with other columns.
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    known = bus.names()
    for stage in plan.stages:
        for exchange in (*stage.sends, *stage.feeds):
            if not exchange.stream:
                continue
            schema = exchange.stream_schema
            if exchange.stream in known:
                _check_columns(plan, exchange, bus, fence)
            spec = StreamSpec(
                exchange.stream, exchange.partitions, schema, address=exchange.address
            )
            made = bus.create(spec, exist_ok=True, fence=fence)
            if made.address not in ("", exchange.address):  # reached in another way by now
                made.configure(fence=fence, address=exchange.address)


def _check_columns(plan: JobPlan, exchange: Exchange, bus: Bus, fence: Fence | None) -> None:
    found = bus.stream(exchange.stream)
    held = found.spec.schema
    if held.equals(exchange.stream_schema):
        return
    if not any(found.ends()):  # of a start that failed: nothing was ever sent
        bus.remove(exchange.stream, fence=fence)
        return

    def columns_text(schema: pa.Schema) -> str:
        own = [field for field in schema if field.name not in (GROUP, MARK)]
        return ", ".join(f"{field.name} {field.type}" for field in own)

    job = plan.graph.name
    raise PartsError(
        f"what partition_by {exchange.operator!r} sends has changed, and rows as they were wait in "
        f"its internal stream: found {columns_text(exchange.schema)}; expected "
        f"{columns_text(held)}. Put a map with these columns before it, or start over: "
        f"headrace jobs reset {job}",
        job=job,
        stream=exchange.stream,
    )


def check_task_counts(state: JobState, wanted: Mapping[str, int]) -> None:
    """Make sure that stages may have other numbers of tasks: one task reads a whole partition.

    Args:
        state: of the job.
        wanted: tasks of each keyed stage.

    Raises:
        PartsError: a stage reads an internal stream whose partitions cannot be dealt to them.
    """
    for operator, text in state.fingerprint.items():
        feed = json.loads(text)
        if feed["kind"] == FEED and feed["width"] % wanted.get(feed["stage"], 1):
            raise PartsError(
                f"stage {feed['stage']!r} reads the {feed['width']} partitions of the internal "
                f"stream of {operator!r}, each in one task: found "
                f"{wanted[feed['stage']]} tasks, expected a number that divides {feed['width']}",
                job=job_of(state.job),
            )
        if feed["kind"] == FEED and wanted.get(feed["stage"]) != state.task_counts.get(
            feed["stage"]
        ):
            _check_marks(state, operator, feed["stage"])


def _check_marks(state: JobState, operator: str, stage: str) -> None:
    """Tasks that become one, or come from one, must have sent the same windows.

    Only of windows that share rows, or that late records change, is this not known from the rows
    that are kept; nor of rows of a join that found no partner.
    """
    held = state.inputs.get(operator, {}).values()
    others = [json.loads(text) for text in state.fingerprint.values()]
    is_shared = any(
        one.get("stage") == stage
        and (
            one.get("windows") in OVERLAPPING_WINDOWS
            or not {"early", "late"}.isdisjoint(one)
            or one.get(HOW, INNER) != INNER
        )
        for one in others
    )
    if is_shared and len({position.max_time for position in held}) > 1:
        raise PartsError(
            f"stage {stage!r} has windows that share rows or that late records change, or a join "
            "that keeps rows without a partner, and has read the partitions of the "
            f"internal stream of {operator!r} up to different watermarks; ask again when it has "
            "read what waits there",
            job=job_of(state.job),
        )


def _ranges(
    stage: Stage, ranges: Iterable[InputRange], inputs: Positions
) -> dict[int, list[InputRange]]:
    """Return what each task of a stage reads of its partitions, an empty range where no news is.

    Args:
        stage: with a number of tasks that divides that of the partitions.
        ranges: with news, of all inputs.
        inputs: how far the job has read.
    """
    news = {(wanted.operator, wanted.partition): wanted for wanted in ranges}
    found: dict[int, list[InputRange]] = {}
    for feed in stage.feeds:
        for partition, at in enumerate(_positions(feed, inputs)):
            empty = InputRange(
                feed.operator, partition, at.next_offset, at.next_offset, at.max_time
            )
            task = partition * stage.tasks // feed.partitions
            found.setdefault(task, []).append(news.get((feed.operator, partition), empty))
    return found


def _least_mark(feeds: Iterable[Exchange], inputs: Positions) -> int:
    """Return the least mark of all partitions of internal streams; of none the end."""
    marks = [at.max_time for feed in feeds for at in _positions(feed, inputs)]
    return min(marks, default=END_WATERMARK)


def _open_watermark(stage: Stage, inputs: Positions) -> int:
    """Return the least mark of the internal streams that have not been read to their end."""
    return _least_mark([feed for feed in stage.feeds if not _have_ended([feed], inputs)], inputs)


def _have_ended(feeds: Iterable[Exchange], inputs: Positions) -> bool:
    """Say whether all partitions of internal streams have been read to their end."""
    return all(at.ended for feed in feeds for at in _positions(feed, inputs))


def _positions(feed: Exchange, inputs: Positions) -> list[InputPosition]:
    held = inputs.get(feed.operator, {})
    return [held.get(partition, InputPosition(0)) for partition in range(feed.partitions)]


def _publish_mark(
    state: JobState, exchange: Exchange, watermark: int, bus: Bus, fence: Fence, *, is_timed: bool
) -> None:
    if state.ended:
        mark = END_WATERMARK
    elif not is_timed or watermark in (NO_WATERMARK, END_WATERMARK):
        return
    else:
        mark = watermark - exchange.delay_ms
    schema = exchange.stream_schema
    columns = [pa.array([mark if f.name == MARK else None], f.type) for f in schema]
    row = pa.RecordBatch.from_arrays(columns, schema=schema)
    stream, producer = bus.stream(exchange.stream), producer_of(state)
    parts = Counter(part.partition for part in state.outputs if part.stream == exchange.stream)
    for partition in range(exchange.partitions):
        sequence = sequence_of(state, parts[partition])  # there are no more appends than parts
        stream.append(partition, row, producer=producer, sequence=sequence, fence=fence)
        fault("feed.mark_published")
