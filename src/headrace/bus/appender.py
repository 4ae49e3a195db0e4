"""The writing side of a partition of the file bus: one append, from lock to index entry."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.bus.entries import ADOPTED, END, HEADER, Entry
from headrace.bus.index_files import IndexFiles
from headrace.bus.log import Draft, Parts, Place
from headrace.bus.options import Fsync
from headrace.bus.spec import Appended
from headrace.clock import Deadline
from headrace.errors import CorruptDataError, UnavailableError
from headrace.faults import fault
from headrace.files import Bytes, Files
from headrace.records.frame import ALIGNMENT

LOCK_PAUSE_S = 0.0005
LOCK_PAUSE_MOST_S = 0.01
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}


def segment_name(segment: int, nonce: int) -> str:
    """Return the name of a segment file."""
    return f"{segment:020d}-{nonce:08x}.seg"


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

    def append(self, chunks: Sequence[Bytes], draft: Draft) -> Appended:
        """Append frames to the current segment in one step."""
        with self._locked():
            return self._duplicate(draft) or self._commit(draft, self._write(chunks))

    def adopt(self, path: Path, data: pa.Buffer, draft: Draft) -> Appended:
        """Append a whole file in one step, by a second name for it, or else by a copy."""
        with self._locked():
            return self._duplicate(draft) or self._commit(draft, self._link(path, data))

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
        deadline = Deadline(self._clock, self._settings.lock_timeout_s)
        pause = LOCK_PAUSE_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if deadline.expired:
                    raise UnavailableError(
                        f"{self._index.folder} is locked by another process for "
                        f"{self._settings.lock_timeout_s} s"
                    ) from error
            self._clock.sleep(deadline.remaining(pause))
            pause = min(2 * pause, LOCK_PAUSE_MOST_S)

    def _clean_up(self) -> None:
        """Remove segments that no entry names, and make durable what a crash left half-way."""
        index = self._index
        view = index.table.view()
        begins = np.flatnonzero(np.diff(view.entries["segment"], prepend=-1))
        firsts = [view.entry(at) for at in begins.tolist()]
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

    def _write(self, chunks: Sequence[Bytes]) -> Place:
        first = self._index.table.next_offset
        segment, nonce, descriptor = self._current_segment(first)
        end = os.fstat(descriptor).st_size
        gap = -end % ALIGNMENT
        self._files.append(descriptor, [bytes(gap), *chunks])
        self._sync(self._segment_file)
        length = sum(memoryview(chunk).nbytes for chunk in chunks)
        return Place(segment, nonce, end + gap, length)

    def _current_segment(self, first: int) -> tuple[int, int, int]:
        view = self._index.table.view()
        if len(view.entries):
            last = view.entry(len(view.entries) - 1)
            is_full = last.position + last.length >= self._settings.segment_bytes
            if not last.flags & ADOPTED and not is_full:
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
            last = Entry(END, 0, index.table.next_offset, 0, 0, 0, index.partition, 0, 0)
            self._files.append(descriptor, [last.pack()])
            index.refresh()
        if index.number >= 0 and self._settings.fsync is not Fsync.NEVER:
            self._sync_once(index.path)
        header = Entry(
            kind=HEADER,
            flags=0,
            first_offset=index.table.next_offset,
            rows=0,
            segment=0,
            nonce=0,
            partition=index.partition,
            position=index.number + 1,
            length=index.entries,
            appended_ms=self._clock.now_ms(),
        )
        path = index.path_of(index.number + 1)
        self._files.publish(path, header.pack(), self._clock.new_id())
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
