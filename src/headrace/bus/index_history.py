"""How an index file begins, and the index files before the newest one, read in pages.

Behind its header, of kind ``OPENING``, an index file repeats what an opener must know: the last
appends of producers, compacted entries, and where the partition begins. So no older file is needed
to append. Older files do not change; how many of their entries count, the file after each says.

A process may freeze with the partition's lock in its hands. Another one then publishes a header of
kind ``BARRIER`` and behind it an opening that says how many entries of the file before the barrier
count; both by link, so that of several one wins. See docs/decisions/0002-bus-format.md.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headrace.bus.index_table import (
    BARRIER,
    COMPACTED,
    EARLIEST,
    END,
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    LATEST,
    OPENING,
    TRIM,
    Entries,
    Entry,
    EntryTable,
    OpenSegment,
    check_gaps,
    next_offsets,
    verified_entries,
)
from headrace.bus.log import SegmentReplacedError
from headrace.errors import CorruptDataError
from headrace.files import Files

SEALS = 1
"""Flag of a header that says which entries before a barrier count."""
_NOTHING = Entry(TRIM, 0, 0, 0, 0, 0, 0, 0, 0)


class AppendSummary(NamedTuple):
    """What appends hold: bytes of frames, least and greatest event time.

    Without rows the least is above the greatest.
    """

    bytes: int
    min_time: int
    max_time: int

    @classmethod
    def of(cls, entries: Entries) -> AppendSummary:
        """Sum up appends."""
        timed = entries[entries["rows"] > 0]
        low = int(timed["min_time"].min(initial=LATEST))
        high = int(timed["max_time"].max(initial=EARLIEST))
        return cls(int(entries["length"].sum()), low, high)


class IndexStart(NamedTuple):
    """Where a partition begins by a new index file, and what is kept from there on.

    ``compacted`` are entries that the file has, for what is before the others; empty: those that
    there are stay in another file.
    """

    begin: int
    rows: int
    bytes: int
    compacted: Sequence[Entry] = ()


def encode_opening(
    header: Entry, table: EntryTable, summary: AppendSummary, start: IndexStart, holder: int
) -> bytes:
    """Return the bytes that an index file begins with.

    Args:
        header: its number, its first offset, its partition, the time, and how many entries of the
            file before it count.
        table: what is known of the partition.
        summary: of the appends of the file before.
        start: what is new.
        holder: number of the file that has the compacted entries.
    """
    begin, rows, size, compacted = start
    upto = compacted[-1].next_offset if compacted else table.compacted
    if compacted:
        holder = header.position
    elif upto <= begin:
        holder = -1
    state = _NOTHING._replace(
        first_offset=begin,
        rows=rows,
        partition=header.partition,
        length=size,
        sequence=holder,
        span=upto,
    )
    if table.open is not None and max(begin, upto) < table.next_offset:
        segment, nonce, end, first_ms = table.open
        state = state._replace(segment=segment, nonce=nonce, position=end, appended_ms=first_ms)
    entries = [*table.producers.carried(header.partition), *compacted, state]
    header = header._replace(
        kind=OPENING,
        rows=len(entries),
        min_time=summary.min_time,
        max_time=summary.max_time,
        sequence=summary.bytes,
    )
    return b"".join(entry.pack() for entry in [header, *entries])


def decode_opening(header: Entry, state: Entry) -> EntryTable:
    """Return what a partition is by the first and the last entry of ``encode_opening``."""
    table = EntryTable()
    table.start_at(header.first_offset)
    table.begin, table.compacted = state.first_offset, state.span
    table.rows, table.bytes = state.rows, state.length
    if state.position:
        table.open = OpenSegment(state.segment, state.nonce, state.position, state.appended_ms)
    return table


PAGE = 128
_PAGES = 2
_NONE: Entries = np.zeros(0, ENTRY)


class _File(NamedTuple):
    """An index file that another follows: its number, and which of its entries are appends."""

    number: int
    begin: int
    end: int
    first_offset: int
    next_offset: int


class IndexHistory:
    """The index files of a partition below one of them; safe for many threads under the GIL.

    Args:
        files: the file system.
        prefix: of the paths of index files, up to the number.
        partition: number of the partition.
    """

    def __init__(self, files: Files, prefix: str, partition: int) -> None:
        self._files, self._prefix, self._partition = files, prefix, partition
        self._headers: dict[int, Entry] = {}
        self._summaries: dict[int, AppendSummary] = {}
        self._pages: dict[tuple[int, int], Entries] = {}
        self._compacted: tuple[int, Entries] = -1, _NONE

    def name(self, number: int) -> str:
        """Return the path of an index file."""
        return f"{self._prefix}{number:06d}.log"  # a job may look at 27,000 in an epoch

    def numbers(self, *, with_strays: bool = False) -> list[int]:
        """Return the numbers of the index files: without a gap, up to the newest.

        A process that froze may link a file again under a number that was dropped meanwhile. Such
        a stray is left out; one right before the oldest is not, and nobody needs what it has.
        """
        folder, _, name = self._prefix.rpartition("/")
        found = [int(n[6:12]) for n in self._files.names(folder) if n.startswith(name)]
        begin = len(found) - 1
        while begin > 0 and found[begin - 1] == found[begin] - 1:
            begin -= 1
        return found if with_strays else found[max(0, begin) :]

    def header(self, number: int) -> Entry:
        """Return the header of a file, of which there is one whole entry or none.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptDataError: it is damaged, or of another file.
        """
        header = self._headers.get(number)
        if header is None:
            path = self.name(number)
            with open(path, "rb", buffering=0) as file:
                entries = verified_entries(file.read(ENTRY_BYTES), 0, path, self._partition)
            if not len(entries):
                raise CorruptDataError(f"{path} is damaged at byte 0: no header", file=path)
            header = Entry.at(entries, 0)
            if header.kind not in {HEADER, OPENING, BARRIER} or header.position != number:
                raise CorruptDataError(
                    f"{path} begins with the wrong header: found kind {header.kind} and number "
                    f"{header.position}, expected kind {HEADER}, {OPENING} or {BARRIER} and number "
                    f"{number}",
                    file=path,
                )
            self._headers[number] = header
        return header

    def first_offset(self, number: int) -> int:
        """Return the offset at which a file begins; -1 where it is gone."""
        try:
            header = self.header(number)
            return (self.header(number + 1) if header.kind == BARRIER else header).first_offset
        except FileNotFoundError:
            return -1

    def behind(self, number: int) -> tuple[Entry, int]:
        """Return the header that follows a file, and how many entries of the file it counts.

        Raises:
            FileNotFoundError: none follows.
        """
        header = self.header(number + 1)
        if header.kind == BARRIER:
            header = self.header(number + 2)
            return header, header.span
        return header, header.length

    def forget(self, below: int | None = None) -> None:
        """Forget what is known of files that are gone, or of all."""
        for held in (self._headers, self._summaries):
            for number in [number for number in held if below is None or number < below]:
                del held[number]

    def compacted(self, number: int) -> Entries:
        """Return the compacted entries that a file begins with."""
        if self._compacted[0] != number:
            entries = self.read(number, 1, 1 + self.header(number).rows)
            self._compacted = number, entries[entries["kind"] == COMPACTED]
        return self._compacted[1]

    def files(self, start: int, stop: int, below: int) -> Iterator[_File]:
        """Yield the files before one that hold appends of some offsets, in order."""
        first = bisect_right(range(1, below), start, key=self.first_offset)
        for number in range(first, below):
            file = self._file(number)
            if file is not None and file.first_offset >= stop:
                return
            if file is not None and file.next_offset > start:
                yield file

    def _file(self, number: int) -> _File | None:
        try:
            header = self.header(number)
            if header.kind == BARRIER:
                return None
            behind, count = self.behind(number)
        except FileNotFoundError:
            raise self._gone(number) from None
        first, following = header.first_offset, behind.first_offset
        return _File(number, 1 + header.rows, count, first, following)

    def pages(self, file: _File, start: int, stop: int) -> Iterator[Entries]:
        """Yield the appends of a file that stand for some offsets, in order."""
        page = self._page_of(file, start)
        expected = -1
        while page * PAGE < file.end:
            entries = self._page(file, page)
            page += 1
            if not len(entries):
                continue
            if expected not in {-1, first := int(entries["first_offset"][0])}:
                raise CorruptDataError(
                    f"{self.name(file.number)} has a gap: found an append at offset {first}, "
                    f"expected {expected}",
                    file=self.name(file.number),
                )
            nexts = next_offsets(entries)
            expected = int(nexts[-1])
            low = int(np.searchsorted(nexts, start, side="right"))
            high = int(np.searchsorted(nexts, stop, side="left")) + 1
            if low < min(high, len(entries)):
                yield entries[low:high]
            if expected >= stop:
                return

    def pages_back(self, file: _File, start: int) -> Iterator[Entries]:
        """Yield the appends of a file from the last to the first, down to an offset."""
        for page in reversed(range(file.begin // PAGE, (file.end - 1) // PAGE + 1)):
            entries = self._page(file, page)
            if len(entries):
                yield entries
                if int(entries["first_offset"][0]) <= start:
                    return

    def _page_of(self, file: _File, offset: int) -> int:
        first, last = file.begin // PAGE, max(file.begin, file.end - 1) // PAGE

        def first_offset(page: int) -> int:
            at = max(page * PAGE, file.begin)
            return int(self.read(file.number, at, at + 1)["first_offset"][0])

        return first + bisect_right(range(first + 1, last + 1), offset, key=first_offset)

    def _page(self, file: _File, page: int) -> Entries:
        """Return the appends of a page, which is verified whole: it may begin with the header."""
        key = file.number, page
        entries = self._pages.get(key)
        if entries is None:
            begin, end = page * PAGE, min((page + 1) * PAGE, file.end)
            entries = self.read(file.number, begin, end)[max(0, file.begin - begin) :]
            if len(entries) and entries["kind"][-1] == END:
                entries = entries[:-1]
            if len(entries):
                nexts = entries["first_offset"] + entries["rows"]
                befores = np.append(entries["first_offset"][:1], nexts[:-1])
                check_gaps(entries, befores, self.name(file.number))
            self._pages = {**dict(list(self._pages.items())[1 - _PAGES :]), key: entries}
        return entries

    def read(
        self, number: int, begin: int, end: int, where: str = "that count for the file after it"
    ) -> Entries:
        """Return entries of a file, verified.

        Raises:
            SegmentReplacedError: it was dropped.
            CorruptDataError: it is damaged, or ends before.
        """
        path, at = self.name(number), begin * ENTRY_BYTES
        try:
            with open(path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), (end - begin) * ENTRY_BYTES, at)
        except FileNotFoundError:
            raise self._gone(number) from None
        entries = verified_entries(data, at, path, self._partition)
        if len(entries) < end - begin:
            raise CorruptDataError(
                f"{path} is damaged at byte {at + len(entries) * ENTRY_BYTES}: found "
                f"{begin + len(entries)} entries, expected {end} {where}",
                file=path,
            )
        return entries

    def _gone(self, number: int) -> Exception:
        numbers = self.numbers()
        if numbers and numbers[0] < number < numbers[-1]:
            path = self.name(number)
            return CorruptDataError(f"index {path} is missing", file=path)
        return SegmentReplacedError()

    def summary(self, file: _File) -> AppendSummary:
        """Return what all appends of a file hold; mostly from the file after it."""
        if file.number not in self._summaries:
            behind, _ = self.behind(file.number)
            if behind.kind == OPENING:
                found = AppendSummary(behind.sequence, behind.min_time, behind.max_time)
            else:
                pages = list(self.pages(file, file.first_offset, file.next_offset))
                found = AppendSummary.of(np.concatenate(pages) if pages else _NONE)
            self._summaries[file.number] = found
        return self._summaries[file.number]


class OlderEntries(NamedTuple):
    """The entries of a partition before its newest index file, as they were at one moment.

    ``number`` is that of the newest file, ``holder`` of the one that has the compacted entries.
    """

    history: IndexHistory
    number: int
    holder: int
    compacted: int

    def blocks(self, start: int, stop: int) -> Iterator[Entries]:
        """Yield the entries that stand for some offsets, in order, in arrays of any length."""
        if start < self.compacted:
            entries = self.history.compacted(self.holder)
            nexts = next_offsets(entries)
            low = int(np.searchsorted(nexts, start, side="right"))
            high = int(np.searchsorted(nexts, stop, side="left")) + 1
            if low < min(high, len(entries)):
                yield entries[low:high]
            start = self.compacted
        if start < stop:
            for file in self.history.files(start, stop, self.number):
                yield from self.history.pages(file, start, stop)

    def blocks_back(self, start: int, stop: int) -> Iterator[Entries]:
        """Yield appends from the last to the first; compacted entries have no sequences."""
        start = max(start, self.compacted)
        if start < stop:
            for file in reversed(list(self.history.files(start, stop, self.number))):
                yield from self.history.pages_back(file, start)

    def times(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the range of event times of each file, and the offsets that it stands for."""
        if start < self.compacted:
            for block in self.blocks(start, min(stop, self.compacted)):
                found, nexts = AppendSummary.of(block[block["rows"] > 0]), next_offsets(block)
                first = int(block["first_offset"][0])
                yield found.min_time, found.max_time, first, int(nexts[-1])
            start = self.compacted
        if start >= stop:
            return
        for file in self.history.files(start, stop, self.number):
            if file.first_offset >= start:
                found = self.history.summary(file)
            else:
                found = AppendSummary.of(
                    np.concatenate(list(self.history.pages(file, start, stop)))
                )
            first = max(start, file.first_offset)
            yield found.min_time, found.max_time, first, file.next_offset
