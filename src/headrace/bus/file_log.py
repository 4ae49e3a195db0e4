"""A partition of the file bus: its index, its mapped segments, and its appender.

Mapped segments, the most recently used of them, are kept for the next read.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from headrace.bus.appender import Appender
from headrace.bus.compaction import CompactionWriter
from headrace.bus.index_files import IndexFiles
from headrace.bus.index_table import Entry, IndexView, LastAppend
from headrace.bus.log import (
    BusContext,
    CompactionRequest,
    Log,
    PendingAppend,
    SegmentReplacedError,
    segment_name,
)
from headrace.bus.offload import (
    MovedSegments,
    Offloaded,
    Segment,
    segments_of,
    surplus,
)
from headrace.bus.spec import Appended, Compacted, Fence, stream_removed
from headrace.bus.stream_stores import CompactionPinFiles, SettingsStore
from headrace.errors import ClosedError, CorruptDataError
from headrace.faults import fault
from headrace.files import Bytes, Files


class SegmentMapCache:
    """Maps files of a bus, at most ``limit`` of them at a time; safe for many threads.

    Args:
        files: the file system.
        limit: how many.
        most_bytes: how much they may have together; the disk keeps a removed file that is mapped.
        moved: returns what stands for a file that is in an object storage now.

    A map that was given out lives as long as something refers to it, also when it is no
    longer kept here and when its file has a longer map by now.
    """

    def __init__(
        self,
        files: Files,
        limit: int,
        most_bytes: Callable[[], float] = lambda: math.inf,
        moved: Callable[[Path], Path | None] = lambda _: None,
    ) -> None:
        self._files = files
        self._limit, self._most_bytes, self._moved = limit, most_bytes, moved
        self._lock = threading.Lock()
        self._maps: OrderedDict[Path, pa.Buffer] = OrderedDict()
        self._far: set[Path] = set()

    def get(self, path: Path, end: int) -> pa.Buffer:
        """Return the content of a file, at least up to byte ``end``.

        Raises:
            CorruptDataError: the file is missing, or ends earlier than its index says.
        """
        if path not in self._maps and not path.exists() and (place := self._moved(path)):
            self._files.map(place)  # it is fetched while no other reader waits
        with self._lock:
            data = self._maps.get(path)
            if data is None:
                self._release_removed(path.parent)
            if data is None or data.size < end:
                data = self._map(path, end)
            self._maps[path] = data
            self._maps.move_to_end(path)
            while len(self._maps) > self._limit or self._has_too_much():
                self._maps.popitem(last=False)
            return data

    def _has_too_much(self) -> bool:
        most = self._most_bytes()
        if most == math.inf or len(self._maps) == 1:
            return False
        return most < sum(int(data.size) for data in self._maps.values())

    def _map(self, path: Path, end: int) -> pa.Buffer:
        try:
            data = pa.py_buffer(b"") if path.stat().st_size == 0 else self._files.map(path)
        except (FileNotFoundError, CorruptDataError):  # it may go at any moment
            if (place := self._moved(path)) is not None:
                self._far.add(path)
            data = self._files.map(place or path)
        if data.size < end:
            raise CorruptDataError(
                f"{path} is damaged at byte {data.size}: the file ends there, the index "
                f"expects {end} bytes",
                file=str(path),
            )
        return data

    def _release_removed(self, folder: Path) -> None:
        """Release the maps of files that are gone: what others moved frees its room here."""
        for path in [one for one in self._maps if one.parent == folder and one not in self._far]:
            if not path.exists():
                del self._maps[path]

    def drop(self, folder: Path) -> None:
        """Release the maps of the files of a folder, so that removed ones free their room."""
        with self._lock:
            for path in [path for path in self._maps if path.parent == folder]:
                del self._maps[path]
                self._far.discard(path)

    def clear(self) -> None:
        """Release all maps."""
        with self._lock:
            self._maps.clear()
            self._far.clear()


class OpenLogCache:
    """The partitions of a bus that have files open to append, the least used closed first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._logs: OrderedDict[FileLog, None] = OrderedDict()
        self._is_closed = False

    def touch(self, log: FileLog) -> None:
        """Note that a partition has files open, and close those that are one too many."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("the bus is closed")
            self._logs[log] = None
            self._logs.move_to_end(log)
            spare = list(self._logs)[: max(0, len(self._logs) - self._limit)]
            for other in spare:
                if other is not log and other.release():
                    del self._logs[other]

    def flush(self) -> None:
        """Make durable what was appended under the interval policy."""
        with self._lock:
            logs = list(self._logs)
        for log in logs:
            log.flush()

    def close(self) -> None:
        """Close all of them, after the appends that are under way."""
        with self._lock:
            self._is_closed = True
            logs = list(self._logs)
            self._logs.clear()
        for log in logs:
            log.close()


class Flusher:
    """A thread that syncs, once an interval, what was appended under the interval policy."""

    def __init__(self, flush: Callable[[], None], interval_ms: int) -> None:
        self._flush = flush
        self._seconds = interval_ms / 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-bus-flush", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._flush()


class FileLog(Log):
    """One partition in a folder of its own.

    Args:
        place: its folder, which exists already.
        partition: its number.
        stream: name of its stream.
        parts: settings, time and files.
        maps: kept for all partitions of the bus.
        open_logs: which partitions have files open.
        settings: of the stream.
        holds: of the stream's readers.
        moved: its segments in an object storage.
    """

    def __init__(  # noqa: PLR0913 - what partitions share, and stores of the stream
        self,
        place: str,
        partition: int,
        stream: str,
        parts: BusContext,
        *,
        maps: SegmentMapCache,
        open_logs: OpenLogCache,
        settings: SettingsStore,
        holds: CompactionPinFiles,
        moved: MovedSegments,
    ) -> None:
        super().__init__(stream, partition, parts, settings)
        self._place, self._moved, self._holds = place, moved, holds
        self._maps, self._open_logs = maps, open_logs
        self._cut = 0, 0
        self._index = IndexFiles(parts.files, place, partition, stream, parts.clock)
        self._lock = threading.Lock()
        self._compacting = threading.Lock()
        self._process = os.getpid()
        self._appender: Appender | None = None
        self._last_segment = (-1, -1), Path()

    @cached_property
    def folder(self) -> Path:
        """Where the partition lies."""
        return Path(self._place)

    def view(self) -> IndexView:
        """Return the index as it is now, also while an append is under way."""
        view = self._index.view()
        if (view.begin, view.compacted) != self._cut:
            self._cut = view.begin, view.compacted
            self._maps.drop(self.folder)
        return view

    def last(self, producer: bytes) -> LastAppend | None:
        """Return the last append of a producer, as of the last view."""
        return self._index.table.producers.last(producer)

    def data(self, entry: Entry) -> tuple[pa.Buffer, str]:
        """Return the mapped segment of an entry, and its path."""
        path = self._segment_path(entry.segment, entry.nonce)
        try:
            return self._maps.get(path, entry.position + entry.length), str(path)
        except CorruptDataError:
            view = self.view()
            if entry.first_offset < view.begin:
                raise self.gone(entry.first_offset) from None
            if path.exists() or view.at(entry.first_offset) == entry:
                raise
            raise SegmentReplacedError from None

    def _segment_path(self, segment: int, nonce: int) -> Path:
        """The same path as long as the same segment is read: its hash and text are made once."""
        found, path = self._last_segment
        if found != (segment, nonce):
            path = self.folder / segment_name(segment, nonce)
            self._last_segment = (segment, nonce), path
        return path

    def append(self, chunks: Sequence[Bytes], draft: PendingAppend) -> Appended:
        """Append frames in one step."""
        settings = self._settings.current()
        with self._opened(draft.fence) as appender:
            return appender.append(chunks, draft, settings)

    def adopt(self, path: Path, data: pa.Buffer, draft: PendingAppend) -> Appended:
        """Append a whole file in one step, by a second name for it."""
        settings = self._settings.current()
        with self._opened(draft.fence) as appender:
            return appender.adopt(path, data, draft, settings)

    def trim(self, before_offset: int | None, fence: Fence | None) -> int:
        """Drop whole segments below an offset, or those that retention drops."""
        settings = self._settings.current()
        with self._opened(fence) as appender:
            return appender.trim(before_offset, settings, fence)

    def compact(self, order: CompactionRequest, limit: Callable[[IndexView], int]) -> Compacted:
        """Keep of the rows up to an offset only the last one of each key, in one step."""
        self._check_process()
        with (
            self._compacting,  # others of this process are waited for without a deadline
            CompactionWriter(self, self.folder, order) as compactor,
        ):
            draft = compactor.draft(limit)

            def publish(path: Path, data: bytes) -> bool:
                upto = draft.outcome.upto
                return self._holds.publish(
                    path, data, self.partition, lambda: limit(draft.view) >= upto
                )

            if draft.entries:
                with self._opened() as appender:
                    appender.replace(draft, publish)
        return draft.outcome

    def offload(self) -> Offloaded:
        """Move the segments that the stream does not keep on this disk to the object storage.

        Objects of segments that were dropped are removed from there.

        Raises:
            StorageAwayError: it does not answer; those that were moved before are.
        """
        settings, moved, size = self._settings.current(), 0, 0
        held = [one for one in self._segments()[:-1] if (self.folder / one.name).exists()]
        for one in surplus(held, settings, self.context.clock.now_ms()):
            path = self.folder / one.name
            with contextlib.suppress(FileNotFoundError):  # others were first
                self._moved.put(path)
                fault("offload.put")
                with self._opened() as appender:
                    is_kept = appender.release(one.first_offset, one.name)
                moved, size = moved + is_kept, size + is_kept * one.bytes
        self._maps.drop(self.folder)
        self._moved.tidy(self.folder, lambda: (one.name for one in self._segments()))
        return Offloaded(moved, size)

    def _segments(self) -> list[Segment]:
        while True:
            with contextlib.suppress(SegmentReplacedError):
                return segments_of(self.view())

    def flush(self) -> None:
        """Sync what is due; the next append reports a failure."""
        with self._lock, contextlib.suppress(OSError):
            if self._appender is not None:
                self._appender.sync()

    def release(self) -> bool:
        """Close the files to append to, unless an append is under way or a sync fails."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._appender is not None:
                self._appender.sync()
            self._close_appender()
        except OSError:
            return False  # kept, so that the next append to this partition reports it
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """Close the files to append to."""
        with self._lock:
            self._close_appender()

    def _close_appender(self) -> None:
        appender, self._appender = self._appender, None
        if appender is not None:
            appender.close()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            # A forked process shares the file behind the lock with its parent, and so would
            # never be kept out by it; it opens its own.
            self._process = os.getpid()
            self._lock, self._compacting = threading.Lock(), threading.Lock()
            self._appender = None

    @contextlib.contextmanager
    def _opened(self, fence: Fence | None = None) -> Iterator[Appender]:
        self._check_process()
        with self._lock:
            self._open_logs.touch(self)
            if self._appender is None:
                try:
                    self._appender = Appender(self._index, self.context)
                except FileNotFoundError as error:
                    self.context.fences.check(fence)  # it was removed by who has the job now
                    raise stream_removed(self.stream) from error
            yield self._appender
