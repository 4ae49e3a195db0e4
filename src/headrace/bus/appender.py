"""The writing side of a partition of the file bus: one append, from lock to index entry."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.bus.append_file import AppendFile
from headrace.bus.compacting.compactor import CompactionDraft, changed_meanwhile
from headrace.bus.entries import (
    ADOPTED,
    APPEND,
    COMPACTED,
    END,
    HEADER,
    TRIM,
    Entries,
    Entry,
    View,
    segment_begins,
)
from headrace.bus.index_files import IndexFiles
from headrace.bus.locks import take_lock
from headrace.bus.log import Draft, Parts, Place, segment_name
from headrace.bus.options import Fsync
from headrace.bus.retention import expired, floor, is_old
from headrace.bus.settings import StreamSettings
from headrace.bus.spec import Appended
from headrace.errors import CorruptDataError, UnavailableError
from headrace.faults import fault
from headrace.files import Bytes
from headrace.records.frame import ALIGNMENT

_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}


def _segments(view: View, upto: int) -> set[tuple[int, int]]:
    """Return the segments, by number and nonce, of which nothing lies at an offset or behind."""

    def named(entries: Entries) -> set[tuple[int, int]]:
        firsts = entries[segment_begins(entries)]
        return set(zip(firsts["segment"].tolist(), firsts["nonce"].tolist(), strict=True))

    is_below = view.nexts <= upto
    return named(view.entries[is_below]) - named(view.entries[~is_below])


class Appender:
    """Open files of one partition to append to. One thread at a time.

    An append takes these steps; whoever stops between two of them leaves no more than bytes
    that no index entry names.

    1. Take the lock of the partition, against other processes.
    2. Read the index entries that others have written.
    3. Answer a duplicate, after making sure that what it repeats is durable.
    4. Write the frames at the end of the segment; sync by policy.
    5. Write the index entry, which is what makes the append visible; sync by policy.
    """

    def __init__(self, index: IndexFiles, parts: Parts) -> None:
        self.has_unsynced = False
        self._index = index
        self._settings = parts.settings
        self._clock = parts.clock
        self._files = parts.files
        self._lock = os.open(index.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        is_late = parts.settings.fsync is Fsync.INTERVAL
        self._segment_file = AppendFile(parts.files, sync_before_close=is_late)
        self._index_file = AppendFile(parts.files, sync_before_close=is_late)
        self._is_fresh = True

    def append(self, chunks: Sequence[Bytes], draft: Draft, settings: StreamSettings) -> Appended:
        """Append frames to the current segment in one step, and drop what need not be kept."""
        with self._locked():
            answer = self._duplicate(draft)
            if answer is None:
                place = self._write(chunks, settings)
                answer = self._commit(draft, place)
                self._retain(place.segment == answer.first_offset, settings)
            return answer

    def adopt(
        self, path: Path, data: pa.Buffer, draft: Draft, settings: StreamSettings
    ) -> Appended:
        """Append a whole file in one step, by a second name for it, or else by a copy."""
        with self._locked():
            answer = self._duplicate(draft)
            if answer is None:
                answer = self._commit(draft, self._link(path, data))
                self._retain(True, settings)
            return answer

    def trim(self, before_offset: int | None, settings: StreamSettings) -> int:
        """Drop whole segments below an offset, or those that the settings let go.

        Returns:
            Where the partition begins since.
        """
        with self._locked():
            view = self._index.table.view()
            if before_offset is None:
                begin = expired(view, settings, self._clock.now_ms())
            else:
                begin = floor(view, before_offset)
            self._trim(begin)
            return self._index.table.begin

    def replace(self, draft: CompactionDraft) -> None:
        """Let compacted entries stand for the beginning of the partition.

        1. Give the new segments their names. 2. Begin an index file that has the entries, and
        that repeats the last sequence of each producer; this is the moment it counts.
        3. Remove the segments that no entry names any more. 4. Remove index files. What a
        crash leaves of 1 before 2, and of 3 and 4, the next appender removes.

        Raises:
            CompactionStoppedError: the partition was trimmed meanwhile; nothing has changed.
        """
        with self._locked():
            index = self._index
            before = index.table.view()
            if before.begin != draft.view.begin:
                raise changed_meanwhile(index.folder.parent.name)
            for temporary, path in draft.files:
                self._files.rename(temporary, path)
                fault("compact.segment_named")
            if self._settings.fsync is not Fsync.NEVER:
                self._files.sync_folder(index.folder)
            last = Entry(TRIM, 0, before.begin, 0, 0, 0, index.partition, 0, 0)
            self._begin_index([*index.table.carried(index.partition), *draft.entries, last])
            fault("compact.written")
            kept = {(entry.segment, entry.nonce) for entry in draft.entries}
            gone = _segments(before, draft.outcome.upto) - kept
            for segment, nonce in sorted(gone):
                self._files.remove(index.folder / segment_name(segment, nonce))
                fault("compact.segment_removed")
            self._drop_index_files()

    def sync(self) -> None:
        """Make everything appended so far durable."""
        if not self.has_unsynced:
            return
        self.has_unsynced = False
        self._segment_file.sync()
        self._files.sync_folder(self._index.folder)
        self._index_file.sync()

    def close(self) -> None:
        """Sync what is due under the interval policy, and close all files."""
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._lock)
            stack.callback(self._index_file.close)
            stack.callback(self._segment_file.close)
            self.sync()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            for file in (self._segment_file, self._index_file):
                if file.failure is not None:
                    raise file.failure
            self._take_lock()
            try:
                self._index.refresh()
                if self._is_fresh:
                    self._clean_up()
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        except OSError as error:
            raise UnavailableError(
                f"cannot append in {self._index.folder}: {error.strerror or error}; nothing is "
                "known to be appended, try again with the same sequence"
            ) from error

    def _take_lock(self) -> None:
        wait_s = self._settings.lock_timeout_s
        if not take_lock(self._lock, self._clock, wait_s):
            raise UnavailableError(
                f"{self._index.folder} is locked by another process for {wait_s} s; one that is "
                "frozen keeps it until it wakes or is killed: look for it with ps, state T, end it "
                "with kill -9, and try again"
            )

    def _clean_up(self) -> None:
        """Remove segments that no entry names, and make durable what a crash left half-way."""
        index = self._index
        view = index.table.view()
        firsts = [view.entry(at) for at in segment_begins(view.entries).tolist()]
        named = {segment_name(entry.segment, entry.nonce) for entry in firsts}
        unnamed = [
            name
            for name in self._files.names(index.folder)
            if name.endswith(".seg") and name not in named
        ]
        beyond = [name for name in unnamed if int(name[:20]) > view.next_offset]
        if beyond:
            raise CorruptDataError(
                f"{index.folder} has lost index entries: found segment {beyond[0]}, but the index "
                f"ends at offset {view.next_offset}",
                file=str(index.folder),
            )
        if index.number >= 0:
            for name in unnamed:
                self._files.remove(index.folder / name)
            self._drop_index_files()
        if self._settings.fsync is not Fsync.NEVER:
            if index.number >= 0:
                self._index_file.at(index.path)
                self._index_file.sync()
            self._files.sync_folder(index.folder)
        self._is_fresh = False

    def _duplicate(self, draft: Draft) -> Appended | None:
        table = self._index.table
        answer = draft.duplicate(table.view(), table.sequences)
        if answer is not None and self._settings.fsync is Fsync.ALWAYS:
            self._index_file.at(self._index.path)
            self._index_file.sync()
        return answer

    def _commit(self, draft: Draft, place: Place) -> Appended:
        first = self._index.table.next_offset
        fault("bus.frame_written")
        descriptor = self._writable_index()
        data = draft.entry(first, self._index.partition, place, self._clock.now_ms()).pack()
        at = self._index.entries
        self._files.append(descriptor, [data])
        self._sync(self._index_file)
        fault("bus.index_written")
        self._index.grow(data, at)
        return Appended(first, self._index.table.next_offset, False)

    def _retain(self, is_new_segment: bool, settings: StreamSettings) -> None:
        """Let go of old segments when a new one was begun; the append counts in any case."""
        if is_new_segment and settings.drops:
            with contextlib.suppress(OSError):  # a later append tries again
                self._trim(expired(self._index.table.view(), settings, self._clock.now_ms()))

    def _trim(self, begin: int) -> None:
        """Let the partition begin at an offset.

        1. Begin an index file that says so, and that repeats the last sequence of each
        producer and what is left of compacted entries, for the files of these go. 2. Remove
        the segments. 3. Remove the index files, the oldest first. What is left of 2 and 3 after
        a crash, the next appender removes.
        """
        index = self._index
        if begin <= index.table.begin:
            return
        before = index.table.view()
        gone = _segments(before, begin)
        compacted = before.entries[before.entries["kind"] == COMPACTED]
        left = [Entry.unpack(e.tobytes()) for e in compacted if e["first_offset"] >= begin]
        last = Entry(TRIM, 0, begin, 0, 0, 0, index.partition, 0, 0)
        self._begin_index([*index.table.carried(index.partition), *left, last])
        fault("trim.written")
        for segment, nonce in sorted(gone):
            self._files.remove(index.folder / segment_name(segment, nonce))
            fault("trim.segment_removed")
        self._drop_index_files()

    def _drop_index_files(self) -> None:
        """Remove the index files that hold nothing but what was trimmed or compacted."""
        index = self._index
        numbers = index.files()
        for number, following in itertools.pairwise(numbers):
            if number >= index.trimmed_in or following != number + 1:
                return
            if index.header(following).first_offset > max(index.table.begin, index.table.compacted):
                return
            self._files.remove(index.path_of(number))
            fault("trim.index_removed")

    def _write(self, chunks: Sequence[Bytes], settings: StreamSettings) -> Place:
        first = self._index.table.next_offset
        segment, nonce, descriptor = self._current_segment(first, settings)
        end = os.fstat(descriptor).st_size
        gap = -end % ALIGNMENT
        self._files.append(descriptor, [bytes(gap), *chunks])
        self._sync(self._segment_file)
        length = sum(memoryview(chunk).nbytes for chunk in chunks)
        return Place(segment, nonce, end + gap, length)

    def _current_segment(self, first: int, settings: StreamSettings) -> tuple[int, int, int]:
        view = self._index.table.view()
        if len(view.entries):
            last = view.entry(len(view.entries) - 1)
            is_full = last.position + last.length >= self._settings.segment_bytes
            is_full = is_full or is_old(view, settings, self._clock.now_ms())
            if last.kind == APPEND and not last.flags & ADOPTED and not is_full:
                path = self._index.folder / segment_name(last.segment, last.nonce)
                return last.segment, last.nonce, self._segment_file.at(path)
        nonce = self._nonce()
        path = self._index.folder / segment_name(first, nonce)
        descriptor = self._segment_file.at(path, os.O_CREAT | os.O_EXCL)
        self._sync_folder()
        return first, nonce, descriptor

    def _link(self, path: Path, data: pa.Buffer) -> Place:
        first, nonce = self._index.table.next_offset, self._nonce()
        target = self._index.folder / segment_name(first, nonce)
        try:
            os.link(path, target)
            if self._settings.fsync is not Fsync.NEVER:
                self._sync_once(target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._files.write_new(target, [data])
        self._sync_folder()
        return Place(first, nonce, 0, data.size, adopted=True)

    def _writable_index(self) -> int:
        """Return the index file to write to, after beginning a new one where that is due."""
        index = self._index
        if index.number >= 0 and not index.is_torn and not index.is_closed:
            descriptor = self._index_file.at(index.path)
            if index.entries < self._settings.index_entries:
                return descriptor
        return self._begin_index([])

    def _begin_index(self, first_entries: Sequence[Entry]) -> int:
        """Close the index file, and begin the next one with some entries that are no appends."""
        index = self._index
        if index.number >= 0 and not index.is_torn and not index.is_closed:
            descriptor = self._index_file.at(index.path)
            last = Entry(END, 0, index.table.next_offset, 0, 0, 0, index.partition, 0, 0)
            self._files.append(descriptor, [last.pack()])
            index.refresh()
        if index.number >= 0 and self._settings.fsync is not Fsync.NEVER:
            self._sync_once(index.path)
        header = Entry(
            kind=HEADER,
            flags=0,
            first_offset=index.table.next_offset,
            rows=len(first_entries),
            segment=0,
            nonce=0,
            partition=index.partition,
            position=index.number + 1,
            length=index.entries,
            appended_ms=self._clock.now_ms(),
        )
        path = index.path_of(index.number + 1)
        data = b"".join(entry.pack() for entry in [header, *first_entries])
        self._files.publish(path, data, self._clock.new_id())
        index.refresh()
        return self._index_file.at(path)

    def _sync(self, file: AppendFile) -> None:
        if self._settings.fsync is Fsync.INTERVAL:
            self.has_unsynced = True
        elif self._settings.fsync is Fsync.ALWAYS:
            file.sync()

    def _sync_folder(self) -> None:
        if self._settings.fsync is Fsync.ALWAYS:
            self._files.sync_folder(self._index.folder)

    def _sync_once(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._files.sync_file(descriptor)
        finally:
            os.close(descriptor)

    def _nonce(self) -> int:
        return int(self._clock.new_id()[:8], 16)
