"""One partition as a log of frames: the contract, how far it may be cut, and reading by offset.

``Log`` is what a bus implements for a partition (``file_log``, ``memory``); ``log_stream`` makes a
stream of several. Retention removes whole segments, by age and by bytes. A compacted frame is two:
one with the offset of each row (and when deletes were first met), and behind it the rows' frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.bus.index_table import (
    ADOPTED,
    APPEND,
    COMPACTED,
    NO_PRODUCER,
    NO_TIME,
    OF_JOB,
    SEQUENCED,
    Bools,
    Entry,
    IndexView,
    Int64s,
    LastAppend,
    ProducerState,
    segment_spans,
)
from headrace.bus.options import BusOptions
from headrace.bus.spec import (
    Appended,
    AppendedUpTo,
    Compacted,
    Fence,
    OffsetBatch,
    SchemaVersion,
    SchemaVersions,
    StreamSpec,
)
from headrace.bus.stream_stores import FenceStore, SettingsStore, StreamSettings
from headrace.clock import Clock
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import Bytes, Files
from headrace.records.frame import Frame, encode_frame, iterate_frames, read_frame
from headrace.records.schema import event_times

_SEGMENTS_A_LIFE = 8


class OffsetGoneError(InvalidInputError):
    """Rows that retention or ``trim`` has removed. Read from the oldest offset kept."""

    code = "HR103"
    move = "read from the oldest offset kept; headrace bus describe STREAM shows it"


def offset_gone(stream: str, partition: int, offset: int, begin: int) -> OffsetGoneError:
    """Return the error for an offset below the oldest one that is kept."""
    return OffsetGoneError(
        f"stream {stream!r} partition {partition}: offset {offset} is gone, the oldest kept is "
        f"{begin}; read from there on, and raise retain_ms or retain_bytes of the stream so that "
        "slow readers find what they need",
        stream=stream,
        partition=partition,
        offset=offset,
        begin=begin,
    )


def trim_limit(
    view: IndexView, before_offset: int | None, settings: StreamSettings, now_ms: int
) -> int:
    """Return where the partition can begin so that nothing from ``before_offset`` on goes.

    ``None``: nothing that the settings keep.
    """
    if before_offset is None:
        return expired_before(view, settings, now_ms)
    if before_offset >= view.next_offset:
        return view.next_offset
    entry = view.at(before_offset)
    return view.begin if entry is None else segment_first(view, entry)


def segment_first(view: IndexView, entry: Entry) -> int:
    """Return where what is left of the segment that an entry is in begins."""
    # In memory, what a compaction has left is called by numbers below zero, each by itself.
    first = entry.segment if entry.segment >= 0 else entry.first_offset
    return max(first, view.begin if entry.kind == COMPACTED else view.compacted, view.begin)


def expired_before(view: IndexView, settings: StreamSettings, now_ms: int) -> int:
    """Return where the partition may begin by its settings: before it no row need be kept."""
    if not settings.drops:
        return view.begin
    cutoff = now_ms - (settings.retain_ms or 0)
    left, first, name = view.stored[1], view.begin, (-1, -1)
    has_spare = may_go = False
    for entries in view.blocks():
        for begin, end, size in segment_spans(entries):
            entry = entries[begin]
            if name != (key := (int(entry["segment"]), int(entry["nonce"]))):
                if name != (-1, -1) and not may_go:
                    return first
                name, first = key, int(entry["first_offset"])
                has_spare = settings.retain_bytes is not None and left >= settings.retain_bytes
            left -= size
            is_old = settings.retain_ms is not None and entries["appended_ms"][end - 1] < cutoff
            may_go = is_old or (has_spare and left >= (settings.retain_bytes or 0))
            if not is_old and not has_spare:  # what is behind in the segment can only be younger
                return first
    return view.next_offset if may_go else first


def is_old(first_ms: int, settings: StreamSettings, now_ms: int) -> bool:
    """Say whether a segment begun at a time is old enough that a new one should follow it.

    A segment goes when its last row may, so one that is written for long keeps its first
    rows for long.
    """
    if settings.retain_ms is None:
        return False
    return (now_ms - first_ms) * _SEGMENTS_A_LIFE >= settings.retain_ms


@dataclass(frozen=True)
class BusContext:
    """What a bus is built with: its settings, time and files, and who may change streams."""

    settings: BusOptions
    clock: Clock
    files: Files
    fences: FenceStore


class FrameLocation(NamedTuple):
    """Where the frames of an append lie."""

    segment: int
    nonce: int
    position: int
    length: int
    adopted: bool = False


def segment_name(segment: int, nonce: int) -> str:
    """Return the name of a segment's file."""
    return f"{segment:020d}-{nonce:08x}.seg"


def new_nonce(clock: Clock) -> int:
    """Return a number of 32 bits that keeps files of one offset, or of one number, apart."""
    return int(clock.new_id()[:8], 16)


FOUND_WITHIN = 100_000
"""How many offsets back the place of an old duplicate is looked for."""


class PendingAppend(NamedTuple):
    """An append that has no place yet; ``job`` stands for the job whose own producer appends."""

    rows: int
    min_time: int
    max_time: int
    producer: bytes
    sequence: int
    fence: Fence | None = None
    job: int = 0

    def entry(self, first_offset: int, partition: int, place: FrameLocation, now_ms: int) -> Entry:
        """Return the index entry of the append at its place."""
        flags = SEQUENCED if self.producer != NO_PRODUCER else 0
        flags |= (OF_JOB if self.job else 0) | (ADOPTED if place.adopted else 0)
        return Entry(
            kind=APPEND,
            flags=flags,
            first_offset=first_offset,
            rows=self.rows,
            segment=place.segment,
            nonce=place.nonce,
            partition=partition,
            position=place.position,
            length=place.length,
            min_time=self.min_time,
            max_time=self.max_time,
            appended_ms=now_ms,
            producer=self.producer,
            sequence=self.sequence,
            span=self.job,
        )

    def duplicate(self, view: IndexView, producers: ProducerState) -> Appended | None:
        """Return the answer when the sequence is not above the last one of its producer."""
        if self.producer == NO_PRODUCER:
            return None
        last = producers.last(self.producer)
        if last is None or self.sequence > last.sequence:
            return None
        if self.sequence == last.sequence and last.first_offset >= view.begin:
            return Appended(last.first_offset, last.first_offset + last.rows, True)
        before = view.find(self.producer, self.sequence, view.next_offset - FOUND_WITHIN)
        if before is None:
            return Appended(view.next_offset, view.next_offset, True)
        return Appended(before.first_offset, before.first_offset + before.rows, True)


class CompactionRequest(NamedTuple):
    """A compaction that is wanted.

    ``stopped`` is asked often; true ends it without a change. Another compaction of the
    partition is waited for, for ``wait_s``.
    """

    spec: StreamSpec
    schemas: SchemaVersions
    settings: StreamSettings
    now_ms: int
    segment_bytes: int
    stopped: Callable[[], bool]
    wait_s: float = 0.0


class SegmentReplacedError(Exception):
    """A segment is gone because a compaction has replaced it; look at the index again."""


class Log(ABC):
    """One partition. Safe to call from many threads.

    Args:
        stream: name of its stream.
        partition: its number.
        parts: settings, time and files.
        settings: of the stream.
    """

    def __init__(
        self, stream: str, partition: int, parts: BusContext, settings: SettingsStore
    ) -> None:
        self.stream, self.partition = stream, partition
        self.context, self._settings = parts, settings

    @abstractmethod
    def view(self) -> IndexView:
        """Return the index as it is now."""

    def knows(self, producer: bytes, sequence: int) -> bool:
        """Say whether a producer has appended here under a sequence: its last, or of kept rows."""
        while True:
            view, last = self.view(), self.last(producer)
            if last is None or last.sequence <= sequence:
                return last is not None and last.sequence == sequence
            with suppress(SegmentReplacedError):
                return view.find(producer, sequence) is not None

    @abstractmethod
    def last(self, producer: bytes) -> LastAppend | None:
        """Return the last append of a producer, as of the last view; ``None``: none is known."""

    def as_of(self, producer: bytes, sequence: int) -> AppendedUpTo:
        """Return how far the partition goes as of a sequence of a producer."""
        while True:
            view, last = self.view(), self.last(producer)
            if last is None:
                return AppendedUpTo(view.next_offset, -1)
            if last.sequence <= sequence:
                return AppendedUpTo(view.next_offset, last.sequence)
            with suppress(SegmentReplacedError):
                return AppendedUpTo(view.end_as_of(producer, sequence), sequence)

    @abstractmethod
    def data(self, entry: Entry) -> tuple[pa.Buffer, str]:
        """Return the segment that an entry lies in, and its name for errors.

        Raises:
            SegmentReplacedError: a compaction has replaced it; take a new view.
            OffsetGoneError: it was dropped.
        """

    def gone(self, offset: int) -> OffsetGoneError:
        """Return the error for an offset below the oldest one that is kept."""
        return offset_gone(self.stream, self.partition, offset, self.view().begin)

    @abstractmethod
    def append(self, chunks: Sequence[Bytes], draft: PendingAppend) -> Appended:
        """Append frames, given as chunks of their bytes, in one step.

        Raises:
            NotOwnerError: the draft is for a job that was taken over.
        """

    def adopt(self, path: Path, data: pa.Buffer, draft: PendingAppend) -> Appended:
        """Append all frames of a file in one step, by its name where that can be."""
        del path
        return self.append([data], draft)

    @abstractmethod
    def trim(self, before_offset: int | None, fence: Fence | None) -> int:
        """Drop whole segments below an offset, or those that retention drops.

        Returns:
            The new beginning of the partition.

        Raises:
            NotOwnerError: it is asked for a job that was taken over.
        """

    @abstractmethod
    def compact(self, order: CompactionRequest, limit: Callable[[IndexView], int]) -> Compacted:
        """Keep of the rows up to an offset only the last one of each key, in one step.

        Args:
            order: what is wanted.
            limit: returns the offset; asked again before it counts, which no hold can overtake.

        Raises:
            CompactionStoppedError: nothing was compacted.
            UnavailableError: as for ``append``.
        """


NOT_DELETED = -1
_OFFSETS = pa.schema([("offset", pa.int64())])
_DELETES = pa.schema([("offset", pa.int64()), ("deleted_ms", pa.int64())])


class RowOffsets(NamedTuple):
    """Where compacted rows are, and which of them delete.

    ``deleted_ms`` is when a compaction first met a delete, ``NOT_DELETED`` for other rows;
    ``None`` where no row deletes.
    """

    offsets: Int64s
    deleted_ms: Int64s | None = None


def encode_compacted(places: RowOffsets, rows: pa.RecordBatch, version: int) -> list[Bytes]:
    """Return the chunks of the two frames of compacted rows.

    Args:
        places: of the rows.
        rows: in the schema of that number.
        version: number of the schema.
    """
    if places.deleted_ms is None:
        batch = pa.record_batch([places.offsets], schema=_OFFSETS)
    else:
        batch = pa.record_batch([places.offsets, places.deleted_ms], schema=_DELETES)
    return [*encode_frame(batch), *encode_frame(rows, version)]


def read_compacted(data: pa.Buffer, entry: Entry, origin: str) -> tuple[RowOffsets, Frame]:
    """Return where the rows of a compacted entry are, and their frame.

    Raises:
        CorruptDataError: damaged bytes, or other frames than the index expects.
    """
    end = entry.position + entry.length
    frames = list(iterate_frames(data, entry.position, end, origin))
    if len(frames) == 2 and frames[0].rows == frames[1].rows == entry.rows:
        schema = _DELETES if len(frames[0].parts) == 2 * (len(_DELETES) + 1) else _OFFSETS
        batch = read_frame(data, frames[0], schema, origin)
        offsets = batch.column(0).to_numpy()
        is_inside = entry.first_offset <= offsets[0] and offsets[-1] < entry.next_offset
        if len(offsets) == entry.rows and is_inside and (np.diff(offsets) > 0).all():
            deleted = batch.column(1).to_numpy() if len(schema) == 2 else None
            return RowOffsets(offsets, deleted), frames[1]
    raise CorruptDataError(
        f"{origin} is damaged at byte {entry.position}: its frames do not hold the {entry.rows} "
        f"rows of offsets {entry.first_offset} to {entry.next_offset} that the index expects",
        file=origin,
    )


def deletes_of(batch: pa.RecordBatch, values: Sequence[str]) -> Bools:
    """Say which rows delete their key: those in which all values are null."""
    if not values:
        return np.zeros(batch.num_rows, bool)
    is_dead = np.ones(batch.num_rows, bool)
    for name in values:
        column = batch.column(name)
        if not column.null_count:
            return np.zeros(batch.num_rows, bool)
        is_dead &= column.is_null().to_numpy(zero_copy_only=False)
    return is_dead


class ReadRequest(NamedTuple):
    """What a read asks for: offsets, and column indices (all when ``None``) of a schema."""

    start: int
    stop: int
    version: SchemaVersion
    columns: Sequence[int] | None = None


def read_entry(
    log: Log, entry: Entry, schemas: SchemaVersions, wanted: ReadRequest
) -> Iterator[OffsetBatch]:
    """Yield the wanted rows of one append.

    Raises:
        CorruptDataError: damaged frames, or not as many rows as the index says.
    """
    if entry.kind == COMPACTED:
        yield _read_sparse(log, entry, schemas, wanted)
        return
    data, origin = log.data(entry)
    first = entry.first_offset
    end = entry.position + entry.length
    for frame in iterate_frames(data, entry.position, end, origin):
        following = first + frame.rows
        if following > wanted.start and first < wanted.stop:
            batch = schemas.read(data, frame, origin, wanted.columns, wanted.version)
            if batch.num_rows != frame.rows:
                break
            skip = max(0, wanted.start - first)
            size = min(following, wanted.stop) - first - skip
            whole = size == frame.rows
            yield OffsetBatch(first + skip, batch if whole else batch.slice(skip, size))
        first = following
        if first >= wanted.stop and first < entry.first_offset + entry.rows:
            return
    if first != entry.first_offset + entry.rows:
        raise CorruptDataError(
            f"{origin} is damaged at byte {entry.position}: its frames do not hold the "
            f"{entry.rows} rows from offset {entry.first_offset} that the index expects",
            file=origin,
        )


def _read_sparse(
    log: Log, entry: Entry, schemas: SchemaVersions, wanted: ReadRequest
) -> OffsetBatch:
    """Return the wanted rows of a compacted entry; there may be none."""
    first, behind = max(wanted.start, entry.first_offset), min(wanted.stop, entry.next_offset)
    if not entry.rows:
        columns = wanted.version.schema
        if wanted.columns is not None:
            columns = pa.schema([columns.field(index) for index in wanted.columns])
        empty = pa.RecordBatch.from_pylist([], columns)
        return OffsetBatch(first, empty, np.zeros(0, np.int64), behind)
    data, origin = log.data(entry)
    places, frame = read_compacted(data, entry, origin)
    batch = schemas.read(data, frame, origin, wanted.columns, wanted.version)
    begin, end = np.searchsorted(places.offsets, [first, behind]).tolist()
    part = batch.slice(begin, end - begin)
    return OffsetBatch(first, part, places.offsets[begin:end], behind)


def read_range(
    log: Log, view: IndexView, schemas: SchemaVersions, wanted: ReadRequest
) -> Iterator[OffsetBatch]:
    """Yield the wanted rows, which the view must hold, in order.

    Where a compaction replaces what is still to be read, the rows that it kept come instead.

    Raises:
        OffsetGoneError: they were dropped meanwhile.
    """
    while wanted.start < wanted.stop:
        try:
            for found in _read_view(log, view, schemas, wanted):
                yield found
                wanted = wanted._replace(start=found.next_offset)
            return
        except SegmentReplacedError:
            before, view = view, log.view()
            if view.begin > wanted.start:
                raise log.gone(wanted.start) from None
            if view.older is not None and (view.begin, view.older) == (before.begin, before.older):
                raise CorruptDataError(
                    f"index entries from offset {wanted.start} on are lost: found none of them, "
                    f"expected those of offsets {view.begin} to {view.next_offset}"
                ) from None


def _read_view(
    log: Log, view: IndexView, schemas: SchemaVersions, wanted: ReadRequest
) -> Iterator[OffsetBatch]:
    for entry in view.between(wanted.start, wanted.stop):
        yield from read_entry(log, entry, schemas, wanted)


def limited(batches: Iterator[OffsetBatch], max_bytes: int) -> Iterator[OffsetBatch]:
    """Yield batches until about ``max_bytes``, and at least one row."""
    left = max_bytes
    for found in batches:
        size = found.batch.nbytes
        if size >= left:
            yield found.head(max(1, int(found.batch.num_rows * max(left, 0) / max(size, 1))))
            return
        left -= size
        yield found


def limited_rows(batches: Iterator[OffsetBatch], max_rows: int) -> Iterator[OffsetBatch]:
    """Yield batches of compacted streams up to a number of rows."""
    for found in batches:
        if max_rows <= 0:
            return
        part = found.head(max_rows)
        max_rows -= part.batch.num_rows
        yield part


def first_larger(rows: pa.RecordBatch, limit: int) -> int | None:
    """Return the first row with more bytes than a limit, by halving only what has more."""
    parts = [(0, rows.num_rows)]
    while parts:
        begin, count = parts.pop()
        if rows.slice(begin, count).nbytes <= limit:
            continue
        if count == 1:
            return begin
        half = count // 2
        parts += [(begin + half, count - half), (begin, half)]
    return None


class FileSummary(NamedTuple):
    """What ranges of a file of frames hold."""

    rows: int
    min_time: int
    max_time: int


def summarize_file(
    data: pa.Buffer,
    ranges: Sequence[tuple[int, int]],
    spec: StreamSpec,
    schemas: SchemaVersions,
    origin: str,
) -> FileSummary:
    """Verify the frame headers of ranges of a file, and sum them up.

    Raises:
        InvalidInputError: a range outside the file, or that does not end with a frame.
        CorruptDataError: damage in a header or in the event times.
    """
    rows, times = 0, []
    for begin, end in ranges:
        if not 0 <= begin <= end <= data.size:
            raise InvalidInputError(
                f"range {begin} to {end} is not in {origin}, which has {data.size} bytes"
            )
        for frame in iterate_frames(data, begin, end, origin):
            schema = schemas.schema(frame.version, origin)
            if frame.end > end or len(frame.parts) != 2 * (len(schema) + 1):
                raise InvalidInputError(
                    f"range {begin} to {end} of {origin}: the frame at {frame.position} ends at "
                    f"{frame.end} and has {len(frame.parts) // 2 - 1} columns; expected whole "
                    f"frames of {len(schema)} columns"
                )
            rows += frame.rows
            if spec.time is not None and frame.rows:
                batch = read_frame(data, frame, schema, origin, [schema.names.index(spec.time)])
                found = event_times(batch.column(0), origin)
                times += [int(found.min()), int(found.max())]
    return FileSummary(rows, min(times, default=NO_TIME), max(times, default=NO_TIME))


def first_at(
    log: Log, entry: Entry, spec: StreamSpec, schemas: SchemaVersions, time_ms: int
) -> int:
    """Return the offset of the first row of an append at or after an event time."""
    assert spec.time is not None
    version = schemas.newest
    column = [version.schema.names.index(spec.time)]
    everything = ReadRequest(entry.first_offset, entry.next_offset, version, column)
    for found in read_entry(log, entry, schemas, everything):
        late = event_times(found.batch.column(0), spec.name) >= time_ms
        if late.any():
            return int(found.offsets[np.argmax(late)])
    raise CorruptDataError(
        f"stream {spec.name!r}: the append at offset {entry.first_offset} has no row at or after "
        f"{time_ms} ms, though its index entry says so",
        stream=spec.name,
        offset=entry.first_offset,
    )
