"""The index of a partition: what an entry says, and all entries of a partition in memory.

One entry is one append. Its layout is fixed; ``index_files`` tells where entries lie on
disk, and docs/decisions/0002-bus-format.md why.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from headrace.errors import CorruptDataError

ENTRY_BYTES = 128
MAGIC = 0x31495248  # "HRI1"
HEADER, APPEND, END, TRIM, CARRIED, COMPACTED = 1, 2, 3, 4, 5, 6
ADOPTED, SEQUENCED = 1, 2
NO_TIME = -1
NO_PRODUCER = bytes(16)

_LAYOUT = struct.Struct("<IHHqqqIIqqqqq16sqq8x")
_SUM = struct.Struct("<Q")
ENTRY = np.dtype(
    [
        ("magic", "<u4"),
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("first_offset", "<i8"),
        ("rows", "<i8"),
        ("segment", "<i8"),
        ("nonce", "<u4"),
        ("partition", "<u4"),
        ("position", "<i8"),
        ("length", "<i8"),
        ("min_time", "<i8"),
        ("max_time", "<i8"),
        ("appended_ms", "<i8"),
        ("producer", "<u8", (2,)),
        ("sequence", "<i8"),
        ("span", "<i8"),
        ("reserved", "<u8"),
        ("checksum", "<u8"),
    ]
)
Entries = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


class Entry(NamedTuple):
    """One entry of an index.

    An append: ``rows`` rows from ``first_offset`` on, in the frames of ``length`` bytes at
    ``position`` of the segment named by ``segment`` (its first offset) and ``nonce``. The
    header of an index file: ``position`` is the number of the file, ``length`` how many
    entries of the file before it count, ``first_offset`` where it begins, ``rows`` how many
    entries right behind it are no appends. Of these, a carried entry holds the last sequence
    of a producer, and a trim entry in ``first_offset`` where the partition begins from now on;
    compacted entries stand for all appends below the end of the last of them. Such an entry
    holds what is left of the ``span`` offsets from ``first_offset`` on: ``rows`` rows, maybe
    none. An end entry closes a file.
    """

    kind: int
    flags: int
    first_offset: int
    rows: int
    segment: int
    nonce: int
    partition: int
    position: int
    length: int
    min_time: int = NO_TIME
    max_time: int = NO_TIME
    appended_ms: int = 0
    producer: bytes = NO_PRODUCER
    sequence: int = 0
    span: int = 0

    @property
    def next_offset(self) -> int:
        """The offset after those that an append, or a compacted entry, stands for."""
        return self.first_offset + (self.span if self.kind == COMPACTED else self.rows)

    def pack(self) -> bytes:
        """Return the 128 bytes of the entry, checksum included."""
        body = _LAYOUT.pack(MAGIC, *self)
        return body + _SUM.pack(xxh3_64_intdigest(body))

    @classmethod
    def unpack(cls, data: bytes) -> Entry:
        """Read an entry whose checksum was verified."""
        return cls(*_LAYOUT.unpack(data[:-8])[1:])


def verify(data: bytes, begin: int, origin: str, partition: int) -> Entries:
    """Return the whole entries of bytes of an index file, up to a torn tail.

    A torn tail is an entry that is cut, or zeros up to the end.

    Args:
        data: bytes of the file from ``begin`` to its end.
        begin: for the error.
        origin: name of the file, for the error.
        partition: that the entries must be of.

    Raises:
        CorruptDataError: an entry that does not match its checksum, or is of another place.
    """
    whole = len(data) // ENTRY_BYTES
    entries = np.frombuffer(data, ENTRY, whole)
    view = memoryview(data)
    starts = range(0, whole * ENTRY_BYTES, ENTRY_BYTES)
    sums = (xxh3_64_intdigest(view[at : at + ENTRY_BYTES - 8]) for at in starts)
    good = entries["checksum"] == np.fromiter(sums, np.uint64, whole)
    good &= (entries["magic"] == MAGIC) & (entries["partition"] == partition)
    if good.all():
        return entries
    bad = int(np.argmin(good))
    if any(data[bad * ENTRY_BYTES :]):
        raise CorruptDataError(
            f"{origin} is damaged at byte {begin + bad * ENTRY_BYTES}: an index entry does not "
            f"match its checksum, or is not of partition {partition}",
            file=origin,
        )
    return entries[:bad]


class View(NamedTuple):
    """The entries of a partition at one moment; never changes.

    ``nexts`` is each entry's next offset, ``latest`` the greatest event time up to each.
    Entries below ``compacted`` are compacted ones.
    """

    begin: int
    next_offset: int
    entries: Entries
    nexts: Int64s
    latest: Int64s
    compacted: int = 0

    def entry(self, index: int) -> Entry:
        """Return one entry."""
        return Entry.unpack(self.entries[index].tobytes())

    def locate(self, offset: int) -> int:
        """Return the index of the entry that holds an offset."""
        return int(np.searchsorted(self.nexts, offset, side="right"))

    def locate_time(self, time_ms: int) -> int:
        """Return the index of the first entry with an event time at or after the one given."""
        # What compactions left without a row has the time -1; no row is that old.
        return int(np.searchsorted(self.latest, max(time_ms, 0), side="left"))

    def find(self, producer: bytes, sequence: int) -> Entry | None:
        """Return the append of a producer under a sequence."""
        low, high = np.frombuffer(producer, "<u8")
        entries = self.entries
        same = (entries["sequence"] == sequence) & (entries["producer"][:, 0] == low)
        same &= (entries["producer"][:, 1] == high) & ((entries["flags"] & SEQUENCED) != 0)
        found = np.flatnonzero(same)
        return self.entry(int(found[0])) if len(found) else None


def next_offsets(entries: Entries) -> Int64s:
    """Return the next offset of each append or compacted entry."""
    covered = np.where(entries["kind"] == COMPACTED, entries["span"], entries["rows"])
    return np.asarray(entries["first_offset"] + covered, np.int64)


def segment_begins(entries: Entries) -> Int64s:
    """Return the index of the first entry of each segment."""
    is_other = np.ones(len(entries), bool)
    is_other[1:] = np.diff(entries["segment"]) != 0
    is_other[1:] |= entries["nonce"][1:] != entries["nonce"][:-1]
    return np.flatnonzero(is_other)


_NONE: Entries = np.zeros(0, ENTRY)
_NO_OFFSETS: Int64s = np.zeros(0, np.int64)


class EntryTable:
    """All entries of a partition, grown at the end by one thread at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.begin = 0
        self.next_offset = 0
        self.compacted = 0
        self.sequences: dict[bytes, int] = {}
        self._entries, self._nexts, self._latest = _NONE, _NO_OFFSETS, _NO_OFFSETS

    @property
    def first_known(self) -> int:
        """The first offset that an entry stands for; the end without entries."""
        return int(self._entries["first_offset"][0]) if self.count else self.next_offset

    def start_at(self, offset: int) -> None:
        """Set where the first append is expected."""
        self.next_offset = offset

    def extend(self, entries: Entries, origin: str) -> None:
        """Add entries, in order.

        Raises:
            CorruptDataError: their offsets do not follow those before without a gap.
        """
        if not len(entries):
            return
        nexts = entries["first_offset"] + entries["rows"]
        self._check_following(entries, nexts, origin)
        times = np.maximum.accumulate(entries["max_time"])
        end = self.count + len(entries)
        if self.count:
            self._reserve(end)
            self._entries[self.count : end] = entries
            self._nexts[self.count : end] = nexts
            self._latest[self.count : end] = np.maximum(times, self._latest[self.count - 1])
        else:
            self._entries, self._nexts, self._latest = entries, nexts, times
        self.count, self.next_offset = end, int(nexts[-1])
        self._note_sequences(entries)

    def _check_following(self, entries: Entries, nexts: Int64s, origin: str) -> None:
        befores = np.empty_like(nexts)
        befores[0], befores[1:] = self.next_offset, nexts[:-1]
        bad = (entries["first_offset"] != befores) | (entries["rows"] < 1)
        bad |= entries["kind"] != APPEND
        if bad.any():
            at = int(np.argmax(bad))
            raise CorruptDataError(
                f"{origin} has a gap: found an append at offset "
                f"{int(entries['first_offset'][at])}, expected {int(befores[at])}",
                file=origin,
            )

    def trim(self, begin: int, origin: str) -> None:
        """Forget the appends below an offset, at which one must begin or all must end.

        An offset below all that are known only moves ``begin``: they were dropped since, and
        a later trim must say so.

        Raises:
            CorruptDataError: an append that is known holds the offset, or none does.
        """
        if begin <= self.begin:
            return
        gone = int(np.searchsorted(self._nexts[: self.count], begin, side="right"))
        found = self._entries["first_offset"][gone] if gone < self.count else self.next_offset
        if not gone and found > begin:
            self.begin = begin
            return
        if found != begin:
            raise CorruptDataError(
                f"{origin} begins at offset {begin}, but an append begins at {int(found)}",
                file=origin,
            )
        self.begin = begin
        self.count -= gone
        # Views of before keep the arrays that they have.
        self._entries = self._entries[gone : gone + max(64, self.count)].copy()
        self._nexts = self._nexts[gone : gone + len(self._entries)].copy()
        self._latest = np.maximum.accumulate(self._entries["max_time"])

    def compact(self, compacted: Entries, origin: str) -> None:
        """Let compacted entries stand for all appends below the end of the last of them.

        Where appends behind that end are not known, a later compaction has replaced them and
        must say so; then only ``begin`` moves.

        Raises:
            CorruptDataError: they have a gap, or an append that is known goes over their end.
        """
        nexts = next_offsets(compacted)
        begin, end = int(compacted["first_offset"][0]), int(nexts[-1])
        gone = int(np.searchsorted(self._nexts[: self.count], end, side="right"))
        found = self._entries["first_offset"][gone] if gone < self.count else self.next_offset
        if not gone and found > end:
            self.begin = max(self.begin, begin)
            return
        if found != end or (compacted["first_offset"][1:] != nexts[:-1]).any():
            raise CorruptDataError(
                f"{origin} has compacted entries of offsets {begin} to {end} with a gap, or an "
                f"append that begins at {int(found)} follows them",
                file=origin,
            )
        # Views of before keep the arrays that they have.
        self._entries = np.concatenate([compacted, self._entries[gone : self.count]])
        self._nexts = np.concatenate([nexts, self._nexts[gone : self.count]])
        self._latest = np.maximum.accumulate(self._entries["max_time"])
        self.count = len(self._entries)
        self.begin, self.compacted = begin, end

    def carry(self, entries: Entries) -> None:
        """Take over the last sequences of producers."""
        self._note_sequences(entries)

    def carried(self, partition: int) -> list[Entry]:
        """Return an entry for the last sequence of each producer."""
        bare = Entry(CARRIED, SEQUENCED, 0, 0, 0, 0, partition, 0, 0)
        return [
            bare._replace(producer=producer, sequence=sequence)
            for producer, sequence in sorted(self.sequences.items())
        ]

    def _note_sequences(self, entries: Entries) -> None:
        sequenced = entries[(entries["flags"] & SEQUENCED) != 0]
        if not len(sequenced):
            return
        names = np.ascontiguousarray(sequenced["producer"]).view("V16").ravel().tolist()
        for name, sequence in zip(names, sequenced["sequence"].tolist(), strict=True):
            self.sequences[name] = max(sequence, self.sequences.get(name, sequence))

    def _reserve(self, count: int) -> None:
        capacity = len(self._entries)
        if count <= capacity:
            return
        capacity = max(count, 2 * capacity)
        for name in ("_entries", "_nexts", "_latest"):
            old = getattr(self, name)
            grown = np.zeros(capacity, old.dtype)
            grown[: self.count] = old[: self.count]
            setattr(self, name, grown)

    def view(self) -> View:
        """Return what is known now."""
        count = self.count
        return View(
            self.begin,
            self.next_offset,
            self._entries[:count],
            self._nexts[:count],
            self._latest[:count],
            self.compacted,
        )
