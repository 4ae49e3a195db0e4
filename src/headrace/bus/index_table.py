"""The index of a partition in memory: entries, the producers' last appends, and the newest entries.

The layout of an entry is fixed (docs/decisions/0002-bus-format.md). ``EntryTable`` is grown by one
thread at a time; an ``IndexView`` is what it was at one moment. A memory bus holds all entries; a
file bus holds those of the newest index file, which begins with all that has to be known of the
files before it, and reads older ones in pages (``index_history``).

``ProducerState`` makes appends idempotent: the last append of each producer. Of each job the last
lineage stays for however long the job stands still; of other producers the last ``KEPT``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from headrace.errors import CorruptDataError

ENTRY_BYTES = 128
MAGIC = 0x31495248  # "HRI1"
HEADER, APPEND, END, TRIM, CARRIED, COMPACTED, OPENING, BARRIER = 1, 2, 3, 4, 5, 6, 7, 8
ADOPTED, SEQUENCED, OF_JOB = 1, 2, 4
NO_TIME = -1
"""Of a stream without event times; others have times before 1970, too."""
EARLIEST, LATEST = -(2**63), 2**63 - 1
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
Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


class Entry(NamedTuple):
    """One entry of an index.

    An append: ``rows`` rows from ``first_offset`` on, in the frames of ``length`` bytes at
    ``position`` of the segment named by ``segment`` (its first offset) and ``nonce``; where it is
    a job's own, ``span`` stands for the job. The header of an index file: ``position`` is the
    number of the file, ``length`` how many entries of the file before it count, ``first_offset``
    where it begins, ``rows`` how many entries right behind it are no appends. Of these, a carried
    entry holds the last sequence of a producer, and a trim entry in ``first_offset`` where the
    partition begins from now on; compacted entries stand for all appends below the end of the
    last of them. Such an entry holds what is left of the ``span`` offsets from ``first_offset``
    on: ``rows`` rows, maybe none. An end entry closes a file. An opening and a barrier are headers,
    too: what else they, and carried and trim entries behind them, hold, ``index_history`` says.
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

    @classmethod
    def at(cls, entries: Entries, index: int) -> Entry:
        """Return one of some entries."""
        return cls.unpack(entries[index].tobytes())


def entries_of(made: Iterable[Entry]) -> Entries:
    """Return entries as an array, as ``verified_entries`` reads them."""
    return np.frombuffer(b"".join([one.pack() for one in made]), ENTRY)


def verified_entries(data: bytes, begin: int, origin: str, partition: int) -> Entries:
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
    sums = [xxh3_64_intdigest(view[at : at + ENTRY_BYTES - 8]) for at in starts]
    good = entries["checksum"] == np.array(sums, np.uint64)
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


def segment_spans(entries: Entries) -> Iterator[tuple[int, int, int]]:
    """Yield of each segment its first entry, the one after its last, and their bytes."""
    if len(entries):
        begins = segment_begins(entries)
        sizes = np.add.reduceat(entries["length"], begins)
        ends = [*begins[1:].tolist(), len(entries)]
        yield from zip(begins.tolist(), ends, sizes.tolist(), strict=True)


KEPT = 1000


class LastAppend(NamedTuple):
    """The last append of a producer: its sequence, and where it went unless that is unknown."""

    sequence: int
    first_offset: int = 0
    rows: int = 0
    job: int = 0


class ProducerState:
    """The last append of each producer, by digest."""

    def __init__(self) -> None:
        self._last: dict[bytes, LastAppend] = {}
        self._of_jobs: dict[int, bytes] = {}
        self._others: dict[bytes, None] = {}  # the one that appended last at the end

    def last(self, producer: bytes) -> LastAppend | None:
        """Return the last append of a producer; ``None`` when nothing is known of it."""
        return self._last.get(producer)

    def note(self, entries: Entries, *, is_old: bool = False) -> None:
        """Take over appends, or carried entries, in their order.

        Args:
            entries: of the index.
            is_old: they are of a file without an opening.
        """
        sequenced = entries[(entries["flags"] & SEQUENCED) != 0]
        if not len(sequenced):
            return
        names = np.ascontiguousarray(sequenced["producer"]).view("V16").ravel().tolist()
        columns = ("sequence", "first_offset", "rows", "flags", "span")
        values = zip(*[sequenced[column].tolist() for column in columns], strict=True)
        for name, (sequence, first, rows, flags, span) in zip(names, values, strict=True):
            job = span if flags & OF_JOB else 0
            if is_old:
                job = int.from_bytes(name[:8], "little") >> 1 or 1
            self._put(name, LastAppend(sequence, first, rows, job))

    def _put(self, name: bytes, last: LastAppend) -> None:
        held = self._last.get(name)
        if held is not None:
            if held.sequence > last.sequence:
                last = held._replace(job=last.job)
            job = last.job or held.job
            last = last._replace(job=job)
            if held.job != job:
                self._of_jobs.pop(held.job, None)
        self._others.pop(name, None)
        self._last[name] = last
        if last.job:
            before = self._of_jobs.get(last.job, name)
            if before != name:
                del self._last[before]
            self._of_jobs[last.job] = name
            return
        self._others[name] = None
        if len(self._others) > KEPT:
            oldest = next(iter(self._others))
            del self._others[oldest], self._last[oldest]

    def carried(self, partition: int) -> Iterator[Entry]:
        """Yield an entry for each producer, that the next index file begins with."""
        bare = Entry(CARRIED, SEQUENCED, 0, 0, 0, 0, partition, 0, 0)
        for producer in [*self._of_jobs.values(), *self._others]:
            last = self._last[producer]
            yield bare._replace(
                flags=SEQUENCED | (OF_JOB if last.job else 0),
                first_offset=last.first_offset,
                rows=last.rows,
                producer=producer,
                sequence=last.sequence,
                span=last.job,
            )


_NONE: Entries = np.zeros(0, ENTRY)
_LOOKED_AT = 1024
_NO_OFFSETS: Int64s = np.zeros(0, np.int64)


class EntryHistory(Protocol):
    """The entries of a partition that are not in memory."""

    def blocks(self, start: int, stop: int) -> Iterator[Entries]:
        """Yield the entries that stand for some offsets, in order, in arrays of any length."""
        ...

    def blocks_back(self, start: int, stop: int) -> Iterator[Entries]:
        """Yield the same arrays from the last to the first."""
        ...

    def times(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the range of event times of each file, and the offsets that it stands for."""
        ...


class IndexView(NamedTuple):
    """The entries of a partition at one moment; never changes.

    Entries below ``compacted`` are compacted ones. ``entries`` and ``nexts`` are those in memory,
    with the next offset of each; older ones are read by ``older``, by whose methods some of these
    raise ``SegmentReplacedError`` once the partition was trimmed or compacted: take a new view.
    ``first`` is the offset at which those in memory begin, ``older_rows`` and ``older_bytes`` are
    kept before it. ``holder`` is the number of the index file that has the compacted entries.
    """

    begin: int
    next_offset: int
    compacted: int
    entries: Entries
    nexts: Int64s
    first: int
    older_rows: int
    older_bytes: int
    older: EntryHistory | None
    holder: int

    @property
    def stored(self) -> tuple[int, int]:
        """The rows that are kept, and the bytes of their frames."""
        held = self.entries
        rows, size = int(held["rows"].sum()), int(held["length"].sum())
        return self.older_rows + rows, self.older_bytes + size

    def blocks(self, start: int | None = None, stop: int | None = None) -> Iterator[Entries]:
        """Yield the entries that stand for some offsets, all when left out, in order, in arrays."""
        start = self.begin if start is None else max(start, self.begin)
        stop = self.next_offset if stop is None else stop
        if self.older is not None and start < min(stop, self.first):
            yield from self.older.blocks(start, min(stop, self.first))
        if max(start, self.first) < stop:
            low = int(np.searchsorted(self.nexts, start, side="right"))
            high = int(np.searchsorted(self.nexts, stop, side="left")) + 1
            yield self.entries[low:high]

    def between(self, start: int, stop: int | None = None) -> Iterator[Entry]:
        """Yield the entries that stand for some offsets, in order."""
        for block in self.blocks(start, stop):
            for at in range(len(block)):
                yield Entry.at(block, at)

    def at(self, offset: int) -> Entry | None:
        """Return the entry that stands for an offset; ``None`` where there is none."""
        return next(self.between(offset, offset + 1), None)

    def first_late(self, time_ms: int) -> Entry | None:
        """Return the first entry with an event time at or after the one given."""
        if self.older is not None:
            for _, high, start, stop in self.older.times(self.begin, self.first):
                if high >= time_ms:
                    for block in self.older.blocks(start, stop):
                        late = _late(block, time_ms)
                        if len(late):
                            return Entry.at(block, int(late[0]))
        late = _late(self.entries, time_ms)
        return Entry.at(self.entries, int(late[0])) if len(late) else None

    def time_range(self) -> tuple[int, int] | None:
        """Return the least and greatest event time; ``None`` without rows."""
        found = [] if self.older is None else list(self.older.times(self.begin, self.first))
        held = self.entries[self.entries["rows"] > 0]
        low = int(held["min_time"].min(initial=LATEST))
        high = int(held["max_time"].max(initial=EARLIEST))
        for least, greatest, _, _ in found:
            low, high = min(low, least), max(high, greatest)
        return (low, high) if low <= high else None

    def find(self, producer: bytes, sequence: int, back_to: int = 0) -> Entry | None:
        """Return the append of a producer under a sequence, of those not below an offset."""
        low, high = np.frombuffer(producer, "<u8")
        for entries in self._back(max(back_to, self.begin)):
            same = (entries["sequence"] == sequence) & (entries["producer"][:, 0] == low)
            same &= (entries["producer"][:, 1] == high) & ((entries["flags"] & SEQUENCED) != 0)
            found = np.flatnonzero(same)
            if len(found):
                return Entry.at(entries, int(found[0]))
        return None

    def end_as_of(self, producer: bytes, sequence: int) -> int:
        """Return where the first append of a producer above a sequence is; the end without one."""
        low, high = np.frombuffer(producer, "<u8")
        found = self.next_offset
        for block in self._back(self.begin):
            for stop in range(len(block), 0, -_LOOKED_AT):
                entries = block[max(0, stop - _LOOKED_AT) : stop]
                own = (entries["producer"][:, 0] == low) & (entries["producer"][:, 1] == high)
                own &= (entries["flags"] & SEQUENCED) != 0
                later = own & (entries["sequence"] > sequence)
                if later.any():
                    found = int(entries["first_offset"][later][0])
                if (own & ~later).any():
                    return found
        return found

    def _back(self, start: int) -> Iterator[Entries]:
        yield self.entries
        if self.older is not None and start < self.first:
            yield from self.older.blocks_back(start, self.first)


def _late(entries: Entries, time_ms: int) -> Int64s:
    """Return which entries have a row with an event time at or after the one given."""
    # What a compaction has left without a row has no time.
    return np.flatnonzero((entries["max_time"] >= time_ms) & (entries["rows"] > 0))


class OpenSegment(NamedTuple):
    """The segment that the last append went to, which the next one may follow."""

    segment: int
    nonce: int
    end: int
    first_ms: int


class EntryTable:
    """The entries of a partition in memory, grown at the end by one thread at a time.

    ``first`` is the offset at which those in memory begin; ``rows`` and ``bytes`` count what is
    kept before it. ``open`` is the segment of the last append, where it may be appended to.
    """

    def __init__(self) -> None:
        self.count = self.begin = self.next_offset = self.first = self.compacted = 0
        self.rows = self.bytes = 0
        self.open: OpenSegment | None = None
        self.producers = ProducerState()
        self._entries, self._nexts = _NONE, _NO_OFFSETS

    @property
    def entries(self) -> Entries:
        """The entries in memory."""
        return self._entries[: self.count]

    @property
    def first_known(self) -> int:
        """The first offset that an entry in memory stands for; the end without entries."""
        return int(self._entries["first_offset"][0]) if self.count else self.next_offset

    def start_at(self, offset: int) -> None:
        """Set where the first append is expected."""
        self.next_offset = self.first = offset

    def load(self, entries: Entries, first: int, end: int, *, begin: int, compacted: int) -> None:
        """Hold what an index says that was written whole; nothing is in here yet.

        Args:
            entries: in order, without a gap.
            first: the offset at which they begin.
            end: where they end.
            begin: the first offset that is kept, which entries elsewhere may stand for.
            compacted: up to where compacted ones go.
        """
        self._entries, self._nexts = entries, next_offsets(entries)
        self.count, self.first, self.next_offset = len(entries), first, end
        self.begin, self.compacted = begin, compacted

    def extend(self, entries: Entries, origin: str, *, is_old: bool = False) -> None:
        """Add appends, in order.

        Args:
            entries: of the index.
            origin: for the error.
            is_old: they are of a file without an opening.

        Raises:
            CorruptDataError: their offsets do not follow those before without a gap.
        """
        if not len(entries):
            return
        nexts = entries["first_offset"] + entries["rows"]
        self._check_following(entries, nexts, origin)
        end = self.count + len(entries)
        if self.count:
            self._reserve(end)
            self._entries[self.count : end] = entries
            self._nexts[self.count : end] = nexts
        else:
            self._entries, self._nexts = entries, nexts
        self.count, self.next_offset = end, int(nexts[-1])
        self._note_open(entries)
        self.producers.note(entries, is_old=is_old)

    def _note_open(self, entries: Entries) -> None:
        last = Entry.at(entries, -1)
        if last.flags & ADOPTED:  # its file has another name, too
            self.open = None
            return
        begins = np.flatnonzero(entries["segment"] == entries["first_offset"])
        if len(begins) and int(entries["segment"][begins[-1]]) == last.segment:
            first_ms = int(entries["appended_ms"][begins[-1]])
        else:
            first_ms = last.appended_ms if self.open is None else self.open.first_ms
        self.open = OpenSegment(last.segment, last.nonce, last.position + last.length, first_ms)

    def _check_following(self, entries: Entries, nexts: Int64s, origin: str) -> None:
        befores = np.empty_like(nexts)
        befores[0], befores[1:] = self.next_offset, nexts[:-1]
        check_gaps(entries, befores, origin)

    def trim(self, begin: int, origin: str) -> None:
        """Forget the entries below an offset, at which one must begin or all must end.

        An offset below all that are known only moves ``begin``: they were dropped since, and
        a later trim must say so.

        Raises:
            CorruptDataError: an entry that is known holds the offset, or none does.
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
        self.begin = self.first = begin
        self.count -= gone
        if not self.count:
            self.open = None
        # Views of before keep the arrays that they have.
        self._entries = self._entries[gone : gone + max(64, self.count)].copy()
        self._nexts = self._nexts[gone : gone + len(self._entries)].copy()

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
        if gone == self.count:
            self.open = None
        # Views of before keep the arrays that they have.
        self._entries = np.concatenate([compacted, self._entries[gone : self.count]])
        self._nexts = np.concatenate([nexts, self._nexts[gone : self.count]])
        self.count = len(self._entries)
        self.begin = self.first = begin
        self.compacted = end

    def _reserve(self, count: int) -> None:
        capacity = len(self._entries)
        if count <= capacity:
            return
        capacity = max(count, 2 * capacity)
        for name in ("_entries", "_nexts"):
            old = getattr(self, name)
            grown = np.zeros(capacity, old.dtype)
            grown[: self.count] = old[: self.count]
            setattr(self, name, grown)

    def view(self, older: EntryHistory | None = None, holder: int = -1) -> IndexView:
        """Return what is known now."""
        entries = self._entries[: self.count]
        return IndexView(
            self.begin,
            self.next_offset,
            self.compacted,
            entries,
            self._nexts[: self.count],
            self.first,
            self.rows,
            self.bytes,
            older,
            holder,
        )


def check_gaps(entries: Entries, befores: Int64s, origin: str) -> None:
    """Make sure that appends begin where those before them end.

    Raises:
        CorruptDataError: one does not.
    """
    bad = (entries["first_offset"] != befores) | (entries["rows"] < 1)
    bad |= entries["kind"] != APPEND
    if bad.any():
        at = int(np.argmax(bad))
        raise CorruptDataError(
            f"{origin} has a gap: found an append at offset "
            f"{int(entries['first_offset'][at])}, expected {int(befores[at])}",
            file=origin,
        )
