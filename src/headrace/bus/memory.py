"""A bus in memory, for tests and for jobs that live in one process.

``RestoredRows`` fills a stream from a recording: rows at the offsets that they had elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.bus.bus import Bus, Stream, check_existing_stream
from headrace.bus.compaction import CompactedRows, Compaction
from headrace.bus.index_table import (
    NO_TIME,
    Entry,
    EntryTable,
    IndexView,
    Int64s,
    LastAppend,
    entries_of,
)
from headrace.bus.log import (
    BusContext,
    CompactionRequest,
    FrameLocation,
    Log,
    PendingAppend,
    RowOffsets,
    SegmentReplacedError,
    encode_compacted,
    expired_before,
    trim_limit,
)
from headrace.bus.log_stream import LogStream
from headrace.bus.options import BusOptions
from headrace.bus.spec import (
    Appended,
    Compacted,
    Fence,
    StreamSpec,
    alias_taken,
    check_expected,
    unknown_stream,
)
from headrace.bus.stream_stores import (
    MemoryCompactionPins,
    MemoryFences,
    MemorySettings,
    SettingsStore,
)
from headrace.clock import Clock, SystemClock
from headrace.errors import ClosedError
from headrace.faults import fault
from headrace.files import Bytes, Files
from headrace.records.schema import event_times


class RestoredRows(NamedTuple):
    """Offsets ``begin`` to before ``end`` of a partition: batches, each with its rows' offsets."""

    begin: int
    end: int
    batches: Sequence[tuple[Int64s, pa.RecordBatch]] = ()


def compacted_rows_of(
    restored: RestoredRows, spec: StreamSpec, version: int
) -> Iterator[CompactedRows]:
    """Yield what stands for a range of a compacted stream, which may lack offsets.

    Args:
        restored: the rows.
        spec: of the stream.
        version: number of the schema that they are in.
    """
    begin = restored.begin
    for offsets, batch in restored.batches:
        if not batch.num_rows:
            continue
        end = int(offsets[-1]) + 1
        low = high = NO_TIME
        if spec.time is not None:
            times = event_times(batch.column(spec.time), spec.name)
            low, high = int(np.min(times)), int(np.max(times))
        chunks = encode_compacted(RowOffsets(offsets), batch, version)
        yield CompactedRows(begin, end, batch.num_rows, low, high, 0, chunks)
        begin = end
    if begin < restored.end:
        yield CompactedRows(begin, restored.end, 0, NO_TIME, NO_TIME, 0, [])


class MemoryLog(Log):
    """A partition in memory: the same frames and index entries as on disk, without files."""

    def __init__(
        self,
        stream: str,
        partition: int,
        parts: BusContext,
        settings: SettingsStore,
        holds: MemoryCompactionPins,
    ) -> None:
        super().__init__(stream, partition, parts, settings)
        self._holds, self._clock, self._fences = holds, parts.clock, parts.fences
        self._lock = threading.Lock()
        self._table = EntryTable()
        self._segments: dict[int, pa.Buffer] = {}
        self._number = -1

    def view(self) -> IndexView:
        """Return the index as it is now."""
        with self._lock:
            return self._table.view()

    def last(self, producer: bytes) -> LastAppend | None:
        """Return the last append of a producer."""
        return self._table.producers.last(producer)

    def data(self, entry: Entry) -> tuple[pa.Buffer, str]:
        """Return the frames of an entry."""
        data = self._segments.get(entry.segment)
        if data is None:
            begin = self.view().begin
            if entry.first_offset >= begin:
                raise SegmentReplacedError
            raise self.gone(entry.first_offset)
        return data, f"partition {self.partition} in memory"

    def append(self, chunks: Sequence[Bytes], draft: PendingAppend) -> Appended:
        """Append frames in one step."""
        data = pa.py_buffer(b"".join(memoryview(chunk) for chunk in chunks))
        with self._lock:
            self._fences.check(draft.fence)
            table = self._table
            duplicate = draft.duplicate(table.view(), table.producers)
            if duplicate is not None:
                return duplicate
            first = table.next_offset
            place = FrameLocation(first, 0, 0, data.size)
            entry = draft.entry(first, self.partition, place, self._clock.now_ms())
            self._segments[first] = data
            fault("bus.frame_written")
            table.extend(entries_of([entry]), "the index in memory")
            fault("bus.index_written")
            settings = self._settings.current()
            self._trim(expired_before(table.view(), settings, self._clock.now_ms()))
            return Appended(first, table.next_offset, False)

    def trim(self, before_offset: int | None, fence: Fence | None) -> int:
        """Drop the appends below an offset, or those that retention drops."""
        with self._lock:
            self._fences.check(fence)
            view, settings = self._table.view(), self._settings.current()
            self._trim(trim_limit(view, before_offset, settings, self._clock.now_ms()))
            return self._table.begin

    def _trim(self, begin: int) -> None:
        if begin > self._table.begin:
            self._table.trim(begin, "the index in memory")
            self._forget()

    def _forget(self) -> None:
        named = set(self._table.entries["segment"].tolist())
        for segment in [number for number in self._segments if number not in named]:
            del self._segments[segment]

    def begin_at(self, offset: int) -> None:
        """Begin there, as a log whose older rows were dropped; nothing is in it yet."""
        with self._lock:
            self._table.start_at(offset)
            self._table.trim(offset, "the index in memory")

    def fill(self, pieces: Iterable[CompactedRows], end: int) -> None:
        """Hold compacted rows up to an offset; nothing is in it yet."""
        with self._lock:
            self._table.start_at(end)
            self._compact(pieces)

    def _compact(self, results: Iterable[Entry | CompactedRows]) -> list[Entry]:
        entries = []
        data: dict[int, pa.Buffer] = {}
        for result in results:
            if isinstance(result, CompactedRows):
                # No number comes twice: readers may have an older view.
                number = self._number = self._number - 1
                data[number] = pa.py_buffer(b"".join(map(memoryview, result.chunks)))
                place = FrameLocation(number, 0, 0, result.size)
                entries.append(result.entry(self.partition, place))
            else:
                entries.append(result)
        self._segments.update(data)
        if entries:
            self._table.compact(entries_of(entries), "the index in memory")
            self._forget()
        return entries

    def compact(self, order: CompactionRequest, limit: Callable[[IndexView], int]) -> Compacted:
        """Keep of the rows up to an offset only the last one of each key, in one step."""
        with self._holds.lock, self._lock:
            view = self._table.view()
            upto = limit(view)
            compaction = Compaction(self, view, upto, order)
            entries = self._compact(compaction.results())
            return compaction.outcome(entries)


class MemoryBus(Bus):
    """Streams in memory, which live as long as the bus.

    Args:
        settings: limits on batches.
        clock: where append times come from.
    """

    def __init__(self, settings: BusOptions | None = None, *, clock: Clock | None = None) -> None:
        clock, files = clock or SystemClock(), Files(sync=False)
        self._parts = BusContext(settings or BusOptions(), clock, files, MemoryFences())
        self._lock = threading.Lock()
        self._streams: dict[str, LogStream] = {}
        self._logs: dict[tuple[str, int], MemoryLog] = {}
        self._aliases: dict[str, str] = {}
        self._is_closed = False

    def create(
        self, spec: StreamSpec, *, exist_ok: bool = False, fence: Fence | None = None
    ) -> Stream:
        """Create a stream; see ``Bus.create``."""
        with self._lock:
            self._check_open()
            self._parts.fences.check(fence)
            return self._create(spec, exist_ok=exist_ok)

    def _create(self, spec: StreamSpec, *, exist_ok: bool, identity: str = "") -> LogStream:
        if spec.name in self._aliases:
            raise alias_taken(spec.name, self._aliases[spec.name])
        spec = replace(spec, address="")  # memory has all rows
        found = self._streams.get(spec.name)
        if found is not None:
            check_existing_stream(found, spec, found.schemas.all, exist_ok)
            return found
        settings = MemorySettings()
        holds = MemoryCompactionPins(self._parts.clock, self._parts.fences)

        def make_log(partition: int) -> MemoryLog:
            made = MemoryLog(spec.name, partition, self._parts, settings, holds)
            self._logs[spec.name, partition] = made
            return made

        self._streams[spec.name] = LogStream(
            spec,
            identity or self._parts.clock.new_id(),
            make_log,
            self._parts,
            settings,
            holds,
        )
        return self._streams[spec.name]

    def restore(
        self,
        spec: StreamSpec,
        schema: pa.Schema,
        added: Mapping[str, Any],
        parts: Sequence[RestoredRows],
        identity: str = "",
    ) -> Stream:
        """Create a stream with rows at the offsets that they had elsewhere.

        Args:
            spec: as the stream was created, in its first columns.
            schema: its current columns.
            added: columns added since, with the values of older rows.
            parts: the rows of its partitions, from the first on.
            identity: that it had elsewhere; empty: one of its own.
        """
        with self._lock:
            self._check_open()
            stream = self._create(spec, exist_ok=False, identity=identity)
        stream.evolve(schema, {name: value for name, value in added.items() if value is not None})
        stream.begins()  # which makes the logs
        version = stream.schemas.newest.number
        for partition, part in enumerate(parts):
            log = self._logs[spec.name, partition]
            if spec.compact and part.begin < part.end:
                log.fill(compacted_rows_of(part, stream.spec, version), part.end)
                continue
            log.begin_at(part.begin)
            for _, batch in part.batches:
                stream.append(partition, batch)
        return stream

    def stream(self, name: str) -> Stream:
        """Return a stream; see ``Bus.stream``."""
        with self._lock:
            self._check_open()
            real = self._aliases.get(name, name)
            if real not in self._streams:
                raise unknown_stream(name, sorted([*self._streams, *self._aliases]))
            return self._streams[real]

    def names(self) -> list[str]:
        """Return the names of all streams, sorted."""
        with self._lock:
            self._check_open()
            return sorted(self._streams)

    def aliases(self) -> dict[str, str]:
        """Return the stream of each alias."""
        with self._lock:
            self._check_open()
            return dict(self._aliases)

    def fence(self, fence: Fence) -> None:
        """Refuse requests of older generations of a job; see ``Bus.fence``."""
        self._parts.fences.announce(fence)

    def fenced(self, job: str) -> int:
        """Return the newest generation announced of a job."""
        return self._parts.fences.highest(job)

    def _remove(self, name: str, fence: Fence | None) -> None:
        with self._lock:
            self._parts.fences.check(fence)
            self._streams.pop(name).close()

    def _set_aliases(
        self, targets: Mapping[str, str | None], expected: Mapping[str, str] | None = None
    ) -> None:
        with self._lock:
            check_expected(self._aliases, expected)
            for alias, stream in targets.items():
                self._aliases.pop(alias, None)
                if stream is not None:
                    self._aliases[alias] = stream

    def close(self) -> None:
        """Drop all streams."""
        with self._lock:
            self._is_closed = True
            for stream in self._streams.values():
                stream.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the bus is closed")
