"""One stream's rows as columns: the files of its folder, and in memory what is newer.

``StreamTail`` reads what was appended, keeps one row of so many, and is asked for a ``Kept``: files
and rows in memory of one moment, in which each row is once. The process with the lock of the home
writes files; others see its files come, and forget the rows in memory that these have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from headrace.bus import OffsetGoneError
from headrace.bus.bus import Stream
from headrace.bus.spec import OffsetBatch
from headrace.clock import Clock
from headrace.config import ExploreRule, ExploreSettings
from headrace.errors import CorruptDataError, HeadraceError
from headrace.explore.segments import (
    OFFSET,
    OWN,
    OWN_TYPES,
    PARTITION,
    RATE,
    TIME,
    Segment,
    SegmentFacts,
    SegmentFolder,
    mergeable,
)
from headrace.records.schema import as_milliseconds

TURN_ROWS = 250_000
"""Rows of a partition that are read in a turn, so that no stream waits long for another."""

AGE_PARTS = 8
_PRIME = np.uint64(0x9E3779B97F4A7C15)


class Chunk(NamedTuple):
    """Rows in memory: what is kept of a range of offsets of a partition."""

    partition: int
    first_offset: int
    next_offset: int
    rows: pa.RecordBatch
    read_ms: int


class Kept(NamedTuple):
    """What is there of a stream at one moment; each row is in one file, or in one chunk."""

    version: int
    segments: tuple[Segment, ...]
    chunks: tuple[Chunk, ...]
    schema: pa.Schema
    rate: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        held = sum(int(one.rows.num_rows) for one in self.chunks)
        return sum(one.facts.rows for one in self.segments) + held

    @property
    def bytes(self) -> int:
        """How many bytes they take on disk and in memory."""
        held = sum(int(one.rows.nbytes) for one in self.chunks)
        return sum(one.bytes for one in self.segments) + held


class TailStatus(NamedTuple):
    """How a tail is doing; ``lag_ms`` is since when rows wait that it has not read."""

    stream: str
    lag_ms: int
    lag_rows: int
    rows_per_s: float
    state: str
    problem: str | None
    skipped: int
    lost: int


class StreamTail:
    """A stream that is kept. One thread calls ``step``; any thread asks ``kept`` and ``status``.

    Args:
        stream: that is read.
        rule: how it is kept.
        settings: when rows are written to files.
        folder: its files.
        clock: for ages.
    """

    def __init__(
        self,
        stream: Stream,
        rule: ExploreRule,
        settings: ExploreSettings,
        folder: SegmentFolder,
        clock: Clock,
    ) -> None:
        self.name = stream.spec.name
        self._stream, self._rule, self._settings = stream, rule, settings
        self._folder, self._clock = folder, clock
        self._lock = threading.Lock()
        self._segments: tuple[Segment, ...] = ()
        self._chunks: list[Chunk] = []
        self._version = 0
        self._next: dict[int, int] = {}
        self._began_ms: int | None = None
        self._behind_since: int | None = None
        self._lag_rows = 0
        self._problem: str | None = None
        self._skipped = self._lost = 0
        self._rate = _Rate()
        self._is_new = True

    # What readers ask.

    def kept(self) -> Kept:
        """Return what is there now."""
        with self._lock:
            schema = _columns(self._stream.spec.schema)
            chunks = tuple(self._chunks)
            return Kept(self._version, self._segments, chunks, schema, self._rule.sample)

    @property
    def identity(self) -> str:
        """What no other stream has, also none that has its name later."""
        return self._stream.identity

    @property
    def version(self) -> int:
        """A number that rises whenever rows come or go."""
        return self._version

    @property
    def time_column(self) -> str | None:
        """The column that the time of a row is from; ``None``: it is when the row was read."""
        time = self._rule.time or self._stream.spec.time
        return time if time in self._stream.spec.schema.names else None

    @staticmethod
    def time_span(kept: Kept) -> tuple[int | None, int | None]:
        """Return the lowest and highest time of the rows that are there, ms."""
        firsts = [one.facts.first_ms for one in kept.segments if one.facts.first_ms is not None]
        lasts = [one.facts.last_ms for one in kept.segments if one.facts.last_ms is not None]
        for one in kept.chunks:
            span = pc.min_max(one.rows.column(TIME)).as_py()
            firsts.append(span["min"])
            lasts.append(span["max"])
        return min(firsts, default=None), max(lasts, default=None)

    def status(self) -> TailStatus:
        """Return how it is doing."""
        now = self._clock.now_ms()
        since = self._behind_since
        lag = 0 if since is None else max(0, now - since)
        damaged = len(self._folder.damaged)
        problem = self._problem
        if problem is None and damaged:
            problem = f"{damaged} damaged files are left out: {next(iter(self._folder.damaged))}"
        state = "failing" if self._problem else "behind" if lag > 5_000 else "live"
        with self._lock:
            skipped = self._skipped + sum(one.facts.skipped for one in self._segments)
            lost = self._lost + sum(one.facts.lost for one in self._segments)
        rate = self._rate.per_second(now)
        return TailStatus(self.name, lag, self._lag_rows, rate, state, problem, skipped, lost)

    # What the one thread does.

    def step(self, *, is_writer: bool) -> bool:
        """Read what was appended, and write or tidy files; say whether more rows wait.

        What fails is shown in ``status``, and tried again at the next step.
        """
        try:
            self._follow_files(is_writer)
            has_more = self._read()
            if is_writer:
                self._write()
                self._tidy()
            self._problem = None
        except (HeadraceError, OSError, pa.ArrowException) as error:
            self._problem = str(error)
            return False
        return has_more

    def _follow_files(self, is_writer: bool) -> None:
        """Learn of the files: once where this process writes them, else each time."""
        if is_writer and not self._is_new:
            return
        if is_writer:
            self._folder.clean()
        segments = self._folder.refresh()
        if segments == self._segments and not self._is_new:
            return
        with self._lock:
            self._segments = segments
            offsets = self._committed()
            self._chunks = [
                left for one in self._chunks for left in _behind(one, offsets.get(one.partition, 0))
            ]
            for partition, offset in offsets.items():
                self._next[partition] = max(offset, self._next.get(partition, 0))
            self._version += 1
        self._is_new = False

    def begin_writing(self) -> None:
        """Look at the files again: this process is the one to write them from now on."""
        self._is_new = True

    def _committed(self) -> dict[int, int]:
        if not self._segments or self._segments[-1].facts.identity != self._stream.identity:
            return {}
        return self._segments[-1].facts.offsets

    def _read(self) -> bool:
        begins, ends = self._stream.begins(), self._stream.ends()
        has_more, lag = False, 0
        for partition, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            start = self._next.get(partition)
            if start is None or start > end:
                start = self._first(partition, begin, end)
            if start < begin:
                self._lost += begin - start
                start = begin
            self._next[partition] = start
            if start < end:
                self._take(partition, start, end)
                lag += end - self._next[partition]
        has_more = lag > 0
        self._lag_rows = lag
        if not has_more:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._clock.now_ms()
        return has_more

    def _first(self, partition: int, begin: int, end: int) -> int:
        """Return where a new tail begins: rows that retention would remove at once are left out.

        A stream whose newest row is older than that is history that somebody wants to see.
        """
        low = self._clock.now_ms() - self._rule_keep()
        if self._stream.spec.time is None or self.time_column != self._stream.spec.time:
            return begin
        span = self._stream.time_range(partition)
        if begin == end or span is None or span[1] < low:
            return begin
        return max(begin, self._stream.offset_at(partition, low))

    def _rule_keep(self) -> int:
        return self._rule.keep_ms or 0

    def _take(self, partition: int, start: int, end: int) -> None:
        """Read rows of a partition into memory, and skip those that cannot be read."""
        try:
            for found in self._stream.read(partition, start, end, max_rows=TURN_ROWS):
                self._keep(partition, self._next[partition], found)
        except OffsetGoneError:
            begin = self._stream.begins()[partition]
            self._lost += max(0, begin - self._next[partition])
            self._next[partition] = max(begin, self._next[partition])
        except (CorruptDataError, pa.ArrowException) as error:
            behind = _readable_from(self._stream, partition, self._next[partition], end)
            self._skipped += behind - self._next[partition]
            self._next[partition] = behind
            self._problem = str(error)

    def _keep(self, partition: int, start: int, found: OffsetBatch) -> None:
        now = self._clock.now_ms()
        rows = self._sampled(partition, found, now)
        with self._lock:
            if rows.num_rows:
                self._chunks.append(Chunk(partition, start, found.next_offset, rows, now))
                self._version += 1
                self._began_ms = now if self._began_ms is None else self._began_ms
            self._next[partition] = found.next_offset
        self._rate.add(found.batch.num_rows, now)

    def _sampled(self, partition: int, found: OffsetBatch, now: int) -> pa.RecordBatch:
        batch, offsets = found.batch, found.offsets
        rate = self._rule.sample
        if rate > 1:
            chosen = is_sampled(self.name, partition, offsets, rate)
            batch, offsets = batch.filter(pa.array(chosen)), offsets[chosen]
        count = batch.num_rows
        own = [
            self._times(batch, now),
            pa.array(np.full(count, partition, np.int32)),
            pa.array(offsets, pa.int64()),
            pa.array(np.full(count, rate, np.int32)),
        ]
        columns = _columns(batch.schema)
        held = [_storable(batch.column(at)) for at in range(batch.num_columns)]
        return pa.RecordBatch.from_arrays([*own, *held], schema=_with_own(columns))

    def _times(self, batch: pa.RecordBatch, now: int) -> pa.Array:
        name = self.time_column
        if name is None or name not in batch.schema.names:
            return pa.array(np.full(batch.num_rows, now, np.int64))
        column = batch.column(name)
        if not (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)):
            return pa.array(np.full(batch.num_rows, now, np.int64))
        return pc.fill_null(as_milliseconds(column), now)

    def _write(self) -> None:
        """Commit what is in memory, if there is enough, or it has waited long enough."""
        rows = sum(one.rows.num_rows for one in self._chunks)
        waited = 0 if self._began_ms is None else self._clock.now_ms() - self._began_ms
        if rows >= self._settings.flush_rows or (rows and waited >= self._settings.flush_ms):
            self.flush()

    def flush(self) -> None:
        """Commit all that is in memory; nothing happens where nothing is."""
        chunks = list(self._chunks)
        if chunks:
            self._commit(chunks)

    def close(self) -> None:
        """Commit what is in memory, and remove at once the files that were dropped."""
        self.flush()
        self._folder.sweep(0)

    def _commit(self, chunks: Sequence[Chunk]) -> None:
        table = _table(chunks)
        times = table.column(TIME) if table.num_rows else pa.chunked_array([], pa.int64())
        span = pc.min_max(times).as_py()
        facts = SegmentFacts(
            self._stream.identity,
            {partition: int(offset) for partition, offset in self._next.items()},
            table.num_rows,
            table.num_rows * self._rule.sample,
            self._rule.sample,
            self._rule.sample,
            span["min"],
            span["max"],
            self._clock.now_ms(),
            self._skipped,
            self._lost,
        )
        number = self._segments[-1].last + 1 if self._segments else 0
        made = self._folder.commit(number, table, facts)
        with self._lock:
            self._segments = (*self._segments, made)
            self._chunks = self._chunks[len(chunks) :]
            self._began_ms, self._skipped, self._lost = None, 0, 0
            self._version += 1

    def _tidy(self) -> None:
        """Merge small files, remove old ones, and those that are too many."""
        parts = mergeable(self._segments, self._rule_keep() // AGE_PARTS)
        if parts:
            merged = self._folder.merge(parts)
            at = self._segments.index(parts[0])
            with self._lock:
                behind = self._segments[at + len(parts) :]
                self._segments = (*self._segments[:at], merged, *behind)
                self._version += 1
        gone = set(map(id, self._expired()))
        if gone:
            if id(self._segments[-1]) in gone:  # the newest file has the offsets
                self._commit(())
            removed = [one for one in self._segments if id(one) in gone]
            with self._lock:
                self._segments = tuple(one for one in self._segments if id(one) not in gone)
                self._version += 1
            self._folder.remove(removed)
        self._folder.sweep()

    def _expired(self) -> list[Segment]:
        oldest = self._clock.now_ms() - self._rule_keep()
        room = self._rule.keep_bytes or 0
        gone = []
        for one in reversed(self._segments):
            room -= one.bytes
            if one.facts.rows and (one.is_older(oldest) or room < 0):
                gone.append(one)
        return gone


class _Rate:
    """Rows a second of the last few seconds."""

    _SPAN_MS = 5_000

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []

    def add(self, rows: int, now: int) -> None:
        """Count rows."""
        self._seen = [one for one in self._seen if now - one[0] < self._SPAN_MS] + [(now, rows)]

    def per_second(self, now: int) -> float:
        """Return the rate as of now."""
        rows = sum(count for at, count in self._seen if now - at < self._SPAN_MS)
        return rows * 1000 / self._SPAN_MS


def is_sampled(
    stream: str, partition: int, offsets: npt.NDArray[np.int64], rate: int
) -> npt.NDArray[np.bool_]:
    """Say which rows are kept, one of ``rate``: the same ones whenever and wherever it is asked.

    A hash of stream, partition and offset decides, so that no order in the rows can be followed.
    """
    seed = np.uint64(xxh3_64_intdigest(f"{stream}\0{partition}".encode()))
    mixed = (offsets.astype(np.uint64) + seed) * _PRIME
    mixed ^= mixed >> np.uint64(32)
    mixed *= _PRIME
    mixed ^= mixed >> np.uint64(29)
    found: npt.NDArray[np.bool_] = mixed % np.uint64(rate) == 0
    return found


def _behind(chunk: Chunk, offset: int) -> Iterator[Chunk]:
    """Yield what is left of a chunk from an offset on."""
    if chunk.next_offset <= offset:
        return
    if chunk.first_offset >= offset:
        yield chunk
        return
    rows = chunk.rows.filter(pc.greater_equal(chunk.rows.column(OFFSET), offset))
    if rows.num_rows:
        yield chunk._replace(first_offset=offset, rows=rows)


def _readable_from(stream: Stream, partition: int, start: int, end: int) -> int:
    """Return the first offset behind some that can be read; the end where there is none.

    A frame is read whole or not at all, so what can be read begins at one offset: it is found in
    steps that double, and then between the last two.
    """

    def is_readable(offset: int) -> bool:
        try:
            next(iter(stream.read(partition, offset, end, max_rows=1)), None)
        except (CorruptDataError, pa.ArrowException):
            return False
        return True

    bad, step = start, 1
    while bad + step < end and not is_readable(bad + step):
        bad, step = bad + step, 2 * step
    good = min(bad + step, end)
    while good - bad > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if is_readable(middle) else (good, middle)
    return good


def _columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a stream as they are kept.

    DuckDB knows no two names that differ in case alone, and four names are taken.
    """
    taken, fields = set(OWN), []
    for field in schema:
        name = field.name
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        fields.append(pa.field(name, _kept_type(field.type)))
    return pa.schema(fields)


def _kept_type(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_duration(kind) else kind


def _storable(column: pa.Array) -> pa.Array:
    """Return a column as Parquet has it, which knows no durations."""
    kind = _kept_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _with_own(columns: pa.Schema) -> pa.Schema:
    own = [pa.field(name, kind) for name, kind in zip(OWN, OWN_TYPES, strict=True)]
    return pa.schema([*own, *columns])


def _table(chunks: Sequence[Chunk]) -> pa.Table:
    """Return the rows of chunks, also where the columns of the stream changed between them."""
    if not chunks:
        return _with_own(pa.schema([])).empty_table()
    tables = [pa.Table.from_batches([one.rows]) for one in chunks]
    return pa.concat_tables(tables, promote_options="permissive")


def table_of(kept: Kept) -> pa.Table:
    """Return the rows in memory as one table, with all columns of the stream."""
    every = _with_own(kept.schema).empty_table()
    if not kept.chunks:
        return every
    found = _table(kept.chunks)
    if found.schema.equals(every.schema):
        return found
    return pa.concat_tables([found, every], promote_options="permissive")


__all__ = [
    "OFFSET", "PARTITION", "RATE", "TIME", "Chunk", "Kept", "StreamTail", "TailStatus",
    "is_sampled", "table_of",
]  # fmt: skip
