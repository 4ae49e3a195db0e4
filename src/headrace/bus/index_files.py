"""The index files of a partition as a reader sees them: read once, then only what is new.

A file ``index-000000.log`` is a header entry and the entries of appends, and it only grows.
When its tail is torn, or an end entry closes it, an appender begins the next file, whose
header tells how many entries of the one before count; what lies behind those is never read.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from headrace.bus.entries import END, ENTRY_BYTES, HEADER, Entry, EntryTable, View, verify
from headrace.errors import CorruptDataError
from headrace.files import Files


class IndexFiles:
    """How far the index of a partition was read, and what it said. Safe for many threads."""

    def __init__(self, files: Files, folder: Path, partition: int) -> None:
        self.folder = folder
        self.partition = partition
        self.number = -1
        self.entries = 0
        self.is_torn = False
        self.is_closed = False
        self.table = EntryTable()
        self._files = files
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The index file that is read now."""
        return self.path_of(self.number)

    def path_of(self, number: int) -> Path:
        """Return the path of an index file."""
        return self.folder / f"index-{number:06d}.log"

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

    def _refresh(self) -> None:
        if self.number < 0:
            names = [name for name in self._files.names(self.folder) if name.startswith("index-")]
            if not names:
                return
            self.number = int(names[0][6:12])
        self._read_new()
        while (self.is_torn or self.is_closed) and self.path_of(self.number + 1).exists():
            self._read_new()
            before, self.entries = self.entries, 0
            self.number += 1
            self.is_torn = self.is_closed = False
            self._read_new(before)

    def _read_new(self, before: int | None = None) -> None:
        begin = self.entries * ENTRY_BYTES
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError as error:
            raise CorruptDataError(f"index {self.path} is missing", file=str(self.path)) from error
        if size < begin:
            raise CorruptDataError(
                f"{self.path} has shrunk: found {size} bytes, expected at least {begin}",
                file=str(self.path),
            )
        if size > begin:
            with open(self.path, "rb", buffering=0) as file:
                self._take(os.pread(file.fileno(), size - begin, begin), before)
        if not self.entries:
            raise CorruptDataError(
                f"{self.path} is damaged at byte 0: no header", file=str(self.path)
            )

    def _take(self, data: bytes, before: int | None) -> None:
        origin = str(self.path)
        entries = verify(data, self.entries * ENTRY_BYTES, origin, self.partition)
        taken = len(entries)
        if not self.entries and taken:
            self._check_header(Entry.unpack(entries[0].tobytes()), before)
            entries = entries[1:]
        if len(entries) and entries["kind"][-1] == END:
            self.is_closed = True
            entries = entries[:-1]
        self.table.extend(entries, origin)
        self.entries += taken
        self.is_torn = taken * ENTRY_BYTES < len(data)

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
