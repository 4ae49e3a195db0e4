"""Internal streams as the driver sees them: who reads what, how far, marks, and what may go.

A mark is appended to every partition once the rows of an epoch are: it says that whatever
follows has an event time of at least its watermark, or that nothing follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.publishing import producer_of, publish_outputs, sequence_of
from headrace.coordinator.watermarks import Positions, passed_on
from headrace.errors import PartsError, UnavailableError
from headrace.faults import fault
from headrace.plan.stages import GROUP, MARK, Exchange, JobPlan, Stage
from headrace.task.orders import END_WATERMARK, NO_WATERMARK, InputRange


def is_joined(plan: JobPlan) -> bool:
    """Say whether internal streams join a part to others."""
    return any(edge.stream for stage in plan.stages for edge in (*stage.sends, *stage.feeds))


def create_feeds(plan: JobPlan, bus: Bus) -> None:
    """Make the internal streams that a part sends to or receives from, unless they are there.

    Raises:
        PartsError: one holds rows with other columns.
    """
    known = bus.names()
    for stage in plan.stages:
        for exchange in (*stage.sends, *stage.feeds):
            if not exchange.stream:
                continue
            schema = exchange.stream_schema
            if exchange.stream in known:
                _check_columns(plan, exchange, bus)
            bus.create(StreamSpec(exchange.stream, exchange.partitions, schema), exist_ok=True)


def _check_columns(plan: JobPlan, exchange: Exchange, bus: Bus) -> None:
    found = bus.stream(exchange.stream)
    held = found.spec.schema
    if held.equals(exchange.stream_schema):
        return
    if not any(found.ends()):  # of a start that failed: nothing was ever sent
        bus.remove(exchange.stream)
        return

    def told(schema: pa.Schema) -> str:
        own = [field for field in schema if field.name not in (GROUP, MARK)]
        return ", ".join(f"{field.name} {field.type}" for field in own)

    job = plan.graph.name
    raise PartsError(
        f"what partition_by {exchange.operator!r} sends has changed, and rows as they were wait in "
        f"its internal stream: found {told(exchange.schema)}; expected {told(held)}. Put a map "
        f"with these columns before it, or begin anew: headrace jobs reset {job}",
        job=job,
        stream=exchange.stream,
    )


def feed_ranges(
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


def feed_watermark(stage: Stage, inputs: Positions) -> int:
    """Return the least mark of all partitions of the internal streams that a stage reads."""
    return min(at.max_time for feed in stage.feeds for at in _positions(feed, inputs))


def open_watermark(stage: Stage, inputs: Positions) -> int:
    """Return the least mark of the internal streams that have not been read to their end."""
    marks = [
        at.max_time
        for feed in stage.feeds
        if not have_ended([feed], inputs)
        for at in _positions(feed, inputs)
    ]
    return min(marks, default=END_WATERMARK)


def have_ended(feeds: Iterable[Exchange], inputs: Positions) -> bool:
    """Say whether all partitions of internal streams have been read to their end."""
    return all(at.ended for feed in feeds for at in _positions(feed, inputs))


def _positions(feed: Exchange, inputs: Positions) -> list[InputPosition]:
    held = inputs.get(feed.operator, {})
    return [held.get(partition, InputPosition(0)) for partition in range(feed.partitions)]


def publish_epoch(state: JobState, plan: JobPlan, bus: Bus, root: Path) -> int:
    """Bring out what the last epoch sent, marks last; rows that left the job by this call.

    Calling it again, from any process, appends what is missing.
    """
    inner = {exchange.stream for stage in plan.stages for exchange in stage.sends}
    rows = publish_outputs(state, bus, root, inner)
    publish_marks(state, plan, bus)
    return rows


def publish_marks(state: JobState, plan: JobPlan, bus: Bus) -> None:
    """Append the marks of the last epoch, after its rows; any number of times the same."""
    marks = passed_on(state.watermarks, state.tasks)
    for stage in plan.stages:
        watermark = marks.get(stage.name, NO_WATERMARK)
        for exchange in stage.sends:
            if exchange.stream:
                _publish_mark(state, exchange, watermark, bus, is_timed=stage.timed)


def _publish_mark(
    state: JobState, exchange: Exchange, watermark: int, bus: Bus, *, is_timed: bool
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
    stream = bus.stream(exchange.stream)
    parts = Counter(part.partition for part in state.outputs if part.stream == exchange.stream)
    for partition in range(exchange.partitions):
        sequence = sequence_of(state, parts[partition])  # there are no more appends than parts
        stream.append(partition, row, producer=producer_of(state), sequence=sequence)
        fault("feed.mark_published")


def sent_ends(plan: JobPlan, bus: Bus) -> dict[str, list[int]]:
    """Return the next offset of each partition of the internal streams that a part sends to."""
    names = {edge.stream for stage in plan.stages for edge in stage.sends if edge.stream}
    return {name: bus.stream(name).ends() for name in sorted(names)}


def trim_feeds(state: JobState, plan: JobPlan, bus: Bus) -> None:
    """Let go of the rows of internal streams that the state has taken in."""
    for feed in plan.feeds:
        stream = bus.stream(feed.stream)
        for partition, position in state.inputs.get(feed.operator, {}).items():
            with suppress(UnavailableError):  # somebody appends; another epoch will do it
                stream.trim(partition, position.next_offset)
                fault("feed.trimmed")
