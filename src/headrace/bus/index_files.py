"""The index files of a partition as a reader sees them: the newest read, then what is new.

A file ``index-000000.log`` is a header entry, entries that are no appends, and those of appends; it
only grows. An appender begins the next one when its tail is torn, when it is long, to trim and to
compact. How many entries of a file count, its successor says; what lies behind those is never
read. A header of kind ``OPENING`` is followed by all that an opener has to know: the last appends
of producers, compacted entries or which file has them, and where the partition begins. A file with
an older kind of header is only understood with those before it, which an opener reads all.

Files that hold nothing which is kept are removed, the oldest first. A barrier keeps out a process
that has the lock of the partition for too long; see ``index_history``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

from headrace.bus.index_history import (
    SEALS,
    AppendSummary,
    IndexHistory,
    IndexStart,
    OlderEntries,
    decode_opening,
    encode_opening,
)
from headrace.bus.index_table import (
    BARRIER,
    CARRIED,
    COMPACTED,
    END,
    ENTRY_BYTES,
    HEADER,
    OPENING,
    TRIM,
    Entries,
    Entry,
    EntryTable,
    IndexView,
    verified_entries,
)
from headrace.bus.log import SegmentReplacedError, new_nonce
from headrace.bus.spec import stream_removed
from headrace.clock import Clock
from headrace.errors import CorruptDataError, UnavailableError
from headrace.faults import fault
from headrace.files import Files

RESTARTS = 500
Publish: TypeAlias = Callable[[Path, bytes], bool]


class _DroppedError(Exception):
    """The index file that was to be read next is gone, and later ones are there."""


class EraFencedError(Exception):
    """Another process has begun an era meanwhile: what was being done does not count."""


class IndexEnd(NamedTuple):
    """Where a partition ends: its newest index file, how many entries that has, the next offset."""

    number: int
    entries: int
    offset: int
    header: bytes
    path: str
    following: str
    """The path of the file that would come next."""


class IndexFiles:
    """How far the index of a partition was read, and what it said. Safe for many threads.

    Args:
        files: the file system.
        place: folder of the partition.
        partition: its number.
        stream: name of its stream.
        clock: for names and times.
    """

    def __init__(self, files: Files, place: str, partition: int, stream: str, clock: Clock) -> None:
        self._place = place
        self.stream, self.partition = stream, partition
        self.number = -1
        self.entries = self.own = 0
        self.is_torn = self.is_closed = self.is_whole = self.is_seal = False
        self.era = 0
        self.table = EntryTable()
        self.holder = -1
        self.trimmed_in = -1
        self.history = IndexHistory(files, f"{place}/index-", partition)
        self._end_seen = 0
        self._newest = self._following = ""  # the path of the file that is read now, of the next
        self._newest_header = b""
        self._view: IndexView | None = None  # of what is known, until more is
        self._files, self._clock = files, clock
        self._lock = threading.Lock()

    @cached_property
    def folder(self) -> Path:
        """The folder of the partition."""
        return Path(self._place)

    @property
    def path(self) -> Path:
        """The index file that is read now."""
        return self.path_of(self.number)

    def path_of(self, number: int) -> Path:
        """Return the path of an index file."""
        return Path(self.history.name(number))

    @property
    def needed_from(self) -> int:
        """The oldest file without which what is kept cannot be understood."""
        if not self.is_whole:
            return self.trimmed_in
        return self.number if self.holder < 0 else self.holder

    def refresh(self, *, is_due: bool = False) -> None:
        """Read the entries that came since the last call.

        Where ``is_due``, a next file is looked for also if nothing came.

        Raises:
            CorruptDataError: a damaged entry, or a gap; names file and position.
        """
        with self._lock:
            self._refresh(is_due=is_due)

    def view(self) -> IndexView:
        """Read what is new and return all that is known."""
        with self._lock:
            self._refresh()
            return self._view or self.known()

    def known(self) -> IndexView:
        """Return what is known without a look at the disk."""
        if (view := self._view) is not None:
            return view
        table = self.table
        if not self.is_whole:
            return table.view(None, self.holder)
        older = OlderEntries(self.history, self.number, self.holder, table.compacted)
        return table.view(older, self.holder)

    def end(self, era: int) -> IndexEnd:
        """Return where the next entry goes, for who has the lock of an era.

        Raises:
            SealedOutError: another era has begun.
        """
        with self._lock:
            if self.era != era:
                raise EraFencedError
            place = self._newest_header, self._newest, self._following
            return IndexEnd(self.number, self.entries, self.table.next_offset, *place)

    def grow(self, data: bytes, at: IndexEnd) -> None:
        """Take over an append that the caller has just written there."""
        with self._lock:
            if (self.number, self.entries) == at[:2]:
                self._take(data)

    def counts(self, at: IndexEnd) -> bool | None:
        """Say whether an entry counts that was written, and synced, there.

        Returns:
            ``None`` where nobody knows any more, because the file was dropped.
        """
        if self.is_last(at):
            return True
        try:
            with self._lock:
                self._refresh(is_due=True)
            return at.entries < self.history.behind(at.number)[1]
        except (FileNotFoundError, CorruptDataError):
            return None

    def is_last(self, at: IndexEnd) -> bool:
        """Say whether a file is still there and none follows it."""
        if at.number < 0:
            return not self.history.numbers()
        # In this order: the oldest is dropped first.
        if os.path.exists(at.following):
            return False
        try:
            with open(at.path, "rb", buffering=0) as file:
                return file.read(ENTRY_BYTES) == at.header  # else a stray, see History.numbers
        except FileNotFoundError:
            return False

    def check_there(self, cause: OSError | None = None) -> None:
        """Make sure that the stream was not removed.

        Raises:
            InvalidInputError: it was.
        """
        if not os.path.isdir(self._place):
            raise stream_removed(self.stream) from cause

    def _refresh(self, *, is_due: bool = False) -> None:
        if self.number >= 0 and not (is_due or self.is_closed):
            try:
                if os.stat(self._newest).st_size == self.entries * ENTRY_BYTES:
                    self._end_seen = self.table.next_offset
                    if self._view is None:
                        self._view = self.known()
                    return
            except FileNotFoundError:  # dropped, or the stream is removed
                pass
        for _ in range(RESTARTS):
            try:
                self._follow(is_due=is_due)
                break
            except _DroppedError:
                self._restart()
        else:
            raise UnavailableError(
                f"index files of {self.folder} were dropped faster than they can be read; try again"
            )
        first = self.table.first_known
        if self.table.next_offset < self._end_seen or (
            not self.is_whole and self.table.begin < first
        ):
            raise self._lost(first)
        self._end_seen = self.table.next_offset
        self._view = self.known() if self.number >= 0 else None

    def _lost(self, first: int) -> CorruptDataError:
        return CorruptDataError(
            f"{self.folder} has lost index entries: found offsets {first} to "
            f"{self.table.next_offset} of a partition that begins at {self.table.begin} and "
            f"ends at {self._end_seen} or later",
            file=str(self.folder),
        )

    def _restart(self) -> None:
        self.number, self.entries, self.own = -1, 0, 0
        self._newest, self._following, self._newest_header = "", "", b""
        self.is_torn = self.is_closed = self.is_whole = self.is_seal = False
        self.table, self.trimmed_in, self.holder = EntryTable(), -1, -1
        self._view = None
        self.history.forget()

    def _follow(self, *, is_due: bool) -> None:
        """Read what is new; where ``is_due``, look for a next file whatever was found."""
        last = -1
        if self.number < 0:
            numbers = self.history.numbers()
            if not numbers:
                return
            last = numbers[-1]
            self._open(numbers)
        while True:
            data = self._new_data()
            # Looked for after the entries were read: those were there before a barrier, and count.
            is_due = is_due or bool(data) or self.is_torn or self.is_closed or self.number < last
            if not is_due or not os.path.exists(self._following):
                if is_due and not os.path.exists(self._newest):
                    raise _DroppedError
                self._take(data)
                return
            following = self.number + 1
            if self._header(following).kind == BARRIER:
                following += 1
                if not os.path.exists(self.history.name(following)):
                    self._seal()
                count = self._header(following).span
                if count < self.entries:  # another sealed before this one had counted
                    raise _DroppedError
                self._take(self._new_data()[: (count - self.entries) * ENTRY_BYTES])
            else:
                self._take(self._new_data())
            self._enter(following)

    def _open(self, numbers: Sequence[int]) -> None:
        """Begin with the newest file if that has an opening, else with the oldest."""
        oldest, newest = numbers[0], numbers[-1]
        if self._header(newest).kind == BARRIER:
            newest -= 1
        if self._header(newest).kind == HEADER:
            self._enter(oldest, is_first=True)
            return
        self._enter(newest, is_first=True)
        first = self.history.first_offset(oldest)
        if first > max(self.table.begin, self.table.compacted):
            raise self._lost(first)

    def _header(self, number: int) -> Entry:
        try:
            return self.history.header(number)
        except FileNotFoundError as error:
            self._check_dropped(number, error)
            raise

    def _check_dropped(self, number: int, error: OSError) -> None:
        if any(other > number for other in self.history.numbers()):
            raise _DroppedError from None
        self.check_there(error)
        path = self.history.name(number)
        raise CorruptDataError(f"index {path} is missing", file=path) from error

    def _new_data(self) -> bytes:
        begin = self.entries * ENTRY_BYTES
        try:
            name = self._newest
            size, data = os.stat(name).st_size, b""
            if size != begin:
                with open(name, "rb", buffering=0) as file:
                    if file.read(ENTRY_BYTES) != self._newest_header:
                        raise _DroppedError  # and a stray has its name, see History.numbers
                    data = os.pread(file.fileno(), max(0, size - begin), begin)
        except FileNotFoundError as error:
            self._check_dropped(self.number, error)
        if size < begin:
            raise CorruptDataError(
                f"{name} has shrunk: found {size} bytes, expected at least {begin}", file=name
            )
        return data

    def _take(self, data: bytes) -> None:
        if not data:
            return
        path = self._newest
        entries = verified_entries(data, self.entries * ENTRY_BYTES, path, self.partition)
        taken = len(entries)
        if taken and entries["kind"][-1] == END:
            self.is_closed = True
            entries = entries[:-1]
        self.table.extend(entries, path, is_old=not self.is_whole)
        self._view = None
        self.entries += taken
        self.own += len(entries)
        self.is_torn = taken * ENTRY_BYTES < len(data)

    def _enter(self, number: int, *, is_first: bool = False) -> None:
        """Take over what a file begins with, up to its appends."""
        path, header, table = self.history.name(number), self._header(number), self.table
        is_seal = header.kind == OPENING and bool(header.flags & SEALS)
        counted = header.span if is_seal else header.length
        found, expected = (self.entries, table.next_offset), (counted, header.first_offset)
        if not is_first and found != expected:
            raise CorruptDataError(
                f"{path} does not follow the index file before it: found {found[0]} entries up to "
                f"offset {found[1]}, expected {expected[0]} up to {expected[1]}",
                file=path,
            )
        first = self._first_entries(number, header)
        self.number, self.entries, self.own = number, 1 + header.rows, 0
        self._newest, self._following, self._view = path, self.history.name(number + 1), None
        self._newest_header = header.pack()
        self.is_torn = self.is_closed = False
        self.is_whole, self.is_seal = header.kind == OPENING, is_seal
        if self.is_whole:
            self.era = header.segment
            state = Entry.at(first, -1)
            self.table, self.holder = decode_opening(header, state), state.sequence
            self.table.producers.note(first[first["kind"] == CARRIED])
            self.history.forget(self.needed_from)
        else:
            if is_first:
                table.start_at(header.first_offset)
            if header.rows:
                self._take_trim(first, path)

    def _first_entries(self, number: int, header: Entry) -> Entries:
        """Return what lies between a header and the appends."""
        try:
            where = "with those behind its header that are no appends"
            entries = self.history.read(number, 1, 1 + header.rows, where)
        except SegmentReplacedError:
            raise _DroppedError from None
        kinds, path = entries["kind"].tolist(), self.history.name(number)
        carried = kinds.count(CARRIED)
        expected = [CARRIED] * carried + [COMPACTED] * (header.rows - carried - 1) + [TRIM]
        if kinds != expected and (header.rows or header.kind == OPENING):
            raise CorruptDataError(
                f"{path} is damaged: found entries of kinds {kinds} behind its header, expected "
                f"{header.rows}, the last one a trim",
                file=path,
            )
        return entries

    def _take_trim(self, first: Entries, path: str) -> None:
        """Take over what a file without an opening begins with."""
        table, kinds = self.table, first["kind"]
        table.producers.note(first[kinds == CARRIED], is_old=True)
        if (kinds == COMPACTED).any():
            table.compact(first[kinds == COMPACTED], path)
        table.trim(int(first["first_offset"][-1]), path)
        self.trimmed_in = self.holder = self.number

    def begin(self, era: int, start: IndexStart, publish: Publish | None = None) -> None:
        """Begin the next file; the caller has read all of the one before.

        Args:
            era: of which the caller has the lock.
            start: what it begins with.
            publish: creates the file; says whether it did.

        Raises:
            EraFencedError: another era has begun, or the file was not created.
        """
        with self._lock:
            header = self._bare(OPENING, self.number + 1, era)._replace(length=self.entries)
            if self.era != era or not self._publish(header, start, publish):
                raise EraFencedError
            self._refresh(is_due=True)

    def bar(self) -> None:
        """Begin an era, so that who has the lock is kept out; or find that it does something."""
        with self._lock:
            self._refresh(is_due=True)
            self.close_sealed()
            header = self._bare(BARRIER, self.number + 1, self.era + 1)
            if self.number < 0:
                self._publish(header._replace(kind=OPENING, flags=SEALS), IndexStart(0, 0, 0))
            else:
                self._files.publish(self.path_of(header.position), header.pack())
            fault("seal.barred")
            self._refresh(is_due=True)

    def _seal(self) -> None:
        """Publish the file behind a barrier, which is behind the file that is read."""
        self._take(self._new_data())
        barrier, table = self._header(self.number + 1), self.table
        self._files.sync_path(self.path)  # who was kept out may answer for what is counted
        fault("seal.counted")
        table.open = None  # who was kept out may still write there
        header = self._bare(OPENING, self.number + 2, barrier.segment)
        header = header._replace(flags=SEALS, length=1, span=self.entries)
        self._publish(header, IndexStart(table.begin, *self.known().stored))
        fault("seal.published")

    def close_sealed(self) -> None:
        """Close the file before the barrier that the one that is read is behind.

        Call it before anything is appended or barred behind a seal: who polls that file looks no
        further.
        """
        if not self.is_seal or self.number < 2:
            return
        last = self.closing(self.history.header(self.number).first_offset)
        with contextlib.suppress(FileNotFoundError):  # dropped, and who polls it sees that
            path = self.history.name(self.number - 2)
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                if os.pread(descriptor, ENTRY_BYTES, size - ENTRY_BYTES) != last:
                    self._files.append(descriptor, [last])
            finally:
                os.close(descriptor)

    def closing(self, offset: int) -> bytes:
        """Return the entry that closes a file which ends at an offset."""
        return Entry(END, 0, offset, 0, 0, 0, self.partition, 0, 0).pack()

    def _bare(self, kind: int, number: int, era: int) -> Entry:
        return Entry(
            kind=kind,
            flags=0,
            first_offset=self.table.next_offset,
            rows=0,
            segment=era,
            nonce=new_nonce(self._clock),  # of several files under a number it says which
            partition=self.partition,
            position=number,
            length=0,
            appended_ms=self._clock.now_ms(),
        )

    def _publish(self, header: Entry, start: IndexStart, publish: Publish | None = None) -> bool:
        own = self.table.entries
        if not self.is_whole:  # then those of older files are in memory, too
            own = own[max(0, len(own) - self.own) :]
        summary = AppendSummary.of(own)
        data = encode_opening(header, self.table, summary, start, self.holder)
        path = self.path_of(header.position)
        won = (publish or self._files.publish)(path, data)
        if self.number < 0:
            return won and self.history.numbers() == [header.position]
        # Else the name was free because others had used and dropped it: a stray.
        return won and os.path.exists(self._newest)
