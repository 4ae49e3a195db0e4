"""Reads a source task's ranges of the bus as chunks, with each record's own watermark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bus.bus import Stream
from headrace.bus.spec import OffsetBatch
from headrace.errors import EventTimeError, InvalidInputError
from headrace.graph.durations import duration_text
from headrace.plan.stages import CallLimits, InputBinding
from headrace.records.evolution import as_planned
from headrace.records.schema import MAX_EVENT_TIME_MS, as_milliseconds, event_times
from headrace.sources.read_only import tolerant
from headrace.task.chunk import Chunk, Ints, Origins, source_of
from headrace.task.dead_letters import Guard, Refused, without
from headrace.task.event_times import Errors, EventTimes
from headrace.task.lateness import lateness_of
from headrace.task.orders import InputRange, Reached

CHUNK_ROWS = 1 << 16
NO_LIMITS = CallLimits()


class SourceReader:
    """Reads one range and keeps count of what it has seen.

    Args:
        stream: to read from.
        binding: columns and event time wanted.
        wanted: the range.
        timed: whether later operators need event times.
        max_bytes: reading ends early after about so many bytes of the columns.
        wall_ms: the epoch's wall clock.
        limits: of calls of the user's functions.
        guard: takes the records whose event time cannot be; without one they are an error.
    """

    def __init__(
        self,
        stream: Stream,
        binding: InputBinding,
        wanted: InputRange,
        *,
        timed: bool,
        max_bytes: int | None = None,
        wall_ms: int = 0,
        limits: CallLimits = NO_LIMITS,
        guard: Guard | None = None,
    ) -> None:
        self._stream = tolerant(stream, self._unreadable)
        self._binding, self._range = binding, wanted
        self._max_bytes, self._guard, self._wall_ms = max_bytes, guard, wall_ms
        ahead = binding.ahead_ms
        self._latest = MAX_EVENT_TIME_MS - 1 if ahead is None else wall_ms + ahead
        self._timed = timed and binding.is_timed
        self._next = wanted.start
        self._lateness = lateness_of(binding, wanted)
        self._made = None
        if binding.event is not None and not binding.is_clock:
            self._made = EventTimes(binding, limits)

    def _unreadable(self, offset: int, row: bytes, error: InvalidInputError) -> None:
        """Set a row of a file aside that is none of the stream's."""
        if self._guard is None:
            raise error
        batch = pa.record_batch({"line": [row.decode(errors="replace")]})
        origins = None
        if self._binding.origin is not None:
            source = source_of(self._binding.origin, self._range.partition)
            origins = Origins(np.array([source], np.int32), np.array([offset]))
        self._guard.take(Chunk(batch, origins=origins), [Refused(0, error)])

    @property
    def wanted(self) -> InputRange:
        """The range that is read."""
        return self._range

    @property
    def binding(self) -> InputBinding:
        """The input."""
        return self._binding

    def chunks(self, should_stop: Callable[[], bool]) -> Iterator[Chunk]:
        """Yield the rows in offset order, small appends joined; stops early when asked.

        The first chunk is always read, so that every epoch moves on.
        """
        waiting: list[OffsetBatch] = []
        rows = 0
        part = self._stream.read(
            self._range.partition,
            self._range.start,
            self._range.stop,
            columns=self._binding.reads,
            max_bytes=self._max_bytes,
        )
        for found in part:
            waiting.append(found)
            rows += found.batch.num_rows
            if rows >= CHUNK_ROWS:
                yield self._chunk(waiting)
                waiting, rows = [], 0
                if should_stop():
                    return
        if rows:
            yield self._chunk(waiting)
        elif waiting:  # all of it was compacted away
            self._next = waiting[-1].next_offset

    def _chunk(self, parts: list[OffsetBatch]) -> Chunk:
        batches = [part.batch for part in parts]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        batch = as_planned(batch, self._binding.schema, self._binding.stream)
        self._next = parts[-1].next_offset
        origins = self._origins(parts)
        chunk = Chunk(batch.select(list(self._binding.columns)), origins=origins)
        if self._binding.is_clock:
            return self._by_clock(chunk)
        if not self._binding.is_timed:
            return chunk
        column, errors = self._column(batch)
        times = None if errors else self._plain_times(column)
        if times is None:
            refused = self._refused(column, _offsets(parts), errors)
            chunk = self._left(chunk, refused)
            gone = pa.array([one.row for one in refused])
            kept = column.filter(pc.invert(pc.is_in(pa.array(range(len(column))), gone)))
            times = event_times(kept, self._where)
        watermarks = self._lateness.before(times)
        return replace(chunk, times=times, watermarks=watermarks) if self._timed else chunk

    def _column(self, batch: pa.RecordBatch) -> tuple[pa.Array, Errors]:
        if self._made is not None:
            return self._made.of(batch)
        return batch.column(self._binding.time), {}

    def _by_clock(self, chunk: Chunk) -> Chunk:
        """All rows are of now, and none before now comes any more."""
        self._lateness.max_time = self._wall_ms
        now = np.full(chunk.rows, self._wall_ms, np.int64)
        return replace(chunk, times=now, watermarks=now) if self._timed else chunk

    @property
    def _where(self) -> str:
        return f"stream {self._binding.stream!r} partition {self._range.partition}"

    def _origins(self, parts: list[OffsetBatch]) -> Origins | None:
        if self._binding.origin is None:
            return None
        offsets = _offsets(parts)
        source = source_of(self._binding.origin, self._range.partition)
        return Origins(np.full(len(offsets), source, np.int32), offsets)

    def _plain_times(self, column: pa.Array) -> Ints | None:
        """Return event times that all can be, or ``None``."""
        try:
            times = event_times(column, self._where)
        except InvalidInputError:
            return None
        is_ahead = self._binding.ahead_ms is not None and bool((times > self._latest).any())
        return None if is_ahead else times

    def _refused(self, column: pa.Array, offsets: Ints, errors: Errors) -> list[Refused]:
        """Find the records whose event time cannot be."""
        return [
            Refused(row, errors.get(row) or self._error(at, int(offsets[row])))
            for row, at in enumerate(as_milliseconds(column).to_pylist())
            if at is None or not 0 <= at <= self._latest
        ]

    def _left(self, chunk: Chunk, refused: list[Refused]) -> Chunk:
        if self._guard is None:
            raise refused[0].error
        self._guard.take(chunk, refused)
        return without(chunk, refused)

    def _error(self, at: int | None, offset: int) -> EventTimeError:
        if at is None:
            said = "is null"
        elif 0 <= at < MAX_EVENT_TIME_MS:
            assert self._binding.ahead_ms is not None
            ahead = duration_text(self._binding.ahead_ms)
            said = f"is {_moment(at)}, more than {ahead} ahead of the clock"
        else:
            said = f"is {at} ms, outside 1970 to 9999"
        made = self._binding.event
        label = repr(self._binding.time) if made is None else made.text
        return EventTimeError(
            f"event time {label} of {self._where} offset {offset} {said}; put such "
            f"records right where they are made, or set them aside: g.input(..., "
            'on_error="dead_letter")',
            operator=self._binding.operator,
            stream=self._binding.stream,
            partition=self._range.partition,
            offset=offset,
        )

    def reached(self) -> Reached:
        """Return where reading stopped, and the highest event time seen so far."""
        seen = self._lateness
        return Reached(
            self._range.operator,
            self._range.partition,
            self._next,
            seen.max_time,
            seen.watermark,
            seen.delays,
        )


def _offsets(parts: list[OffsetBatch]) -> Ints:
    return np.concatenate([part.offsets for part in parts])


def _moment(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")
