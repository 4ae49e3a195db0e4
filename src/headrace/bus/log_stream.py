"""A stream whose partitions are logs: what an append or a read means, for every such bus.

Readers wait for appends by ``AppendNotifier``. Within a process an append notifies. For other
processes the kernel says (inotify) that an index file has grown: 0.04 ms after the write, where
``watchfiles`` takes 1.8 ms. Where the kernel cannot, waiters look again from time to time.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from headrace.bus.bus import Stream
from headrace.bus.compaction import StreamCompactor
from headrace.bus.index_table import NO_PRODUCER, NO_TIME, IndexView
from headrace.bus.log import (
    BusContext,
    CompactionRequest,
    Log,
    PendingAppend,
    ReadRequest,
    SegmentReplacedError,
    first_at,
    first_larger,
    limited,
    limited_rows,
    offset_gone,
    read_range,
    summarize_file,
)
from headrace.bus.spec import (
    Appended,
    AppendedUpTo,
    Compacted,
    Fence,
    OffsetBatch,
    Producer,
    SchemaVersion,
    SchemaVersions,
    Stored,
    StreamSpec,
    changes_to,
)
from headrace.bus.stream_stores import CompactionPinStore, SettingsStore, StreamSettings
from headrace.clock import Deadline
from headrace.errors import ClosedError, InvalidInputError
from headrace.records.frame import encode_frame
from headrace.records.schema import event_times

_MODIFY, _CREATE, _MOVED_TO, _OVERFLOW = 0x2, 0x100, 0x80, 0x4000
_EVENT = struct.Struct("iIII")


class AppendNotifier:
    """Counts notifications; a reader that has seen an older count need not wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Notifications until now."""
        return self._count

    def notify(self) -> None:
        """Wake all who wait."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Return when there was a notification after the count ``seen``, or after the seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._count != seen, seconds)


class FolderWatcher:
    """Notifies of index files that grow in their folders; one thread for a bus."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._events = -1
        with contextlib.suppress(AttributeError):
            self._events = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._notifiers: dict[int, AppendNotifier] = {}
        self._stop = os.eventfd(0) if self._events >= 0 else -1
        self._thread = threading.Thread(target=self._run, name="headrace-bus-watch", daemon=True)
        if self._events >= 0:
            self._thread.start()

    def add(self, folder: Path, notifier: AppendNotifier) -> bool:
        """Call ``notifier`` from now on when an index file of the folder grows or begins.

        Returns:
            False when the kernel cannot do so.
        """
        if self._events < 0:
            return False
        mask = _MODIFY | _CREATE | _MOVED_TO
        with self._lock:
            number = self._libc.inotify_add_watch(self._events, os.fsencode(folder), mask)
            if number >= 0:
                self._notifiers[number] = notifier
        return bool(number >= 0)

    def close(self) -> None:
        """End the thread and wake all who wait."""
        if self._events >= 0:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
            os.close(self._events)
            os.close(self._stop)
            self._events = -1
        for notifier in set(self._notifiers.values()):
            notifier.notify()

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._events, select.POLLIN)
        ready.register(self._stop, select.POLLIN)
        while all(descriptor != self._stop for descriptor, _ in ready.poll()):
            for notifier in self._due(os.read(self._events, 1 << 16)):
                notifier.notify()

    def _due(self, data: bytes) -> set[AppendNotifier]:
        due: set[AppendNotifier] = set()
        at = 0
        while at < len(data):
            number, mask, _, size = _EVENT.unpack_from(data, at)
            at += _EVENT.size + size
            with self._lock:
                if mask & _OVERFLOW:
                    return set(self._notifiers.values())
                if data.startswith(b"index-", at - size) and number in self._notifiers:
                    due.add(self._notifiers[number])
        return due


MAX_SEQUENCE = 2**63 - 1


class LogStream(Stream):
    """A stream over one log for each partition; its ``spec`` says how many there are now.

    Args:
        spec: what the stream was created as.
        identity: that no other stream ever has.
        make_log: makes the log of a partition.
        parts: settings, time and files.
        settings: where the stream's own settings are kept.
        holds: where readers of a compacted stream say what they still need.
    """

    recheck_s = 1.0

    def __init__(
        self,
        spec: StreamSpec,
        identity: str,
        make_log: Callable[[int], Log],
        parts: BusContext,
        settings: SettingsStore,
        holds: CompactionPinStore,
    ) -> None:
        self.spec = self.created = spec
        self.identity = identity
        self._make_log = make_log
        self._logs: list[Log | None] = []
        self._making = threading.Lock()
        self._known: StreamSettings | None = None
        self._growing = threading.Lock()
        self._parts = parts
        self._settings = settings
        self._holds = holds
        self._compactions = StreamCompactor(self._log, self._order, holds, parts.settings)
        self.schemas = SchemaVersions(spec.name, spec.schema, lambda: self.settings)
        self._appends = AppendNotifier()
        self._turns = itertools.count()
        self._is_listening = self._is_closed = False
        self._has_upkeep = spec.compact
        self._grow(settings.current())

    def append(
        self,
        partition: int,
        batch: pa.RecordBatch | pa.Table,
        *,
        producer: Producer | None = None,
        sequence: int | None = None,
        fence: Fence | None = None,
    ) -> Appended:
        """Append a batch in one step; see ``Stream.append``."""
        log = self._log(partition)
        name, number = _stamp(producer, sequence)
        try:
            rows, version = self.schemas.fitted(batch)
            if not rows.num_rows:
                end = log.view().next_offset
                return Appended(end, end, False)
            self._check_size(rows)
            first, last = self._times(rows)
        except InvalidInputError as error:
            error.fields.update(stream=self.spec.name, partition=partition)
            raise
        draft = PendingAppend(
            rows.num_rows, first, last, name, number, fence, _job_of(producer, fence)
        )
        appended = log.append(encode_frame(rows, version), draft)
        self._appends.notify()
        if self._has_upkeep:
            self._note(partition, rows.nbytes)
        return appended

    def append_file(
        self,
        partition: int,
        path: Path,
        ranges: Sequence[tuple[int, int]] | None = None,
        *,
        producer: Producer | None = None,
        sequence: int | None = None,
        fence: Fence | None = None,
    ) -> Appended:
        """Append frames that are on disk already; see ``Stream.append_file``."""
        log = self._log(partition)
        name, number = _stamp(producer, sequence)
        try:
            data = self._parts.files.map(path) if path.stat().st_size else pa.py_buffer(b"")
        except FileNotFoundError as error:
            raise InvalidInputError(f"no file {path} to append", stream=self.spec.name) from error
        parts = [(0, data.size)] if ranges is None else [r for r in ranges if r[0] != r[1]]
        found = summarize_file(data, parts, self.spec, self.schemas, str(path))
        if not found.rows:
            end = log.view().next_offset
            return Appended(end, end, False)
        draft = PendingAppend(*found, name, number, fence, _job_of(producer, fence))
        if parts == [(0, data.size)] and data.size >= self._parts.settings.adopt_bytes:
            appended = log.adopt(path, data, draft)
        else:
            appended = log.append([data[begin:end] for begin, end in parts], draft)
        self._appends.notify()
        if self._has_upkeep:
            self._note(partition, sum(end - begin for begin, end in parts))
        return appended

    @property
    def settings(self) -> StreamSettings:
        """What may be changed of the stream; see ``Stream.settings``."""
        if self._is_closed:
            self._check_open()
        settings = self._settings.current()
        if settings is not self._known:
            with self._growing:
                self._grow(settings)
        return settings

    def _grow(self, settings: StreamSettings) -> None:
        total = max(settings.counts(self.created.partitions))
        added = range(len(self._logs), total)
        self._logs.extend(None for _ in added)
        self.schemas.follow(settings.columns)
        if total != self.created.partitions or self.schemas.newest.number:
            self.spec = replace(
                self.created,
                partitions=total,
                schema=self.schemas.newest.schema,
                added=tuple(self.schemas.defaults.items()),
            )
        self._known = settings
        if self._is_listening:
            self._listen_to([self._made(partition) for partition in added])

    def configure(self, *, fence: Fence | None = None, **changes: Any) -> StreamSettings:
        """Change settings of the stream; see ``Stream.configure``."""
        while True:
            self._check_there()
            before = self.settings
            try:
                after = before.changed(changes)
                self._check_partitions(before, after)
            except InvalidInputError as error:
                error.fields.update(stream=self.spec.name)
                raise
            self._parts.fences.check(fence)  # of what was read: nothing newer is built on
            self._prepare(max(after.counts(self.created.partitions)))
            if after == before or self._settings.publish(before, after):
                return self.settings

    def _check_partitions(self, before: StreamSettings, after: StreamSettings) -> None:
        created = self.created.partitions
        found, wanted = (settings.counts(created)[0] for settings in (before, after))
        if self.spec.key and found != wanted:
            raise InvalidInputError(
                f"stream {self.spec.name!r} places rows by its key {list(self.spec.key)} in "
                f"{found} partitions; with {wanted} the next rows of a key would go to another "
                "partition, and be read before earlier ones. Create a stream with as many, and "
                "swap an alias to it"
            )

    def evolve(
        self,
        schema: pa.Schema,
        defaults: Mapping[str, Any] | None = None,
        *,
        fence: Fence | None = None,
    ) -> StreamSpec:
        """Add columns to the stream, or make some wider; see ``Stream.evolve``."""
        while True:
            self._check_there()
            before = self.settings
            changes = changes_to(self.spec, schema, defaults or {})
            after = replace(before, columns=(*before.columns, *changes))
            self._parts.fences.check(fence)
            if not changes or self._settings.publish(before, after):
                _ = self.settings
                return self.spec

    def _prepare(self, partitions: int) -> None:
        """Make room for partitions, before the settings name them."""

    def trim(
        self, partition: int, before_offset: int | None = None, *, fence: Fence | None = None
    ) -> int:
        """Drop old rows, whole segments at a time; see ``Stream.trim``."""
        log = self._log(partition)
        view = log.view()
        if before_offset is not None and not 0 <= before_offset <= view.next_offset:
            raise InvalidInputError(
                f"cannot trim before offset {before_offset}; expected 0 to {view.next_offset}",
                stream=self.spec.name,
                partition=partition,
            )
        if view.next_offset == view.begin:
            self._parts.fences.check(fence)
            return view.begin
        return log.trim(before_offset, fence)

    def compact(self, partition: int) -> Compacted:
        """Keep of each key only the last row; see ``Stream.compact``."""
        self._log(partition)
        self._check_there()
        if not self.spec.compact:
            raise InvalidInputError(
                f"stream {self.spec.name!r} is not compacted: rows that others follow would be "
                "gone; create one with compact=True, and append to that",
                stream=self.spec.name,
            )
        return self._compactions.compact(partition)

    def _order(self) -> CompactionRequest:
        settings, now_ms = self.settings, self._parts.clock.now_ms()
        size = self._parts.settings.segment_bytes
        return CompactionRequest(
            self.spec, self.schemas, settings, now_ms, size, lambda: self._is_closed
        )

    def _note(self, partition: int, size: int) -> None:
        """Compact a partition once enough was appended to it, where the stream is compacted."""
        if self.spec.compact and self._compactions.note(partition, size):
            self._run_soon(partial(self._compactions.compact_if_due, partition))

    def _run_soon(self, work: Callable[[], None]) -> None:
        """Do what no caller has to wait for, now or in the background."""
        work()

    def compacted(self) -> list[int]:
        """Return up to where each partition is compacted; see ``Stream.compacted``."""
        return [max(view.begin, view.compacted) for view in self._views()]

    def stored(self) -> list[Stored]:
        """Return what each partition holds; see ``Stream.stored``."""
        return [Stored(*view.stored) for view in self._views()]

    def hold(self, reader: str, offsets: Sequence[int], *, fence: Fence | None = None) -> None:
        """Keep what a reader still needs from compactions; see ``Stream.hold``."""
        self._check_there()
        if self.spec.compact:
            self._holds.set(reader, offsets, fence)

    def release(self, reader: str, *, fence: Fence | None = None) -> None:
        """Forget what a reader holds; see ``Stream.release``."""
        self._check_there()
        if self.spec.compact:
            self._holds.release(reader, fence)

    def holds(self) -> dict[str, tuple[int, ...]]:
        """Return what readers hold; see ``Stream.holds``."""
        self._check_there()
        found: dict[str, tuple[int, ...]] = {}
        for hold in self._holds.all():
            others = found.get(hold.reader, hold.offsets)
            found[hold.reader] = tuple(map(min, zip(hold.offsets, others, strict=False)))
        return found

    def _views(self) -> list[IndexView]:
        return [log.view() for log in self._partitions()]

    def begins(self) -> list[int]:
        """Return the first readable offset of each partition."""
        return [log.view().begin for log in self._partitions()]

    def ends(self) -> list[int]:
        """Return the next offset of each partition."""
        return [log.view().next_offset for log in self._partitions()]

    def as_of(self, producer: Producer, sequence: int) -> list[AppendedUpTo]:
        """Return how far each partition goes as of a sequence of a producer."""
        return [log.as_of(producer.digest(), sequence) for log in self._partitions()]

    def read(
        self,
        partition: int,
        start: int,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[OffsetBatch]:
        """Yield the rows of [start, stop) in order; see ``Stream.read``."""
        log = self._log(partition)
        _ = self.settings  # which columns there are by now
        view = log.view()
        end = view.next_offset if stop is None else stop
        if 0 <= start < view.begin:
            raise offset_gone(self.spec.name, partition, start, view.begin)
        if not view.begin <= start <= end <= view.next_offset:
            raise InvalidInputError(
                f"cannot read offsets {start} to {end}; expected a range within {view.begin} to "
                f"{view.next_offset}",
                stream=self.spec.name,
                partition=partition,
            )
        if max_rows is not None and not self.spec.compact:
            end = min(end, start + max_rows)
        version = self.schemas.newest
        wanted = ReadRequest(start, end, version, self._indices(columns, version))
        found = read_range(log, view, self.schemas, wanted)
        if max_rows is not None and self.spec.compact:
            found = limited_rows(found, max_rows)
        return found if max_bytes is None else limited(found, max_bytes)

    def offset_at(self, partition: int, time_ms: int) -> int:
        """Return where to start reading from an event time on; see ``Stream.offset_at``."""
        log = self._log(partition)
        if self.spec.time is None:
            raise InvalidInputError(
                f"stream {self.spec.name!r} has no event-time column; read it by offset",
                stream=self.spec.name,
            )
        while True:
            view = log.view()
            with contextlib.suppress(SegmentReplacedError):
                entry = view.first_late(time_ms)
                if entry is None:
                    return view.next_offset
                return first_at(log, entry, self.spec, self.schemas, time_ms)

    def time_range(self, partition: int) -> tuple[int, int] | None:
        """Return the lowest and highest event time in ms; ``None`` if there is none."""
        log = self._log(partition)
        while self.spec.time is not None:
            with contextlib.suppress(SegmentReplacedError):
                return log.view().time_range()
        return None

    def wait(self, ends: Sequence[int], timeout_s: float) -> list[int]:
        """Return the ends as soon as one is beyond the one given, or at the timeout."""
        return self.wait_unless(ends, timeout_s, lambda: False)

    def wake(self) -> None:
        """Wake waiting readers, as an append does."""
        self._appends.notify()

    def wait_unless(
        self, ends: Sequence[int], timeout_s: float, is_over: Callable[[], bool]
    ) -> list[int]:
        """Return the ends as ``wait`` does, or once ``is_over``, asked at each notification."""
        if len(ends) > len(self._partitions()):
            raise InvalidInputError(
                f"found {len(ends)} ends to wait for, expected at most {len(self._logs)}",
                stream=self.spec.name,
            )
        deadline = Deadline(self._parts.clock, timeout_s)
        with self._growing:
            if not self._is_listening:
                self._listen_to([self._made(partition) for partition in range(len(self._logs))])
                self._is_listening = True
        while True:
            seen, expired = self._appends.count, deadline.expired
            now = self._ends_in_wait(seen, expired)
            given = [*ends, *[0] * (len(now) - len(ends))]
            beyond = any(found > known for found, known in zip(now, given, strict=True))
            if beyond or is_over() or expired:
                return now
            self._appends.wait(seen, deadline.remaining(self.recheck_s))

    def _ends_in_wait(self, appends: int, is_last: bool) -> list[int]:
        """Return the ends for who waits, after so many appends of this process."""
        return self.ends()

    def close(self) -> None:
        """Refuse all further calls, and wake those who wait."""
        self._is_closed = True
        self._appends.notify()

    def _listen_to(self, logs: Sequence[Log]) -> None:
        """Wake waiting readers at appends of other processes too."""

    def _targets(self, producer: Producer | None, sequence: int | None) -> int:
        counts = self.settings.counts(self.created.partitions)
        if len(counts) == 1 or producer is None or sequence is None:
            return counts[0]
        for count in counts[1:]:
            if self._made(sequence % count).knows(producer.digest(), sequence):
                return count
        return counts[0]

    def _partitions(self) -> list[Log]:
        """The logs of all partitions that there are by now."""
        _ = self.settings
        return [log or self._made(partition) for partition, log in enumerate(self._logs)]

    def _made(self, partition: int) -> Log:
        """Return the log of a partition, made by the first who asks: some have 27,000."""
        log = self._logs[partition]
        if log is None:
            with self._making:
                log = self._logs[partition] or self._make_log(partition)
                self._logs[partition] = log
        return log

    def _next_turn(self) -> int:
        return next(self._turns)

    def _log(self, partition: int) -> Log:
        if self._is_closed:
            self._check_open()
        if 0 <= partition < len(self._logs) and (log := self._logs[partition]) is not None:
            return log
        if partition >= len(self._logs):
            self._partitions()
        if not 0 <= partition < len(self._logs):
            raise InvalidInputError(
                f"stream {self.spec.name!r} has no partition {partition}; expected 0 to "
                f"{len(self._logs) - 1}",
                stream=self.spec.name,
            )
        return self._made(partition)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"stream {self.spec.name!r} is closed", stream=self.spec.name)

    @property
    def is_there(self) -> bool:
        """Say whether it was not removed."""
        return not self._is_closed

    def _check_there(self) -> None:
        """Make sure that the stream was neither closed nor removed."""
        self._check_open()

    def _check_size(self, rows: pa.RecordBatch) -> None:
        size, limit = rows.nbytes, self._parts.settings.batch_bytes
        if size > limit:
            raise InvalidInputError(
                f"a batch of {rows.num_rows} rows has {size} bytes; expected at most {limit}, the "
                "setting bus.batch_bytes; append it in parts, or raise the setting"
            )
        limit = self._parts.settings.record_bytes
        row = None if size <= limit else first_larger(rows, limit)
        if row is not None:
            raise InvalidInputError(
                f"the record in row {row} of the batch has {rows.slice(row, 1).nbytes} bytes; "
                f"expected at most {limit}, the setting bus.record_bytes; keep large values in "
                "files and append their names, or raise the setting"
            )

    def _times(self, rows: pa.RecordBatch) -> tuple[int, int]:
        if self.spec.time is None:
            return NO_TIME, NO_TIME
        times = event_times(rows.column(self.spec.time), f"stream {self.spec.name!r}")
        return int(times.min()), int(times.max())

    def _fitted(self, batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        try:
            return self.schemas.fitted(batch)[0]
        except InvalidInputError as error:
            error.fields.update(stream=self.spec.name)
            raise

    def _indices(self, columns: Sequence[str] | None, version: SchemaVersion) -> list[int] | None:
        if columns is None:
            return None
        names = version.schema.names
        unknown = [name for name in columns if name not in names]
        if unknown:
            raise InvalidInputError(
                f"stream {self.spec.name!r} has no columns {unknown}; found {names}",
                stream=self.spec.name,
            )
        return [names.index(name) for name in columns]


def _job_of(producer: Producer | None, fence: Fence | None) -> int:
    """Return what stands for a job where its own producer appends, else 0."""
    is_own = fence is not None and producer is not None and producer.is_of(fence)
    return (xxh3_64_intdigest(fence.job.encode()) >> 1 or 1) if fence is not None and is_own else 0


def _stamp(producer: Producer | None, sequence: int | None) -> tuple[bytes, int]:
    if producer is None and sequence is None:
        return NO_PRODUCER, 0
    if producer is None or sequence is None or not 0 <= sequence <= MAX_SEQUENCE:
        raise InvalidInputError(
            f"found producer {producer} and sequence {sequence}; expected both, the sequence "
            "from 0 on, or neither"
        )
    return producer.digest(), sequence
