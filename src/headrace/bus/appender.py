"""The writing side of a partition of the file bus: one append, from lock to index entry."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from headrace.bus.compaction import WrittenCompaction, changed_meanwhile
from headrace.bus.index_files import EraFencedError, IndexEnd, IndexFiles, Publish
from headrace.bus.index_history import IndexStart
from headrace.bus.index_table import NO_PRODUCER, Entries, IndexView, segment_begins
from headrace.bus.log import (
    BusContext,
    FrameLocation,
    PendingAppend,
    SegmentReplacedError,
    expired_before,
    is_old,
    new_nonce,
    segment_name,
    trim_limit,
)
from headrace.bus.options import Fsync
from headrace.bus.spec import Appended, Fence
from headrace.bus.stream_stores import StreamSettings
from headrace.clock import Deadline
from headrace.errors import CorruptDataError, UnavailableError
from headrace.faults import fault
from headrace.files import Bytes, Files, take_lock
from headrace.records.frame import ALIGNMENT


class AppendFile:
    """The one file of a kind that an appender has open: its segment, or its index.

    ``failure`` is that of a sync. After one, nobody knows what is on the disk, and trying
    again would seem to succeed; so nothing more may be appended.
    """

    def __init__(self, files: Files, *, sync_before_close: bool) -> None:
        self._files = files
        self._sync_before_close = sync_before_close
        self._path: Path | None = None
        self._descriptor = -1
        self.failure: OSError | None = None

    def at(self, path: Path, flags: int = 0) -> int:
        """Return the file's descriptor, opened to append; any other file is closed."""
        if path != self._path:
            self.close()
            try:
                mode = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags
                self._descriptor = os.open(path, mode, 0o644)
            except FileNotFoundError as error:
                raise CorruptDataError(
                    f"{path} is missing, though the index names it", file=str(path)
                ) from error
            self._path = path
        return self._descriptor

    def sync(self) -> None:
        """Make what was written durable."""
        if self._path is None:
            return
        try:
            self._files.sync_file(self._descriptor)
        except OSError as error:
            self.failure = error
            raise

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._path is None:
            return
        try:
            if self._sync_before_close:
                self.sync()
        finally:
            self._path = None
            os.close(self._descriptor)


_T = TypeVar("_T")
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}


def _named(blocks: Iterable[Entries]) -> set[tuple[int, int]]:
    """Return the segments that entries name, by number and nonce."""
    firsts = (block[segment_begins(block)] for block in blocks)
    return {
        pair
        for found in firsts
        for pair in zip(found["segment"].tolist(), found["nonce"].tolist(), strict=True)
    }


def _segments(view: IndexView, upto: int) -> set[tuple[int, int]]:
    """Return the segments of which nothing lies at an offset or behind."""
    return _named(view.blocks(stop=upto)) - _named(view.blocks(upto, upto + 1))


def _kept(view: IndexView, upto: int) -> tuple[int, int]:
    """Return the rows and bytes that are kept from an offset on."""
    rows, size = view.stored
    for block in view.blocks(stop=upto):
        rows, size = rows - int(block["rows"].sum()), size - int(block["length"].sum())
    return rows, size


class Appender:
    """Open files of one partition to append to. One thread at a time.

    An append takes these steps; one that stops between two of them leaves no more than bytes
    that no index entry names.

    1. Take the lock of the partition, against other processes; refuse who was taken over.
    2. Read the index entries that others have written.
    3. Answer a duplicate, after making sure that what it repeats is durable.
    4. Write the frames at the end of the segment; sync by policy.
    5. Write the index entry, which is what makes the append visible; sync by policy.
    """

    def __init__(self, index: IndexFiles, parts: BusContext) -> None:
        self.has_unsynced = False
        self._index = index
        self._settings = parts.settings
        self._clock = parts.clock
        self._files = parts.files
        self._fences = parts.fences
        self._lock = os.open(index.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        is_late = parts.settings.fsync is Fsync.INTERVAL
        self._segment_file = AppendFile(parts.files, sync_before_close=is_late)
        self._index_file = AppendFile(parts.files, sync_before_close=is_late)
        self._era = 0
        self._is_fresh = True

    def append(
        self, chunks: Sequence[Bytes], draft: PendingAppend, settings: StreamSettings
    ) -> Appended:
        """Append frames to the current segment in one step, and drop what need not be kept."""
        return self._append(draft, settings, lambda: self._write(chunks, settings))

    def adopt(
        self, path: Path, data: pa.Buffer, draft: PendingAppend, settings: StreamSettings
    ) -> Appended:
        """Append a whole file in one step, by a second name for it, or else by a copy."""
        return self._append(draft, settings, lambda: self._link(path, data))

    def _append(
        self, draft: PendingAppend, settings: StreamSettings, write: Callable[[], FrameLocation]
    ) -> Appended:
        def append() -> Appended:
            with self._locked(draft.fence):
                answer = self._duplicate(draft)
                if answer is None:
                    place = write()
                    answer = self._commit(draft, place)
                    if place.segment == answer.first_offset:
                        self._retain(settings)
                return answer

        return self._again(append)

    def trim(self, before_offset: int | None, settings: StreamSettings, fence: Fence | None) -> int:
        """Drop whole segments below an offset, or those that retention drops.

        Returns:
            The new beginning of the partition.
        """

        def trim() -> int:
            with self._locked(fence):
                view, now_ms = self._index.known(), self._clock.now_ms()
                self._trim(trim_limit(view, before_offset, settings, now_ms))
                return self._index.table.begin

        return self._again(trim)

    def release(self, first_offset: int, name: str) -> bool:
        """Remove the file of a segment that is in the object storage.

        Args:
            first_offset: of the segment.
            name: of the segment.

        Returns:
            False: no entry names it any more.
        """

        def release() -> bool:
            with self._locked():
                entry = self._index.known().at(first_offset)
                self._files.remove(self._index.folder / name)
                fault("offload.file_removed")
                return entry is not None and segment_name(entry.segment, entry.nonce) == name

        return self._again(release)

    def _again(self, work: Callable[[], _T]) -> _T:
        """Do something under the lock, and once more where this process was kept out meanwhile."""
        while True:
            number = self._index.number
            try:
                return work()
            except EraFencedError:
                # By a file that nobody looks for while the one before it seems to continue.
                self._index.refresh(is_due=True)
            except (CorruptDataError, SegmentReplacedError) as error:
                # Files that were dropped while this process stood still are no damage.
                self._index.refresh()
                if self._index.number != number:
                    continue
                if isinstance(error, CorruptDataError):
                    raise
                raise CorruptDataError(f"{self._index.folder} has lost index files") from error

    def replace(self, draft: WrittenCompaction, publish: Publish) -> None:
        """Let compacted entries stand for the beginning of the partition.

        1. Give the new segments their names. 2. Begin an index file that has the entries; this is
        the moment it counts. 3. Remove the segments that no entry names any more. 4. Remove index
        files. What a crash leaves of 1 before 2, the next compaction removes, and what it leaves
        of 3 and 4, the next appender.

        Args:
            draft: what is written.
            publish: creates the index file of step 2, unless a hold came between.

        Raises:
            CompactionStoppedError: a hold was set meanwhile, the partition was trimmed or compacted
                by others, or this process kept out; nothing has changed.
        """
        try:
            self._replace(draft, publish)
        except (EraFencedError, SegmentReplacedError):
            raise changed_meanwhile(self._index.stream) from None

    def _replace(self, draft: WrittenCompaction, publish: Publish) -> None:
        self._index.refresh(is_due=True)  # who began the newest era may not have closed the file
        with self._locked():
            index = self._index
            before = index.known()
            if (before.begin, before.holder) != (draft.view.begin, draft.view.holder):
                raise changed_meanwhile(index.stream)
            for temporary, path in draft.files:
                try:
                    self._files.rename(temporary, path)
                except FileNotFoundError as error:  # who compacts now has removed it
                    index.check_there(error)
                    raise changed_meanwhile(index.stream) from error
                fault("compact.segment_named")
            if self._settings.fsync is not Fsync.NEVER:
                self._files.sync_folder(index.folder)
            rows, size = _kept(before, draft.outcome.upto)
            rows += sum(entry.rows for entry in draft.entries)
            size += sum(entry.length for entry in draft.entries)
            named = {(entry.segment, entry.nonce) for entry in draft.entries}
            gone = _segments(before, draft.outcome.upto) - named
            try:
                self._begin_index(IndexStart(before.begin, rows, size, draft.entries), publish)
            except (EraFencedError, SegmentReplacedError):
                for _, path in draft.files:
                    self._files.remove(path)
                raise
            fault("compact.written")
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
            stack.callback(lambda: os.close(self._lock))
            stack.callback(self._index_file.close)
            stack.callback(self._segment_file.close)
            with contextlib.suppress(FileNotFoundError):  # the stream was removed meanwhile
                self.sync()

    @contextlib.contextmanager
    def _locked(self, fence: Fence | None = None) -> Iterator[None]:
        end: IndexEnd | None = None
        try:
            for file in (self._segment_file, self._index_file):
                if file.failure is not None:
                    raise file.failure
            try:
                self._take_lock()
                end = self._index.end(self._era)
                self._fences.check(fence)
                if self._is_fresh:
                    self._clean_up()
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        except OSError as error:
            self._index.check_there(error)
            if isinstance(error, FileNotFoundError) and end and not self._index.is_last(end):
                raise EraFencedError from error  # dropped while this process stood still
            raise UnavailableError(
                f"cannot append in {self._index.folder}: {error.strerror or error}; nothing is "
                "known to be appended, try again with the same sequence"
            ) from error

    def _take_lock(self) -> None:
        """Take the lock of the era, and read the index; who has it for too long is kept out."""
        index, limit_s = self._index, self._settings.lock_timeout_s
        deadline = Deadline(self._clock, limit_s)
        while True:
            era, seen = index.era, (index.number, index.entries)
            self._use_lock(era)
            is_taken = take_lock(self._lock, self._clock, 0)
            if not is_taken:
                index.refresh()
                if index.era != era:
                    continue
                seen = index.number, index.entries
                wait_s = deadline.remaining(self._settings.seal_after_s)
                is_taken = take_lock(self._lock, self._clock, wait_s)
            index.refresh()
            if is_taken and index.era == era:
                index.close_sealed()
                return
            if is_taken:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            elif deadline.expired:
                raise UnavailableError(
                    f"{index.folder} is locked by another process for {limit_s} s; one that is "
                    "frozen keeps it until it wakes or is killed: look for it with ps, state T, "
                    "end it with kill -9, and try again"
                )
            elif (index.number, index.entries) == seen:
                index.bar()

    def _use_lock(self, era: int) -> None:
        if era == self._era:
            return
        name = f"lock-{era:06d}" if era else "lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._index.folder / name, flags, 0o644)
        os.close(self._lock)
        self._lock, self._era = descriptor, era

    def _clean_up(self) -> None:
        """Remove segments that no entry names, and make durable what a crash left half-way."""
        index = self._index
        self._sweep()
        if index.number >= 0:
            self._drop_index_files()
        if self._settings.fsync is not Fsync.NEVER:
            if index.number >= 0:
                self._index_file.at(index.path)
                self._index_file.sync()
            self._files.sync_folder(index.folder)
        self._is_fresh = False

    def _sweep(self, *, is_placed: bool = False) -> None:
        """Remove segments that no entry names.

        Of those that begin in older index files, only what was trimmed or compacted is looked at:
        the others were when the next index file was begun. The caller may be about to name one
        that begins at the end, where ``is_placed``.
        """
        index = self._index
        end = index.end(self._era)
        view = index.known()
        segments = [name for name in self._files.names(index.folder) if name.endswith(".seg")]
        if not index.is_last(end):
            raise EraFencedError  # what was found may be of who has the lock now
        beyond = [name for name in segments if int(name[:20]) > view.next_offset]
        if beyond:
            raise CorruptDataError(
                f"{index.folder} has lost index entries: found segment {beyond[0]}, but the index "
                f"ends at offset {view.next_offset}",
                file=str(index.folder),
            )
        clean_to = max(view.begin, view.compacted)
        old = [name for name in segments if int(name[:20]) < clean_to]
        upto = view.next_offset + (not is_placed)
        new = [name for name in segments if max(clean_to, view.first) <= int(name[:20]) < upto]
        named = _named([view.entries])
        if old:
            named |= _named(view.blocks(stop=clean_to + 1))
        kept = {segment_name(segment, nonce) for segment, nonce in named}
        if end.number < 0:
            return
        for name in [*old, *new]:
            if name not in kept:
                self._files.remove(index.folder / name)

    def _duplicate(self, draft: PendingAppend) -> Appended | None:
        index = self._index
        answer = draft.duplicate(index.known(), index.table.producers)
        if answer is not None and self._settings.fsync is Fsync.ALWAYS:
            self._index_file.at(self._index.path)
            self._index_file.sync()
        return answer

    def _commit(self, draft: PendingAppend, place: FrameLocation) -> Appended:
        fault("bus.frame_written")
        index, now_ms = self._index, self._clock.now_ms()
        does_count: bool | None
        try:
            end = self._writable_end()
            data = draft.entry(end.offset, index.partition, place, now_ms).pack()
            self._files.append(self._index_file.at(Path(end.path)), [data])
            self._sync(self._index_file)
            fault("bus.index_written")
            does_count = index.counts(end)
        except EraFencedError:
            does_count = False
        if does_count is None and draft.producer == NO_PRODUCER:
            raise UnavailableError(
                f"this process was frozen while others appended in {index.folder} and dropped old "
                "rows; nothing is known to be appended, try again"
            )
        if does_count is False and not place.position:  # nobody names it
            self._files.remove(index.folder / segment_name(place.segment, place.nonce))
        if not does_count:
            raise EraFencedError
        index.grow(data, end)
        return Appended(end.offset, end.offset + draft.rows, False)

    def _retain(self, settings: StreamSettings) -> None:
        """Release old segments now that a new one was begun; the append counts in any case."""
        if settings.drops:
            with contextlib.suppress(OSError, EraFencedError):  # a later append tries again
                self._trim(expired_before(self._index.known(), settings, self._clock.now_ms()))

    def _trim(self, begin: int) -> None:
        """Let the partition begin at an offset.

        1. Begin an index file that says so. 2. Remove the segments. 3. Remove the index files, the
        oldest first. What is left of 2 and 3 after a crash, the next appender removes.
        """
        index = self._index
        if begin <= index.table.begin:
            return
        before = index.known()
        gone = _segments(before, begin)
        self._begin_index(IndexStart(begin, *_kept(before, begin)))
        fault("trim.written")
        for segment, nonce in sorted(gone):
            self._files.remove(index.folder / segment_name(segment, nonce))
            fault("trim.segment_removed")
        self._drop_index_files()

    def _drop_index_files(self) -> None:
        """Remove the index files that hold nothing but what was trimmed or compacted."""
        index = self._index
        numbers = index.history.numbers()
        for number in index.history.numbers(with_strays=True):
            if number < numbers[0]:
                self._files.remove(index.path_of(number))
        for number, following in itertools.pairwise(numbers):
            if number >= index.needed_from:
                return
            first = index.history.first_offset(following)
            if first > max(index.table.begin, index.table.compacted):
                return
            self._files.remove(index.path_of(number))
            fault("trim.index_removed")

    def _write(self, chunks: Sequence[Bytes], settings: StreamSettings) -> FrameLocation:
        first = self._index.table.next_offset
        segment, nonce, descriptor = self._current_segment(first, settings)
        end = os.fstat(descriptor).st_size
        gap = -end % ALIGNMENT
        self._files.append(descriptor, [bytes(gap), *chunks])
        self._sync(self._segment_file)
        length = sum([memoryview(chunk).nbytes for chunk in chunks])
        return FrameLocation(segment, nonce, end + gap, length)

    def _current_segment(self, first: int, settings: StreamSettings) -> tuple[int, int, int]:
        last = self._index.table.open
        if (
            last is not None
            and last.end < self._settings.segment_bytes
            and not is_old(last.first_ms, settings, self._clock.now_ms())
        ):
            path = self._index.folder / segment_name(last.segment, last.nonce)
            return last.segment, last.nonce, self._segment_file.at(path)
        nonce = new_nonce(self._clock)
        path = self._index.folder / segment_name(first, nonce)
        descriptor = self._segment_file.at(path, os.O_CREAT | os.O_EXCL)
        self._sync_folder()
        return first, nonce, descriptor

    def _link(self, path: Path, data: pa.Buffer) -> FrameLocation:
        first, nonce = self._index.table.next_offset, new_nonce(self._clock)
        target = self._index.folder / segment_name(first, nonce)
        try:
            os.link(path, target)
            if self._settings.fsync is not Fsync.NEVER:
                self._files.sync_path(target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._files.write_new(target, [data])
        self._sync_folder()
        return FrameLocation(first, nonce, 0, data.size, adopted=True)

    def _writable_end(self) -> IndexEnd:
        """Return where the next entry goes, after beginning an index file where that is due."""
        index = self._index
        if index.is_whole and not index.is_torn and not index.is_closed:
            if index.own < self._settings.index_entries:
                return index.end(self._era)
            self._sweep(is_placed=True)
        view = index.known()
        self._begin_index(IndexStart(view.begin, *view.stored))
        return index.end(self._era)

    def _begin_index(self, start: IndexStart, publish: Publish | None = None) -> None:
        """Close the index file and begin the next one; see ``IndexFiles.begin``."""
        index = self._index
        end = index.end(self._era)
        path = Path(end.path)
        if end.number >= 0 and not index.is_torn and not index.is_closed:
            self._files.append(self._index_file.at(path), [index.closing(end.offset)])
            index.refresh()
        if end.number >= 0 and self._settings.fsync is not Fsync.NEVER:
            self._files.sync_path(path)
        index.begin(self._era, start, publish)

    def _sync(self, file: AppendFile) -> None:
        if self._settings.fsync is Fsync.INTERVAL:
            self.has_unsynced = True
        elif self._settings.fsync is Fsync.ALWAYS:
            file.sync()

    def _sync_folder(self) -> None:
        if self._settings.fsync is Fsync.ALWAYS:
            self._files.sync_folder(self._index.folder)
