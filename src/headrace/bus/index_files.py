"""The index files of a partition as a reader sees them: read once, then only what is new.

A file ``index-000000.log`` is a header entry and the entries of appends, and it only grows.
When its tail is torn, or an end entry closes it, an appender begins the next file, whose
header tells how many entries of the one before count; what lies behind those is never read.

Where a partition was trimmed or compacted, an index file has, behind its header, the last
sequences of all producers, compacted entries if there are any, and a trim entry; files before
it may be gone. Whoever does it removes the oldest first, so a file that is there has all that
follow it.
"""

from __future__ import annotations

import os
import threading
from functools import cached_property
from pathlib import Path

from headrace.bus.entries import (
    CARRIED,
    COMPACTED,
    END,
    ENTRY_BYTES,
    HEADER,
    TRIM,
    Entries,
    Entry,
    EntryTable,
    View,
    verify,
)
from headrace.errors import CorruptDataError, UnavailableError
from headrace.files import Files

RESTARTS = 500


class _DroppedError(Exception):
    """The index file that was to be read next is gone, and later ones are there."""


class IndexFiles:
    """How far the index of a partition was read, and what it said. Safe for many threads."""

    def __init__(self, files: Files, place: str, partition: int) -> None:
        self._place = place
        self.partition = partition
        self.number = -1
        self.entries = 0
        self.is_torn = False
        self.is_closed = False
        self.table = EntryTable()
        self.trimmed_in = -1
        self._end_seen = 0
        self._prefix = f"{place}/index-"
        self._files = files
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
        return Path(self._name(number))

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number:06d}.log"  # a job may look at 27,000 in an epoch

    def refresh(self) -> None:
        """Read the entries that came since the last call.

        Raises:
            CorruptDataError: a damaged entry, or a gap; names file and position.
        """
        with self._lock:
            self._refresh()

    def view(self) -> View:
        """Read what is new and return all that is known."""
        with self._lock:
            self._refresh()
            return self.table.view()

    def grow(self, data: bytes, at: int) -> None:
        """Take over an append that the caller has just written as entry ``at`` of the file."""
        with self._lock:
            if self.entries == at:
                self._take(data, None)

    def files(self) -> list[int]:
        """Return the numbers of the index files that are there."""
        names = self._files.names(self._place)
        return [int(name[6:12]) for name in names if name.startswith("index-")]

    def header(self, number: int) -> Entry:
        """Return the header of a file; the caller knows that it is not dropped meanwhile.

        Raises:
            CorruptDataError: it is damaged.
        """
        path = self.path_of(number)
        with open(path, "rb", buffering=0) as file:
            entries = verify(file.read(ENTRY_BYTES), 0, str(path), self.partition)
        if not len(entries) or entries["kind"][0] != HEADER:
            raise CorruptDataError(f"{path} is damaged at byte 0: no header", file=str(path))
        return Entry.unpack(entries[0].tobytes())

    def _refresh(self) -> None:
        for _ in range(RESTARTS):
            try:
                self._follow()
                break
            except _DroppedError:
                self._restart()
        else:
            raise UnavailableError(
                f"index files of {self.folder} were dropped faster than they can be read; try again"
            )
        first = self.table.first_known
        if self.table.next_offset < self._end_seen or self.table.begin < first:
            raise CorruptDataError(
                f"{self.folder} has lost index entries: found offsets {first} to "
                f"{self.table.next_offset} of a partition that begins at {self.table.begin} and "
                f"ends at {self._end_seen} or later",
                file=str(self.folder),
            )
        self._end_seen = self.table.next_offset

    def _restart(self) -> None:
        self.number, self.entries = -1, 0
        self.is_torn = self.is_closed = False
        self.table, self.trimmed_in = EntryTable(), -1

    def _follow(self) -> None:
        last = -1
        if self.number < 0:
            numbers = self.files()
            if not numbers:
                return
            self.number, last = numbers[0], numbers[-1]
        self._read_new()
        while self.is_torn or self.is_closed:
            if not self.path_of(self.number + 1).exists():
                if not self.path.exists():
                    raise _DroppedError
                break
            self._read_new()
            before, self.entries = self.entries, 0
            self.number += 1
            self.is_torn = self.is_closed = False
            self._read_new(before)
        if self.number < last:
            raise CorruptDataError(
                f"{self.path} is damaged at byte {self.entries * ENTRY_BYTES}: it ends without an "
                f"end entry, though index file {last} follows it",
                file=str(self.path),
            )

    def _read_new(self, before: int | None = None) -> None:
        begin = self.entries * ENTRY_BYTES
        try:
            name = self._name(self.number)
            size, data = os.stat(name).st_size, b""
            if size > begin:
                with open(name, "rb", buffering=0) as file:
                    data = os.pread(file.fileno(), size - begin, begin)
        except FileNotFoundError as error:
            if any(number > self.number for number in self.files()):
                raise _DroppedError from None
            raise CorruptDataError(f"index {self.path} is missing", file=str(self.path)) from error
        if size < begin:
            raise CorruptDataError(
                f"{self.path} has shrunk: found {size} bytes, expected at least {begin}",
                file=str(self.path),
            )
        if data:
            self._take(data, before)
        if not self.entries:
            raise CorruptDataError(
                f"{self.path} is damaged at byte 0: no header", file=str(self.path)
            )

    def _take(self, data: bytes, before: int | None) -> None:
        origin = self._name(self.number)
        entries = verify(data, self.entries * ENTRY_BYTES, origin, self.partition)
        taken = len(entries)
        if not self.entries and taken:
            header = Entry.unpack(entries[0].tobytes())
            self._check_header(header, before)
            entries = self._take_trim(header, entries[1:])
        if len(entries) and entries["kind"][-1] == END:
            self.is_closed = True
            entries = entries[:-1]
        self.table.extend(entries, origin)
        self.entries += taken
        self.is_torn = taken * ENTRY_BYTES < len(data)

    def _take_trim(self, header: Entry, entries: Entries) -> Entries:
        """Take what lies between the header and the appends, which are returned."""
        if not header.rows:
            return entries
        count, kinds = header.rows, entries["kind"][: header.rows]
        carried = int((kinds[:-1] == CARRIED).sum())
        expected = [CARRIED] * carried + [COMPACTED] * (count - carried - 1) + [TRIM]
        if kinds.tolist() != expected:
            raise CorruptDataError(
                f"{self.path} is damaged: found entries of kinds {kinds.tolist()} behind its "
                f"header, expected {count}, the last one a trim",
                file=str(self.path),
            )
        self.table.carry(entries[:carried])
        if carried < count - 1:
            self.table.compact(entries[carried : count - 1], str(self.path))
        self.table.trim(int(entries["first_offset"][count - 1]), str(self.path))
        self.trimmed_in = self.number
        return entries[count:]

    def _check_header(self, header: Entry, before: int | None) -> None:
        table, found = self.table, (header.kind, header.position)
        if found != (HEADER, self.number):
            raise CorruptDataError(
                f"{self.path} begins with the wrong header: found kind and number {found}, "
                f"expected {(HEADER, self.number)}",
                file=str(self.path),
            )
        if before is None:
            table.start_at(header.first_offset)
        elif (header.length, header.first_offset) != (before, table.next_offset):
            raise CorruptDataError(
                f"{self.path} does not follow the index file before it: found {before} entries up "
                f"to offset {table.next_offset}, expected {header.length} up to "
                f"{header.first_offset}",
                file=str(self.path),
            )
