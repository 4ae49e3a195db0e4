"""A bus in memory, for tests and for jobs that live in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.bus.bus import Bus, Stream
from headrace.bus.compacting.compaction import Compaction, Piece
from headrace.bus.compacting.holds import HoldStore, MemoryHolds
from headrace.bus.entries import ENTRY, Entry, EntryTable, View
from headrace.bus.log import Draft, Log, Order, Parts, Place, SegmentReplacedError
from headrace.bus.log_stream import LogStream
from headrace.bus.options import BusOptions
from headrace.bus.refusals import alias_taken, unknown_stream
from headrace.bus.restored import Restored, sparse_pieces
from headrace.bus.retention import OffsetGoneError, expired, floor, offset_gone
from headrace.bus.sameness import check_same
from headrace.bus.settings import MemorySettings, SettingsStore
from headrace.bus.spec import Appended, Compacted, StreamSpec
from headrace.clock import Clock, SystemClock
from headrace.errors import ClosedError
from headrace.faults import fault
from headrace.files import Bytes, Files


class MemoryLog(Log):
    """A partition in memory: the same frames and index entries as on disk, without files."""

    def __init__(self, stream: str, partition: int, clock: Clock, settings: SettingsStore) -> None:
        self._stream = stream
        self._partition = partition
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._table = EntryTable()
        self._segments: dict[int, pa.Buffer] = {}
        self._number = -1

    def view(self) -> View:
        """Return the index as it is now."""
        with self._lock:
            return self._table.view()

    def data(self, entry: Entry) -> tuple[pa.Buffer, str]:
        """Return the frames of an entry."""
        data = self._segments.get(entry.segment)
        if data is None:
            begin = self.view().begin
            if entry.first_offset >= begin:
                raise SegmentReplacedError
            raise self.gone(entry.first_offset)
        return data, f"partition {self._partition} in memory"

    def gone(self, offset: int) -> OffsetGoneError:
        """Return the error for an offset below the oldest one that is kept."""
        return offset_gone(self._stream, self._partition, offset, self.view().begin)

    def append(self, chunks: Sequence[Bytes], draft: Draft) -> Appended:
        """Append frames in one step."""
        data = pa.py_buffer(b"".join(memoryview(chunk) for chunk in chunks))
        with self._lock:
            table = self._table
            duplicate = draft.duplicate(table.view(), table.sequences)
            if duplicate is not None:
                return duplicate
            first = table.next_offset
            place = Place(first, 0, 0, data.size)
            entry = draft.entry(first, self._partition, place, self._clock.now_ms())
            self._segments[first] = data
            fault("bus.frame_written")
            table.extend(np.frombuffer(entry.pack(), ENTRY), "the index in memory")
            fault("bus.index_written")
            settings = self._settings.current()
            self._trim(expired(table.view(), settings, self._clock.now_ms()))
            return Appended(first, table.next_offset, False)

    def adopt(self, path: Path, data: pa.Buffer, draft: Draft) -> Appended:
        """Append all frames of a file in one step; memory keeps a copy."""
        return self.append([data], draft)

    def trim(self, before_offset: int | None) -> int:
        """Drop the appends below an offset, or those that the settings let go."""
        with self._lock:
            view, settings = self._table.view(), self._settings.current()
            if before_offset is None:
                self._trim(expired(view, settings, self._clock.now_ms()))
            else:
                self._trim(floor(view, before_offset))
            return self._table.begin

    def _trim(self, begin: int) -> None:
        if begin > self._table.begin:
            self._table.trim(begin, "the index in memory")
            self._forget()

    def _forget(self) -> None:
        named = set(self._table.view().entries["segment"].tolist())
        for segment in [number for number in self._segments if number not in named]:
            del self._segments[segment]

    def begin_at(self, offset: int) -> None:
        """Begin there, as a log whose older rows were dropped; nothing is in it yet."""
        with self._lock:
            self._table.start_at(offset)
            self._table.trim(offset, "the index in memory")

    def fill(self, pieces: Iterable[Piece], end: int) -> None:
        """Hold compacted rows up to an offset; nothing is in it yet."""
        with self._lock:
            self._table.start_at(end)
            self._compact(pieces)

    def _compact(self, results: Iterable[Entry | Piece]) -> list[Entry]:
        entries = []
        data: dict[int, pa.Buffer] = {}
        for result in results:
            if isinstance(result, Piece):
                # No number comes twice: readers may have an older view.
                number = self._number = self._number - 1
                data[number] = pa.py_buffer(b"".join(map(memoryview, result.chunks)))
                place = Place(number, 0, 0, result.size)
                entries.append(result.entry(self._partition, place))
            else:
                entries.append(result)
        self._segments.update(data)
        if entries:
            packed = b"".join(entry.pack() for entry in entries)
            self._table.compact(np.frombuffer(packed, ENTRY), "the index in memory")
            self._forget()
        return entries

    def compact(self, order: Order, limit: Callable[[View], int], holds: HoldStore) -> Compacted:
        """Keep of the rows up to an offset only the last one of each key, in one step."""
        with holds.locked(), self._lock:
            view = self._table.view()
            upto = limit(view)
            compaction = Compaction(self, view, upto, order)
            entries = self._compact(compaction.results())
            return compaction.outcome(entries)


class MemoryBus(Bus):
    """Streams in memory; gone when the bus is.

    Args:
        settings: limits on batches.
        clock: where append times come from.
    """

    def __init__(self, settings: BusOptions | None = None, *, clock: Clock | None = None) -> None:
        self._parts = Parts(settings or BusOptions(), clock or SystemClock(), Files(sync=False))
        self._lock = threading.Lock()
        self._streams: dict[str, LogStream] = {}
        self._logs: dict[tuple[str, int], MemoryLog] = {}
        self._aliases: dict[str, str] = {}
        self._is_closed = False

    def create(self, spec: StreamSpec, *, exist_ok: bool = False) -> Stream:
        """Create a stream; see ``Bus.create``."""
        with self._lock:
            self._check_open()
            if spec.name in self._aliases:
                raise alias_taken(spec.name, self._aliases[spec.name])
            found = self._streams.get(spec.name)
            if found is not None:
                check_same(found, spec, found.schemas.all, exist_ok)
                return found
            clock, settings = self._parts.clock, MemorySettings()

            def make_log(partition: int) -> MemoryLog:
                made = MemoryLog(spec.name, partition, clock, settings)
                self._logs[spec.name, partition] = made
                return made

            self._streams[spec.name] = LogStream(
                spec, make_log, self._parts, settings, MemoryHolds(clock)
            )
            return self._streams[spec.name]

    def restore(
        self,
        spec: StreamSpec,
        schema: pa.Schema,
        added: Mapping[str, Any],
        parts: Sequence[Restored],
    ) -> Stream:
        """Create a stream that has rows at the offsets that they had elsewhere.

        Args:
            spec: as the stream was created, in its first columns.
            schema: its columns by now.
            added: those that came since, with what older rows have.
            parts: of its partitions, from the first on.
        """
        self.create(spec)
        stream = self._streams[spec.name]
        stream.evolve(schema, {name: value for name, value in added.items() if value is not None})
        stream.begins()  # which makes the logs
        version = stream.schemas.newest.number
        for partition, part in enumerate(parts):
            log = self._logs[spec.name, partition]
            if spec.compact and part.begin < part.end:
                log.fill(sparse_pieces(part, stream.spec, version), part.end)
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
        """Return the stream that each alias stands for."""
        with self._lock:
            self._check_open()
            return dict(self._aliases)

    def _remove(self, name: str) -> None:
        with self._lock:
            self._streams.pop(name).close()

    def _set_aliases(self, targets: Mapping[str, str | None]) -> None:
        with self._lock:
            for alias, stream in targets.items():
                self._aliases.pop(alias, None)
                if stream is not None:
                    self._aliases[alias] = stream

    def close(self) -> None:
        """Forget all streams."""
        with self._lock:
            self._is_closed = True
            for stream in self._streams.values():
                stream.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the bus is closed")
