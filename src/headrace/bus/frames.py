"""Frames by offset: what lies between two offsets, and what a file of frames holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.bus.compacting.sparse import read_compacted
from headrace.bus.entries import COMPACTED, NO_TIME, Entry, View
from headrace.bus.log import Log, SegmentReplacedError
from headrace.bus.schemas import Schemas, Version
from headrace.bus.spec import OffsetBatch, StreamSpec
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.frame import iterate_frames, read_frame
from headrace.records.schema import event_times


class Wanted(NamedTuple):
    """What a read asks for: offsets, and column indices (all when ``None``) of a schema."""

    start: int
    stop: int
    version: Version
    columns: Sequence[int] | None = None


def read_entry(log: Log, entry: Entry, schemas: Schemas, wanted: Wanted) -> Iterator[OffsetBatch]:
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


def _read_sparse(log: Log, entry: Entry, schemas: Schemas, wanted: Wanted) -> OffsetBatch:
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


def read_range(log: Log, view: View, schemas: Schemas, wanted: Wanted) -> Iterator[OffsetBatch]:
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
            view = log.view()
            if view.begin > wanted.start:
                raise log.gone(wanted.start) from None


def _read_view(log: Log, view: View, schemas: Schemas, wanted: Wanted) -> Iterator[OffsetBatch]:
    index = view.locate(wanted.start)
    while index < len(view.nexts) and wanted.start < wanted.stop:
        entry = view.entry(index)
        if entry.first_offset >= wanted.stop:
            return
        yield from read_entry(log, entry, schemas, wanted)
        index += 1


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


class Survey(NamedTuple):
    """What ranges of a file of frames hold."""

    rows: int
    min_time: int
    max_time: int


def survey(
    data: pa.Buffer,
    ranges: Sequence[tuple[int, int]],
    spec: StreamSpec,
    schemas: Schemas,
    origin: str,
) -> Survey:
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
    return Survey(rows, min(times, default=NO_TIME), max(times, default=NO_TIME))


def first_at(log: Log, entry: Entry, spec: StreamSpec, schemas: Schemas, time_ms: int) -> int:
    """Return the offset of the first row of an append at or after an event time."""
    assert spec.time is not None
    version = schemas.newest
    column = [version.schema.names.index(spec.time)]
    everything = Wanted(entry.first_offset, entry.next_offset, version, column)
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
