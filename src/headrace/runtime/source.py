"""Reads a source task's ranges of the bus as chunks, with each record's own watermark.

A watermark follows one partition, record by record: it is a function of the log before it. Event
times come from a column, or are made of the records by the user's expression or function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bus.bus import Stream
from headrace.bus.read_only import skipping_bad_rows
from headrace.bus.spec import OffsetBatch
from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS, duration_text, moment_ms
from headrace.errors import EventTimeError, FunctionResultError, HeadraceError, InvalidInputError
from headrace.graph.operators import Confidence, EventTime
from headrace.plan.stages import CallLimits, InputBinding
from headrace.records.evolution import cast_to_plan
from headrace.records.schema import as_milliseconds, event_times, normalise
from headrace.runtime.chunk import Chunk, Ints, RowOrigins, source_of
from headrace.runtime.node import Guard, Refused, without
from headrace.runtime.orders import NO_WATERMARK, InputRange, Reached
from headrace.runtime.user_calls import (
    CallTimeout,
    MessageMaker,
    guarded,
    name_operator,
    overdue_error,
    time_limit,
    user_error,
)

STEP_ROWS = 1024
"""Records from one estimate to the next; the first ones come after 64, 128, 256 and 512."""

FIRST_ROWS = 64
HALVED_ROWS = 1 << 16
"""Records after which all counts are halved."""

_SUB = 16  # buckets of an octave


class WatermarkGenerator(Protocol):
    """Follows one partition.

    ``max_time`` is the highest event time so far, ``watermark`` what the manifest keeps of it.
    """

    max_time: int
    watermark: int

    @property
    def delays(self) -> tuple[int, ...]:
        """What the manifest keeps of the delays."""
        ...

    def before(self, times: Ints) -> Ints:
        """Take the event times of the next records; return the watermark just before each."""
        ...


class BoundedLatenessWatermarks:
    """A watermark that stays ``lateness_ms`` behind the highest event time."""

    delays: tuple[int, ...] = ()  # none are counted

    def __init__(self, lateness_ms: int, wanted: InputRange) -> None:
        self.max_time, self._lateness, self._floor = wanted.max_time, lateness_ms, wanted.floor
        self.watermark = NO_WATERMARK  # follows from the highest time

    def before(self, times: Ints) -> Ints:
        """Take the event times of the next records; return the watermark just before each."""
        highest = np.maximum.accumulate(np.concatenate([[self.max_time], times]))
        self.max_time = int(highest[-1])
        known = highest[:-1]
        marks = np.where(known == NO_WATERMARK, NO_WATERMARK, known - self._lateness)
        return np.maximum(marks, self._floor)


class ConfidenceWatermarks:
    """A watermark that a part of the records are not behind.

    ``delays`` is how many records were seen, the lateness that holds since the last step, then
    pairs of a bucket and its count.
    """

    def __init__(self, confidence: Confidence, wanted: InputRange) -> None:
        self.max_time, self.watermark = wanted.max_time, wanted.watermark
        self._part, self._floor = confidence.part, wanted.floor
        self._seen, self.lateness_ms, *rest = wanted.delays or (0, confidence.first_ms)
        pairs = np.array(rest, np.int64).reshape(-1, 2)
        self._counts = np.zeros(int(pairs[:, 0].max(initial=-1)) + 1, np.int64)
        self._counts[pairs[:, 0]] = pairs[:, 1]

    @property
    def delays(self) -> tuple[int, ...]:
        """The counts so far."""
        buckets = np.flatnonzero(self._counts)
        pairs = np.stack([buckets, self._counts[buckets]], axis=1)
        return (self._seen, self.lateness_ms, *pairs.ravel().tolist())

    def before(self, times: Ints) -> Ints:
        """Take the event times of the next records; return the watermark just before each."""
        highest = np.maximum.accumulate(np.concatenate([[self.max_time], times]))
        self.max_time = int(highest[-1])
        known = highest[:-1]
        delays = np.where(known == NO_WATERMARK, 0, np.maximum(known - times, 0))
        buckets = buckets_of(delays)
        marks = np.empty(len(times), np.int64)
        begin = 0
        while begin < len(times):
            end = min(len(times), begin + _next_step(self._seen) - self._seen)
            # What stands after each record is the mark before the next one.
            after = np.maximum.accumulate(
                np.concatenate([[self.watermark], highest[begin + 1 : end + 1] - self.lateness_ms])
            )
            marks[begin:end], self.watermark = after[:-1], int(after[-1])
            self._count(buckets[begin:end])
            begin = end
        return np.maximum(marks, self._floor)

    def _count(self, buckets: Ints) -> None:
        found = np.bincount(buckets, minlength=len(self._counts))
        found[: len(self._counts)] += self._counts
        self._counts = found
        before, self._seen = self._seen, self._seen + len(buckets)
        if self._seen == _next_step(before):
            self.lateness_ms = self._estimate()
            if self._seen % HALVED_ROWS == 0:
                self._counts >>= 1

    def _estimate(self) -> int:
        """Return the least delay that the wanted part of the counts does not exceed."""
        upto = np.cumsum(self._counts)
        return bucket_end(int(np.searchsorted(upto, math.ceil(self._part * int(upto[-1])))))


def watermark_generator(binding: InputBinding, wanted: InputRange) -> WatermarkGenerator:
    """Return what follows a partition of an input from where a range begins."""
    if binding.confidence is None:
        return BoundedLatenessWatermarks(binding.lateness_ms, wanted)
    return ConfidenceWatermarks(binding.confidence, wanted)


def _next_step(seen: int) -> int:
    if seen < FIRST_ROWS:
        return FIRST_ROWS
    return 1 << seen.bit_length() if seen < STEP_ROWS else (seen // STEP_ROWS + 1) * STEP_ROWS


def buckets_of(delays: Ints) -> Ints:
    """Return the bucket of each delay, ms: exact below 16, then sixteenths of an octave."""
    exponents = np.frexp(delays.astype(np.float64))[1].astype(np.int64) - 1
    shift = np.maximum(exponents - 4, 0)
    return np.where(delays < _SUB, delays, shift * _SUB + (delays >> shift))


def bucket_end(bucket: int) -> int:
    """Return the highest delay of a bucket, ms."""
    if bucket < 2 * _SUB:
        return bucket
    shift, rest = divmod(bucket - _SUB, _SUB)
    return ((rest + _SUB + 1) << shift) - 1


Errors = dict[int, HeadraceError]


class TimestampAssigner:
    """Makes the event times of batches of one input.

    Args:
        binding: of the input, with an expression or a function.
        limits: of calls of the function.
    """

    def __init__(self, binding: InputBinding, limits: CallLimits) -> None:
        assert binding.event is not None
        self._event: EventTime = binding.event
        self._operator, self._limits = binding.operator, limits
        self._columns = list(self._event.uses or ())
        takes = self._event.takes
        self._messages = MessageMaker(self._operator, binding.schema, self._columns, takes)

    def of(self, batch: pa.RecordBatch) -> tuple[pa.Array, Errors]:
        """Return milliseconds, null where there is none, and by row what it failed with."""
        part = batch.select(self._columns)
        try:
            if self._event.function is not None:
                return self._called(self._messages.make(part))
            return self._expressed(part), {}
        except InvalidInputError as error:
            if batch.num_rows == 1:
                return pa.nulls(1, pa.int64()), {0: error}
        middle = batch.num_rows // 2
        first, errors = self.of(batch.slice(0, middle))
        second, more = self.of(batch.slice(middle))
        later = {row + middle: error for row, error in more.items()}
        return pa.concat_arrays([first, second]), errors | later

    def _expressed(self, batch: pa.RecordBatch) -> pa.Array:
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        made = guarded(self._operator, lambda: frame.select(self._event.expression))
        if made.height != batch.num_rows:
            raise FunctionResultError(
                f"operator {self._operator!r} made {made.height} event times of {batch.num_rows} "
                "records; time= takes an expression of columns",
                operator=self._operator,
            )
        return as_milliseconds(normalise(made.to_arrow()).column(0))

    def _called(self, messages: list[Any]) -> tuple[pa.Array, Errors]:
        times: list[int | None] = []
        errors: Errors = {}
        with time_limit(self._limits.timeout_s, lambda: len(times)):
            for row, message in enumerate(messages):
                try:
                    times.append(self._time(message))
                except HeadraceError as error:
                    name_operator(error, self._operator)
                    errors[row] = error
                    times.append(None)
        return pa.array(times, pa.int64()), errors

    def _time(self, message: Any) -> int | None:
        assert self._event.function is not None
        try:
            found = self._event.function(message)
        except HeadraceError:
            raise
        except CallTimeout as overdue:
            raise overdue_error(self._operator, self._limits.timeout_s, overdue, message) from None
        except Exception as error:
            raise user_error(self._operator, error, message) from error
        if isinstance(found, datetime):
            return moment_ms(found)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        raise FunctionResultError(
            f"operator {self._operator!r} returned {found!r:.200} as event time; expected "
            "milliseconds as an integer, or a datetime",
            operator=self._operator,
        )


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
        if guard is not None:  # else they are an error of the read
            stream = skipping_bad_rows(stream, self._unreadable)
        self._stream = stream
        self._binding, self._range = binding, wanted
        self._max_bytes, self._guard, self._wall_ms = max_bytes, guard, wall_ms
        ahead = binding.ahead_ms
        self._latest = MAX_EVENT_TIME_MS - 1 if ahead is None else wall_ms + ahead
        self._timed = timed and binding.is_timed
        self._next = wanted.start
        self._lateness = watermark_generator(binding, wanted)
        self._made = None
        if binding.event is not None and not binding.is_clock:
            self._made = TimestampAssigner(binding, limits)

    def _unreadable(self, offset: int, row: bytes, error: InvalidInputError) -> None:
        """Set a row of a file aside that is none of the stream's."""
        assert self._guard is not None
        batch = pa.record_batch({"line": [row.decode(errors="replace")]})
        origins = None
        if self._binding.origin is not None:
            source = source_of(self._binding.origin, self._range.partition)
            origins = RowOrigins(np.array([source], np.int32), np.array([offset]))
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
        if not batch.schema.equals(self._binding.read_schema):
            batch = cast_to_plan(batch, self._binding.schema, self._binding.stream)
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

    def _origins(self, parts: list[OffsetBatch]) -> RowOrigins | None:
        if self._binding.origin is None:
            return None
        offsets = _offsets(parts)
        source = source_of(self._binding.origin, self._range.partition)
        return RowOrigins(np.full(len(offsets), source, np.int32), offsets)

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
            if at is None or not MIN_EVENT_TIME_MS <= at <= self._latest
        ]

    def _left(self, chunk: Chunk, refused: list[Refused]) -> Chunk:
        if self._guard is None:
            raise refused[0].error
        self._guard.take(chunk, refused)
        return without(chunk, refused)

    def _error(self, at: int | None, offset: int) -> EventTimeError:
        if at is None:
            said = "is null"
        elif MIN_EVENT_TIME_MS <= at < MAX_EVENT_TIME_MS:
            assert self._binding.ahead_ms is not None
            ahead = duration_text(self._binding.ahead_ms)
            said = f"is {_moment(at)}, more than {ahead} ahead of the clock"
        else:
            said = f"is {at} ms, outside the years 1 to 9999"
        made = self._binding.event
        label = repr(self._binding.time) if made is None else made.text
        return EventTimeError(
            f"event time {label} of {self._where} offset {offset} {said}; fix such "
            f"records where they are made, or set them aside: g.input(..., "
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
