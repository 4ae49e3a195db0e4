"""Compaction of a partition: the latest row of each key stays, below what readers have pinned.

``Compaction`` decides what is kept and gives entries that stay and rows that need a place;
``CompactionWriter`` writes those into segments under hidden names, until the index names them
(``memory`` keeps them in memory). One at a time for each partition, beside its appenders: only the
last step, ``Appender.replace``, needs their lock. ``StreamCompactor`` says when one is due.
Keys are known by 128 bits of hash.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.bus.index_table import COMPACTED, NO_TIME, Bools, Entry, IndexView
from headrace.bus.log import (
    NOT_DELETED,
    CompactionRequest,
    FrameLocation,
    Log,
    OffsetGoneError,
    ReadRequest,
    RowOffsets,
    SegmentReplacedError,
    deletes_of,
    encode_compacted,
    new_nonce,
    read_compacted,
    read_entry,
    segment_first,
    segment_name,
)
from headrace.bus.options import BusOptions, Fsync
from headrace.bus.spec import Compacted
from headrace.bus.stream_stores import CompactionPinStore, StreamSettings
from headrace.clock import Deadline
from headrace.errors import UnavailableError
from headrace.faults import fault
from headrace.files import PAUSE_MOST_S, Bytes, Files, take_lock
from headrace.records.keys import encode_columns
from headrace.records.schema import event_times
from headrace.records.xxh64 import UInt64s

_CHECK_SEED = 0x48454144


class SeenKeys:
    """Says which rows are the last of their key, given batches from the newest to the oldest.

    A key is known by two hashes. Runs of them, sorted by the first one, are merged as they
    double; of two keys with the same first hash one is in a run, the other in a set.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[UInt64s, UInt64s]] = []
        self._others: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        """Return how many keys there are."""
        return sum(len(hashes) for hashes, _ in self._runs) + len(self._others)

    def take(self, columns: Sequence[pa.Array]) -> Bools:
        """Return which rows of the next older batch are the last of their key; shape (n,).

        Args:
            columns: of the key; each of shape (n,).
        """
        return self.take_hashes(*_hashes(columns))

    def take_hashes(self, hashes: UInt64s, checks: UInt64s) -> Bools:
        """Return the same for keys that are given by their two hashes; each of shape (n,)."""
        count = len(hashes)
        if not count:
            return np.zeros(0, bool)
        # Rows by hash, and of one hash the last row first.
        places = count - 1 - np.argsort(hashes[::-1], kind="stable")
        hashes, checks = hashes[places], checks[places]
        is_first = np.ones(count, bool)
        is_first[1:] = hashes[1:] != hashes[:-1]
        last_of_hash = np.maximum.accumulate(np.where(is_first, np.arange(count), 0))
        is_other = checks != checks[last_of_hash]
        is_gone = ~is_first & ~is_other
        for known, known_checks in self._runs:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            is_there, is_same = known[at] == hashes, known_checks[at] == checks
            is_gone |= is_there & is_same
            is_other |= is_there & ~is_same
        for row in np.flatnonzero(is_other & ~is_gone).tolist():
            pair = int(hashes[row]), int(checks[row])
            is_gone[row] = pair in self._others
            self._others.add(pair)
        is_new = is_first & ~is_gone & ~is_other
        self._add(hashes[is_new], checks[is_new])
        keep = np.empty(count, bool)
        keep[places] = ~is_gone
        return keep

    def _add(self, hashes: UInt64s, checks: UInt64s) -> None:
        while self._runs and len(self._runs[-1][0]) <= 2 * len(hashes):
            known, known_checks = self._runs.pop()
            hashes, checks = np.concatenate([known, hashes]), np.concatenate([known_checks, checks])
            order = np.argsort(hashes, kind="stable")
            hashes, checks = hashes[order], checks[order]
        if len(hashes):
            self._runs.append((hashes, checks))


def _hashes(columns: Sequence[pa.Array]) -> tuple[UInt64s, UInt64s]:
    keys = encode_columns(columns)
    return keys.hashes(), keys.hashes(_CHECK_SEED)


PIECE_BYTES = 8 << 20
_PARTS_OF_A_LIFE = 8


class CompactionStoppedError(UnavailableError):
    """The bus was closed, or another process changed the partition meanwhile. Try again."""

    code = "HR209"
    move = "compact again; nothing was changed"


class CompactedRows(NamedTuple):
    """Compacted rows that have no place yet."""

    first_offset: int
    next_offset: int
    rows: int
    min_time: int
    max_time: int
    appended_ms: int
    chunks: list[Bytes]

    @property
    def size(self) -> int:
        """The bytes of its frames."""
        return sum(memoryview(chunk).nbytes for chunk in self.chunks)

    def entry(self, partition: int, place: FrameLocation) -> Entry:
        """Return the index entry of the piece at its place."""
        return Entry(
            kind=COMPACTED,
            flags=0,
            first_offset=self.first_offset,
            rows=self.rows,
            segment=place.segment,
            nonce=place.nonce,
            partition=partition,
            position=place.position,
            length=place.length,
            min_time=self.min_time,
            max_time=self.max_time,
            appended_ms=self.appended_ms,
            span=self.next_offset - self.first_offset,
        )


def compaction_limit(view: IndexView, settings: StreamSettings, held: int, now_ms: int) -> int:
    """Return up to where a partition may be compacted: whole appends, below all holds.

    Args:
        view: of the partition.
        settings: of the stream.
        held: the lowest offset that a reader holds.
        now_ms: for the age of appends.
    """
    limit = min(view.next_offset, held)
    if settings.compact_after_ms is not None:
        for entries in view.blocks(stop=limit):
            young = np.flatnonzero(entries["appended_ms"] > now_ms - settings.compact_after_ms)
            if len(young):
                limit = min(limit, int(entries["first_offset"][young[0]]))
                break
    if limit >= view.next_offset:
        return view.next_offset
    entry = view.at(limit)
    return view.begin if entry is None else max(view.begin, entry.first_offset)


def is_compaction_due(view: IndexView, upto: Callable[[], int], least_bytes: int) -> bool:
    """Say whether enough was appended below an offset that a compaction is worth its work.

    Args:
        view: of the partition.
        upto: finds the offset; not asked where there is too little whatever it is.
        least_bytes: how much is enough where less is compacted.
    """
    clean = sum(int(block["length"].sum()) for block in view.blocks(stop=view.compacted))
    needed = max(clean, least_bytes)
    if view.stored[1] - clean < needed:
        return False
    fresh = (int(block["length"].sum()) for block in view.blocks(view.compacted, upto()))
    return sum(fresh) >= needed


def starts_segment(first_ms: int, now_ms: int, settings: StreamSettings) -> bool:
    """Say whether rows are so much younger than a segment's first that they begin another."""
    if settings.retain_ms is None:
        return False
    return (now_ms - first_ms) * _PARTS_OF_A_LIFE >= settings.retain_ms


def _is_same(first: Entry, second: Entry) -> bool:
    return (first.segment, first.nonce) == (second.segment, second.nonce)


class Compaction:
    """One compaction of a partition, from its beginning up to an offset.

    Args:
        log: of the partition.
        view: its index; nothing below ``upto`` changes meanwhile but by a trim.
        upto: at which an append begins, or the end.
        order: what is wanted.
    """

    def __init__(self, log: Log, view: IndexView, upto: int, order: CompactionRequest) -> None:
        self._log, self._order = log, order
        # Looked for after the view was taken: no row of that is of a newer schema.
        self._spec, self._version = order.spec, order.schemas.looked()
        self.upto = upto
        self.entries = list(view.between(view.begin, upto))
        defaults = order.schemas.defaults
        added = {name for name, value in defaults.items() if value is not None}
        held = {*self._spec.key, self._spec.time, *added}
        values = [name for name in self._version.schema.names if name not in held]
        # Without values when it was created no row deletes: older ones lack what was added.
        self._values = [] if held.issuperset(order.schemas.all[0].names) else values
        self._cover = view.begin
        self._parts: list[tuple[RowOffsets, pa.RecordBatch]] = []
        self._bytes = self._appended_ms = self._first_ms = 0

    def outcome(self, entries: Sequence[Entry]) -> Compacted:
        """Sum up what the entries change that stand for those of before; none: nothing."""
        old, kept = self.entries, entries or self.entries
        return Compacted(
            self.upto,
            sum(entry.rows for entry in old),
            sum(entry.rows for entry in kept),
            sum(entry.length for entry in old),
            sum(entry.length for entry in kept),
        )

    def results(self) -> Iterator[Entry | CompactedRows]:
        """Yield what stands for the partition up to ``upto``, in order of offsets.

        Nothing is yielded where nothing would change.
        """
        masks = self._masks()
        is_clean = all(entry.kind == COMPACTED for entry in self.entries)
        if is_clean and sum(int(mask.sum()) for mask in masks) == sum(e.rows for e in self.entries):
            return
        at = 0
        while at < len(self.entries):
            end = at + 1
            while end < len(self.entries) and _is_same(self.entries[end], self.entries[at]):
                end += 1
            segment, kept = self.entries[at:end], masks[at:end]
            if self._stays(segment, kept):
                yield from self._flush(segment[0].first_offset)
                yield from segment
                self._cover = segment[-1].next_offset
            else:
                for entry, mask in zip(segment, kept, strict=True):
                    yield from self._rewrite(entry, mask)
            at = end
        yield from self._flush(self.upto)

    def _stays(self, segment: list[Entry], masks: list[Bools]) -> bool:
        """A segment from which nothing goes stays, unless it is so small that it is joined."""
        if any(entry.kind != COMPACTED for entry in segment) or not all(m.all() for m in masks):
            return False
        return 2 * sum(entry.length for entry in segment) >= self._order.segment_bytes

    def _masks(self) -> list[Bools]:
        """Which rows of each entry stay, found from the newest to the oldest."""
        seen, masks = SeenKeys(), []
        expired_ms = self._order.now_ms - self._order.settings.keep_deletes_ms
        for entry in reversed(self.entries):
            self._check_stopped()
            parts = list(self._read(entry, self._spec.key))
            columns = [
                pa.concat_arrays([batch.column(at) for _, batch in parts])
                for at in range(len(self._spec.key))
                if parts
            ]
            mask = seen.take(columns) if entry.rows else np.zeros(0, bool)
            deleted = parts[0][0].deleted_ms if parts else None
            if deleted is not None:
                mask &= (deleted == NOT_DELETED) | (deleted > expired_ms)
            masks.append(mask)
        return masks[::-1]

    def _read(
        self, entry: Entry, columns: tuple[str, ...] | None
    ) -> Iterator[tuple[RowOffsets, pa.RecordBatch]]:
        if not entry.rows:
            return
        names = self._version.schema.names
        chosen = None if columns is None else [names.index(name) for name in columns]
        wanted = ReadRequest(entry.first_offset, entry.next_offset, self._version, chosen)
        deleted = None
        if entry.kind == COMPACTED:
            data, origin = self._log.data(entry)
            deleted = read_compacted(data, entry, origin)[0].deleted_ms
        for found in read_entry(self._log, entry, self._order.schemas, wanted):
            yield RowOffsets(found.offsets, deleted), found.batch

    def _rewrite(self, entry: Entry, mask: Bools) -> Iterator[CompactedRows]:
        if self._parts and starts_segment(self._first_ms, entry.appended_ms, self._order.settings):
            yield from self._flush(entry.first_offset)
        done = 0
        for places, batch in self._read(entry, None) if mask.any() else ():
            self._check_stopped()
            keep = mask[done : done + batch.num_rows]
            done += batch.num_rows
            self._take(entry, places, batch, keep)
            if self._bytes >= PIECE_BYTES:
                yield from self._flush(int(places.offsets[-1]) + 1)

    def _take(self, entry: Entry, places: RowOffsets, batch: pa.RecordBatch, keep: Bools) -> None:
        if not keep.any():
            return
        if not self._parts:
            self._first_ms = entry.appended_ms
        deleted = self._deletes(places, batch)
        if not keep.all():
            batch = batch.filter(pa.array(keep))
        kept = RowOffsets(places.offsets[keep], deleted[keep])
        self._parts.append((kept, batch))
        self._bytes += batch.nbytes
        self._appended_ms = max(self._appended_ms, entry.appended_ms)

    def _deletes(self, places: RowOffsets, batch: pa.RecordBatch) -> np.ndarray:
        if places.deleted_ms is not None:
            return places.deleted_ms
        is_dead = deletes_of(batch, self._values)
        return np.where(is_dead, self._order.now_ms, NOT_DELETED)

    def _flush(self, upto: int) -> Iterator[CompactedRows]:
        """Yield the rows that wait as a piece that stands for all offsets up to one."""
        if upto == self._cover:
            return
        first, parts = self._cover, self._parts
        first_time = last_time = NO_TIME
        rows, chunks = 0, list[Bytes]()
        if parts:
            batch = pa.concat_batches([batch for _, batch in parts])
            offsets = np.concatenate([places.offsets for places, _ in parts])
            deleted = np.concatenate([places.deleted_ms for places, _ in parts])
            has_deletes = bool((deleted != NOT_DELETED).any())
            places = RowOffsets(offsets, deleted if has_deletes else None)
            rows, chunks = batch.num_rows, encode_compacted(places, batch, self._version.number)
            if self._spec.time is not None:
                found = event_times(batch.column(self._spec.time), self._spec.name)
                first_time, last_time = int(found.min()), int(found.max())
        yield CompactedRows(first, upto, rows, first_time, last_time, self._appended_ms, chunks)
        self._cover, self._parts = upto, []
        self._bytes = self._appended_ms = self._first_ms = 0

    def _check_stopped(self) -> None:
        if self._order.stopped():
            raise CompactionStoppedError(
                f"the compaction of stream {self._spec.name!r} was ended with the bus; nothing of "
                "it counts, compact again",
                stream=self._spec.name,
            )


class StreamCompactor:
    """Compacts the partitions of one stream. Safe for many threads.

    Args:
        log: returns the log of a partition.
        order: returns what a compaction is to do, by the settings of now.
        holds: of the stream's readers.
        options: of the bus.
    """

    def __init__(
        self,
        log: Callable[[int], Log],
        order: Callable[[], CompactionRequest],
        holds: CompactionPinStore,
        options: BusOptions,
    ) -> None:
        self._log, self._order = log, order
        self._holds, self._options = holds, options
        self._uncompacted: dict[int, int] = {}

    def compact(self, partition: int) -> Compacted:
        """Compact a partition as far as may be, after any compaction that is under way."""
        order = self._order()._replace(wait_s=self._options.lock_timeout_s)
        return self._log(partition).compact(order, partial(self._limit, partition, order))

    def note(self, partition: int, size: int) -> bool:
        """Count bytes that were appended; says whether a compaction may be due by now.

        The first append of a process always says so, for nobody knows what came before.
        """
        least = self._options.compact_bytes
        noted = self._uncompacted.get(partition, least) + size
        self._uncompacted[partition] = noted if noted < least else 0
        return noted >= least

    def compact_if_due(self, partition: int) -> None:
        """Compact all but the segment that is written if enough is new."""
        order, log = self._order(), self._log(partition)
        limit = partial(self._closed_limit, partition, order)
        view = log.view()
        with contextlib.suppress(CompactionStoppedError, SegmentReplacedError):  # another does it
            if is_compaction_due(view, partial(limit, view), self._options.compact_bytes):
                log.compact(order, limit)

    def _limit(self, partition: int, order: CompactionRequest, view: IndexView) -> int:
        held = self._holds.lowest(partition, order.now_ms, order.settings.hold_ms)
        return compaction_limit(view, order.settings, held, order.now_ms)

    def _closed_limit(self, partition: int, order: CompactionRequest, view: IndexView) -> int:
        newest = view.at(view.next_offset - 1)
        last = view.begin if newest is None else segment_first(view, newest)
        return min(last, self._limit(partition, order, view))


_PREFIX = ".compact-"
_LOCK = "compact.lock"


class _Segment:
    """A segment that is being written, with all pieces behind each other."""

    def __init__(self, path: Path, number: int, nonce: int, first_ms: int, files: Files) -> None:
        self.path, self.number, self.nonce = path, number, nonce
        self.first_ms = first_ms
        self.size, self.is_open = 0, True
        self._files = files
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)

    def add(self, piece: CompactedRows, partition: int) -> Entry:
        place = FrameLocation(self.number, self.nonce, self.size, piece.size)
        self._files.append(self._descriptor, piece.chunks)
        self.size += piece.size
        return piece.entry(partition, place)

    def close(self, *, durable: bool) -> None:
        self.is_open = False
        try:
            if durable:
                self._files.sync_file(self._descriptor)
        finally:
            os.close(self._descriptor)


class WrittenCompaction(NamedTuple):
    """A compaction that is written and does not count yet.

    ``entries`` stand for everything below the offset up to which it goes, empty where nothing
    would change; ``files`` are the new segments, as they are called and as they are to be.
    """

    view: IndexView
    entries: list[Entry]
    files: list[tuple[Path, Path]]
    outcome: Compacted


def changed_meanwhile(stream: str) -> CompactionStoppedError:
    """Return the error of a compaction that came too late."""
    return CompactionStoppedError(
        f"while stream {stream!r} was compacted it was trimmed, or compacted by others, or a "
        "reader began to hold it; nothing was changed, compact again",
        stream=stream,
    )


class CompactionWriter:
    """Writes the segments of one compaction; a context in which no other process does.

    Args:
        log: of the partition.
        folder: its folder.
        order: what is wanted, and how long to wait for another compaction.
    """

    def __init__(self, log: Log, folder: Path, order: CompactionRequest) -> None:
        self._log, self._folder, self._order = log, folder, order
        parts = log.context
        self._settings, self._clock, self._files = parts.settings, parts.clock, parts.files
        self._lock = -1
        self._written: list[Path] = []

    def __enter__(self) -> CompactionWriter:
        """Take the lock, and remove what a compaction that died, or is frozen, has left.

        The lock only saves work: of several compactions at once the first one counts. Who has it
        touches it now and then. One that has not for ``seal_after_s`` is frozen: the next lock is
        taken.

        Raises:
            CompactionStoppedError: another process compacts the partition.
        """
        deadline = Deadline(self._clock, self._order.wait_s)
        quiet, seen, is_alive = deadline, (-1, 0), False
        while not self._take_lock():
            number, touched_ns = self._number, os.fstat(self._lock).st_mtime_ns
            os.close(self._lock)
            if seen != (number, touched_ns):
                is_alive = seen[0] == number
                seen = number, touched_ns
                quiet = Deadline(self._clock, self._settings.seal_after_s)
            if quiet.expired:
                os.close(self._open_lock(number + 1))
            elif self._order.stopped() or (is_alive and deadline.expired):
                raise CompactionStoppedError(
                    f"another process compacts {self._folder}; wait for it"
                )
            else:
                self._clock.sleep(PAUSE_MOST_S)
        for name in os.listdir(self._folder):
            if name.startswith(_PREFIX):
                self._files.remove(self._folder / name)
        return self

    def _take_lock(self) -> bool:
        names = [name for name in self._files.names(self._folder) if name.startswith(_LOCK)]
        self._number = max(0, len(names) - 1)
        self._lock = self._open_lock(self._number)
        return take_lock(self._lock, self._clock, 0)

    def _open_lock(self, number: int) -> int:
        path = self._folder / (f"{_LOCK}-{number:06d}" if number else _LOCK)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _is_stopped(self) -> bool:
        os.utime(self._lock)
        return self._order.stopped()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what was not named, and release the lock."""
        try:
            for path in self._written:
                self._files.remove(path)
        finally:
            os.close(self._lock)

    def draft(self, limit: Callable[[IndexView], int]) -> WrittenCompaction:
        """Write the segments of a compaction, durably.

        Args:
            limit: says up to which offset.

        Raises:
            CompactionStoppedError: the partition was trimmed, or compacted by others, meanwhile.
            UnavailableError: the disk failed; nothing has changed.
        """
        order = self._order._replace(stopped=self._is_stopped)
        view: IndexView | None = None
        try:
            view = self._log.view()
            compaction = Compaction(self._log, view, limit(view), order)
            entries, files = self._write(compaction, order)
        except (OffsetGoneError, SegmentReplacedError) as error:
            raise changed_meanwhile(order.spec.name) from error
        except OSError as error:
            # Others drop index files that one who stood still is about to read.
            now = None if view is None else self._log.view()
            if now and view and (now.begin, now.holder) != (view.begin, view.holder):
                raise changed_meanwhile(order.spec.name) from error
            raise UnavailableError(
                f"cannot compact {self._folder}: {error.strerror or error}; nothing was changed, "
                "try again"
            ) from error
        outcome = compaction.outcome(entries)
        return WrittenCompaction(view, entries, files, outcome)

    def _write(
        self, compaction: Compaction, order: CompactionRequest
    ) -> tuple[list[Entry], list[tuple[Path, Path]]]:
        entries: list[Entry] = []
        segments: list[_Segment] = []
        try:
            for result in compaction.results():
                if isinstance(result, Entry):
                    self._close_last(segments)
                    entries.append(result)
                elif not result.rows:
                    nowhere = FrameLocation(result.first_offset, 0, 0, 0)
                    entries.append(result.entry(self._log.partition, nowhere))
                else:
                    if not segments or self._is_over(segments[-1], result, order):
                        self._close_last(segments)
                        segments.append(self._opened(result))
                    entries.append(segments[-1].add(result, self._log.partition))
        finally:
            self._close_last(segments)
        return entries, [
            (one.path, self._folder / segment_name(one.number, one.nonce)) for one in segments
        ]

    def _is_over(self, segment: _Segment, piece: CompactedRows, order: CompactionRequest) -> bool:
        is_old = starts_segment(segment.first_ms, piece.appended_ms, order.settings)
        return is_old or segment.size >= order.segment_bytes or not segment.is_open

    def _opened(self, piece: CompactedRows) -> _Segment:
        nonce = new_nonce(self._clock)
        path = self._folder / f"{_PREFIX}{segment_name(piece.first_offset, nonce)}"
        self._written.append(path)
        return _Segment(path, piece.first_offset, nonce, piece.appended_ms, self._files)

    def _close_last(self, segments: Sequence[_Segment]) -> None:
        if segments and segments[-1].is_open:
            segments[-1].close(durable=self._settings.fsync is not Fsync.NEVER)
            fault("compact.segment_written")
