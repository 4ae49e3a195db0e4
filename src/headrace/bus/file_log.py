"""A partition of the file bus: its index, its mapped segments, and its appender."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from headrace.bus.appender import Appender
from headrace.bus.compacting.compactor import Compactor, changed_meanwhile
from headrace.bus.compacting.holds import HoldStore
from headrace.bus.entries import Entry, View
from headrace.bus.index_files import IndexFiles
from headrace.bus.log import Draft, Log, Order, Parts, SegmentReplacedError, segment_name
from headrace.bus.maps import SegmentMaps
from headrace.bus.retention import OffsetGoneError, offset_gone
from headrace.bus.settings import SettingsStore
from headrace.bus.spec import Appended, Compacted
from headrace.errors import ClosedError, CorruptDataError
from headrace.files import Bytes


class OpenLogs:
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
        parts: settings, time and files.
        maps: kept for all partitions of the bus.
        open_logs: which partitions have files open.
        settings: of the stream.
    """

    def __init__(
        self,
        place: str,
        partition: int,
        parts: Parts,
        *,
        maps: SegmentMaps,
        open_logs: OpenLogs,
        settings: SettingsStore,
    ) -> None:
        self._place = place
        self._parts = parts
        self._maps = maps
        self._open_logs = open_logs
        self._settings = settings
        self._cut = 0, 0
        self._index = IndexFiles(parts.files, place, partition)
        self._lock = threading.Lock()
        self._compacting = threading.Lock()
        self._process = os.getpid()
        self._appender: Appender | None = None

    @cached_property
    def folder(self) -> Path:
        """Where the partition lies."""
        return Path(self._place)

    def view(self) -> View:
        """Return the index as it is now, also while an append is under way."""
        view = self._index.view()
        if (view.begin, view.compacted) != self._cut:
            self._cut = view.begin, view.compacted
            self._maps.drop(self.folder)
        return view

    def data(self, entry: Entry) -> tuple[pa.Buffer, str]:
        """Return the mapped segment of an entry, and its path."""
        path = self.folder / segment_name(entry.segment, entry.nonce)
        try:
            return self._maps.get(path, entry.position + entry.length), str(path)
        except CorruptDataError:
            view = self.view()
            if entry.first_offset < view.begin:
                raise self.gone(entry.first_offset) from None
            at = view.locate(entry.first_offset)
            if path.exists() or (at < len(view.nexts) and view.entry(at) == entry):
                raise
            raise SegmentReplacedError from None

    def gone(self, offset: int) -> OffsetGoneError:
        """Return the error for an offset below the oldest one that is kept."""
        name, partition = self.folder.parent.name, self._index.partition
        return offset_gone(name, partition, offset, self.view().begin)

    def append(self, chunks: Sequence[Bytes], draft: Draft) -> Appended:
        """Append frames in one step."""
        settings = self._settings.current()
        with self._opened() as appender:
            return appender.append(chunks, draft, settings)

    def adopt(self, path: Path, data: pa.Buffer, draft: Draft) -> Appended:
        """Append a whole file in one step, by a second name for it."""
        settings = self._settings.current()
        with self._opened() as appender:
            return appender.adopt(path, data, draft, settings)

    def trim(self, before_offset: int | None) -> int:
        """Drop whole segments below an offset, or those that the settings let go."""
        settings = self._settings.current()
        with self._opened() as appender:
            return appender.trim(before_offset, settings)

    def compact(self, order: Order, limit: Callable[[View], int], holds: HoldStore) -> Compacted:
        """Keep of the rows up to an offset only the last one of each key, in one step."""
        self._check_process()
        place = self.folder, self._index.partition
        with (
            self._compacting,  # others of this process are waited for without a deadline
            Compactor(self, *place, self._parts, order.wait_s) as compactor,
        ):
            draft = compactor.draft(order, limit)
            if not draft.entries:
                return draft.outcome
            with holds.locked():
                if limit(draft.view) < draft.outcome.upto:
                    raise changed_meanwhile(self.folder.parent.name)
                with self._opened() as appender:
                    appender.replace(draft)
        return draft.outcome

    def flush(self) -> None:
        """Sync what is due; the next append tells of a failure."""
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
            return False  # kept, so that the next append to this partition tells of it
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
    def _opened(self) -> Iterator[Appender]:
        self._check_process()
        with self._lock:
            self._open_logs.touch(self)
            if self._appender is None:
                self._appender = Appender(self._index, self._parts)
            yield self._appender
