"""The index of a partition in an object storage: heads, and the parts that they name.

The n-th head is the object ``heads/<n>``, created by a conditional put, and never changes: it says
where the partition begins, and has the entries of all appends up to an offset. Whatever is not an
append is one more head: a seal, a trim, a compaction. Appends behind the newest head are found
one after the other, each by its offset; see ``object_log``.

Layout: entries of 128 bytes, as in the index of a file bus. First the header (``first_offset``:
where the partition begins, ``span``: up to where, ``segment``: up to where it is compacted,
``position``: the number, ``length``: the number of the head with the last compaction, ``rows``: how
many entries follow). Then the last append of each producer, the parts, and the entries.
A part is an object of older entries, so that a head of a long partition stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headrace.bus.index_history import AppendSummary
from headrace.bus.index_table import (
    CARRIED,
    COMPACTED,
    ENTRY,
    HEADER,
    Entries,
    Entry,
    EntryTable,
    next_offsets,
    segment_begins,
    verified_entries,
)
from headrace.errors import CorruptDataError

PACKED = 8
"""Flag of an append that lies in an object with others, or in one that compaction wrote."""
PART = 9
_NONE: Entries = np.zeros(0, ENTRY)


class IndexPart(NamedTuple):
    """An object of entries: the offsets that they stand for, what they hold, and its name."""

    first: int
    end: int
    rows: int
    size: int
    min_time: int
    max_time: int
    nonce: int

    @property
    def name(self) -> str:
        """The name of the object."""
        return f"{self.first:020d}-{self.nonce:08x}.index"

    @classmethod
    def of(cls, entries: Entries, nonce: int) -> IndexPart:
        """Return the part that holds some entries, none of them compacted."""
        first, end = int(entries["first_offset"][0]), int(next_offsets(entries)[-1])
        return cls(first, end, int(entries["rows"].sum()), *AppendSummary.of(entries), nonce)

    @classmethod
    def read(cls, entry: Entry) -> IndexPart:
        """Return a part that a head names."""
        first, end = entry.first_offset, entry.first_offset + entry.span
        times = entry.min_time, entry.max_time
        return cls(first, end, entry.rows, entry.length, *times, entry.nonce)

    def entry(self, partition: int) -> Entry:
        """Return how a head names it."""
        return Entry(
            PART,
            0,
            self.first,
            self.rows,
            self.first,
            self.nonce,
            partition,
            0,
            self.size,
            self.min_time,
            self.max_time,
            span=self.end - self.first,
        )


class Head(NamedTuple):
    """What is known of a partition up to an offset.

    ``begin`` is the first offset that is kept, ``upto`` where the next append behind it begins.
    Entries below ``compacted`` are compacted ones; ``holder`` numbers the last compaction.
    """

    number: int = -1
    begin: int = 0
    upto: int = 0
    compacted: int = 0
    holder: int = -1
    parts: tuple[IndexPart, ...] = ()
    entries: Entries = _NONE
    carried: Entries = _NONE

    @property
    def first(self) -> int:
        """The offset at which the entries of the head itself begin."""
        return self.parts[-1].end if self.parts else self.begin

    def encode(self, partition: int) -> bytes:
        """Return the bytes of the object."""
        count = len(self.carried) + len(self.parts) + len(self.entries)
        header = Entry(
            HEADER,
            0,
            self.begin,
            count,
            self.compacted,
            0,
            partition,
            self.number,
            self.holder,
            span=self.upto,
        )
        parts = [part.entry(partition).pack() for part in self.parts]
        pieces = [header.pack(), self.carried.tobytes(), *parts, self.entries.tobytes()]
        return b"".join(pieces)

    @classmethod
    def decode(cls, data: bytes, number: int, origin: str, partition: int) -> Head:
        """Read a head.

        Raises:
            CorruptDataError: it is damaged, or another.
        """
        found = whole_entries(data, origin, partition)
        header = Entry.at(found, 0) if len(found) else None
        if header is None or (header.kind, header.position, header.rows + 1) != (
            HEADER,
            number,
            len(found),
        ):
            raise CorruptDataError(
                f"{origin} is damaged: expected head {number} of the index", file=origin
            )
        kinds = found["kind"]
        parts = [
            IndexPart.read(Entry.at(found, at)) for at in np.flatnonzero(kinds == PART).tolist()
        ]
        is_entry = ~np.isin(kinds, (HEADER, CARRIED, PART))
        return cls(
            number,
            header.first_offset,
            header.span,
            header.segment,
            header.length,
            tuple(parts),
            found[is_entry],
            found[kinds == CARRIED],
        )

    def table(self, history: PartHistory) -> EntryTable:
        """Return a table that appends behind the head can be added to."""
        table = EntryTable()
        table.rows, table.bytes = history.stored(self.begin)
        table.load(self.entries, self.first, self.upto, begin=self.begin, compacted=self.compacted)
        table.producers.note(self.carried)
        return table


def whole_entries(data: bytes, origin: str, partition: int) -> Entries:
    """Return the entries of an object, which was written in one step and has no torn end.

    Raises:
        CorruptDataError: it is damaged.
    """
    found = verified_entries(data, 0, origin, partition)
    if found.nbytes != len(data):
        raise CorruptDataError(
            f"{origin} is damaged at byte {found.nbytes}: it has {len(data)} bytes", file=origin
        )
    return found


class PartHistory:
    """The entries of a partition that are in parts; an ``EntryHistory``.

    Args:
        parts: of a head, in order.
        load: returns the entries of a part; raises ``SegmentReplacedError`` once it is gone.
    """

    def __init__(self, parts: Sequence[IndexPart], load: Callable[[IndexPart], Entries]) -> None:
        self._parts, self._load = parts, load

    def blocks(self, start: int, stop: int) -> Iterator[Entries]:
        """Yield the entries that stand for some offsets, in order."""
        for part in self._within(start, stop):
            yield self._cut(part, start, stop)

    def blocks_back(self, start: int, stop: int) -> Iterator[Entries]:
        """Yield the same arrays from the last to the first."""
        for part in reversed(self._within(start, stop)):
            yield self._cut(part, start, stop)

    def times(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the range of event times of each part, and the offsets that it stands for."""
        for part in self._within(start, stop):
            low, high = part.min_time, part.max_time
            if part.first < start or part.end > stop:
                _, low, high = AppendSummary.of(self._cut(part, start, stop))
            yield low, high, max(part.first, start), min(part.end, stop)

    def stored(self, begin: int) -> tuple[int, int]:
        """Return the rows and bytes from an offset on."""
        rows, size = sum(p.rows for p in self._parts), sum(p.size for p in self._parts)
        if self._parts and self._parts[0].first < begin:
            part = self._parts[0]
            held = self._cut(part, begin, part.end)
            rows += int(held["rows"].sum()) - part.rows
            size += int(held["length"].sum()) - part.size
        return rows, size

    def _within(self, start: int, stop: int) -> list[IndexPart]:
        return [part for part in self._parts if part.end > start and part.first < stop]

    def _cut(self, part: IndexPart, start: int, stop: int) -> Entries:
        entries = self._load(part)
        nexts = next_offsets(entries)
        low = int(np.searchsorted(nexts, start, side="right"))
        high = int(np.searchsorted(entries["first_offset"], stop, side="left"))
        return entries[low:high]


def from_offset(entries: Entries, begin: int) -> Entries:
    """Return the entries that stand for an offset and what is behind it."""
    return entries[int(np.searchsorted(next_offsets(entries), begin, side="right")) :]


def with_parts(
    head: Head, most_entries: int, nonce: int
) -> tuple[Head, tuple[IndexPart, Entries] | None]:
    """Move the older half of a head's entries into a part where they are too many.

    Args:
        head: that is to be written.
        most_entries: which a head may have; twice as many are let be until then.
        nonce: for the part's name.

    Returns:
        The head, and the part that has to be written before it, with its entries.
    """
    is_compacted = bool((head.entries["kind"] == COMPACTED).any())
    if len(head.entries) < 2 * most_entries or is_compacted:
        return head, None
    begins = segment_begins(head.entries)  # an object is named by a head, or by a part
    cut = int(begins[np.searchsorted(begins, most_entries)]) if begins[-1] >= most_entries else 0
    if not cut:
        return head, None
    older, rest = head.entries[:cut], head.entries[cut:]
    part = IndexPart.of(older, nonce)
    return head._replace(parts=(*head.parts, part), entries=rest), (part, older)
