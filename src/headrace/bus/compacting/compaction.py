"""What a compaction keeps of the beginning of a partition: the latest row of each key.

Files are not written here: ``Compaction`` gives entries that stay as they are and pieces that
need a place; ``compactor`` gives them one on disk, ``memory`` in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.bus.compacting.seen_keys import Bools, SeenKeys
from headrace.bus.compacting.sparse import (
    NOT_DELETED,
    Places,
    deletes_of,
    encode_compacted,
    read_compacted,
)
from headrace.bus.entries import COMPACTED, NO_TIME, Entry, View
from headrace.bus.frames import Wanted, read_entry
from headrace.bus.log import Log, Order, Place
from headrace.bus.settings import StreamSettings
from headrace.bus.spec import Compacted
from headrace.errors import UnavailableError
from headrace.files import Bytes
from headrace.records.schema import event_times

PIECE_BYTES = 8 << 20
_PARTS_OF_A_LIFE = 8


class CompactionStoppedError(UnavailableError):
    """The bus was closed, or another process changed the partition meanwhile. Try again."""

    code = "HR209"
    move = "compact again; nothing was changed"


class Piece(NamedTuple):
    """Compacted rows that have no place yet."""

    first_offset: int
    next_offset: int
    rows: int
    min_time: int
    max_time: int
    appended_ms: int
    chunks: list[Bytes]

    @property
    def size(self) -> int:
        """The bytes of its frames."""
        return sum(memoryview(chunk).nbytes for chunk in self.chunks)

    def entry(self, partition: int, place: Place) -> Entry:
        """Return the index entry of the piece at its place."""
        return Entry(
            kind=COMPACTED,
            flags=0,
            first_offset=self.first_offset,
            rows=self.rows,
            segment=place.segment,
            nonce=place.nonce,
            partition=partition,
            position=place.position,
            length=place.length,
            min_time=self.min_time,
            max_time=self.max_time,
            appended_ms=self.appended_ms,
            span=self.next_offset - self.first_offset,
        )


def limit_of(view: View, settings: StreamSettings, held: int, now_ms: int) -> int:
    """Return up to where a partition may be compacted: whole appends, below all holds.

    Args:
        view: of the partition.
        settings: of the stream.
        held: the lowest offset that a reader holds.
        now_ms: for the age of appends.
    """
    limit = min(view.next_offset, held)
    if settings.compact_after_ms is not None:
        young = np.flatnonzero(view.entries["appended_ms"] > now_ms - settings.compact_after_ms)
        limit = min(limit, int(view.entries["first_offset"][young[0]])) if len(young) else limit
    whole = view.nexts[view.nexts <= limit]
    return int(whole[-1]) if len(whole) else view.begin


def is_due(view: View, upto: int, least_bytes: int) -> bool:
    """Say whether enough was appended below an offset that a compaction is worth its work."""
    below = view.entries[view.nexts <= upto]
    is_clean = below["kind"] == COMPACTED
    clean, fresh = below["length"][is_clean].sum(), below["length"][~is_clean].sum()
    return bool(fresh >= max(clean, least_bytes))


def starts_segment(first_ms: int, now_ms: int, settings: StreamSettings) -> bool:
    """Say whether rows are so much younger than a segment's first that they begin another."""
    if settings.retain_ms is None:
        return False
    return (now_ms - first_ms) * _PARTS_OF_A_LIFE >= settings.retain_ms


def _is_same(first: Entry, second: Entry) -> bool:
    return (first.segment, first.nonce) == (second.segment, second.nonce)


class Compaction:
    """One compaction of a partition, from its beginning up to an offset.

    Args:
        log: of the partition.
        view: its index; nothing below ``upto`` changes meanwhile but by a trim.
        upto: at which an append begins, or the end.
        order: what is wanted.
    """

    def __init__(self, log: Log, view: View, upto: int, order: Order) -> None:
        self._log, self._order = log, order
        # Looked for after the view was taken: no row of that is of a newer schema.
        self._spec, self._version = order.spec, order.schemas.looked()
        count = int(np.searchsorted(view.nexts, upto, side="right"))
        self.upto = upto
        self.entries = [view.entry(at) for at in range(count)]
        defaults = order.schemas.defaults
        added = {name for name, value in defaults.items() if value is not None}
        held = {*self._spec.key, self._spec.time, *added}
        values = [name for name in self._version.schema.names if name not in held]
        # Without values when it was created no row deletes: older ones lack what was added.
        self._values = [] if held.issuperset(order.schemas.all[0].names) else values
        self._cover = view.begin
        self._parts: list[tuple[Places, pa.RecordBatch]] = []
        self._bytes = self._appended_ms = self._first_ms = 0

    def outcome(self, entries: Sequence[Entry]) -> Compacted:
        """Sum up what the entries change that stand for those of before; none: nothing."""
        old, kept = self.entries, entries or self.entries
        return Compacted(
            self.upto,
            sum(entry.rows for entry in old),
            sum(entry.rows for entry in kept),
            sum(entry.length for entry in old),
            sum(entry.length for entry in kept),
        )

    def results(self) -> Iterator[Entry | Piece]:
        """Yield what stands for the partition up to ``upto``, in order of offsets.

        Nothing is yielded where nothing would change.
        """
        masks = self._masks()
        is_clean = all(entry.kind == COMPACTED for entry in self.entries)
        if is_clean and sum(int(mask.sum()) for mask in masks) == sum(e.rows for e in self.entries):
            return
        at = 0
        while at < len(self.entries):
            end = at + 1
            while end < len(self.entries) and _is_same(self.entries[end], self.entries[at]):
                end += 1
            segment, kept = self.entries[at:end], masks[at:end]
            if self._stays(segment, kept):
                yield from self._flush(segment[0].first_offset)
                yield from segment
                self._cover = segment[-1].next_offset
            else:
                for entry, mask in zip(segment, kept, strict=True):
                    yield from self._rewrite(entry, mask)
            at = end
        yield from self._flush(self.upto)

    def _stays(self, segment: list[Entry], masks: list[Bools]) -> bool:
        """A segment from which nothing goes stays, unless it is so small that it is joined."""
        if any(entry.kind != COMPACTED for entry in segment) or not all(m.all() for m in masks):
            return False
        return 2 * sum(entry.length for entry in segment) >= self._order.segment_bytes

    def _masks(self) -> list[Bools]:
        """Which rows of each entry stay, found from the newest to the oldest."""
        seen, masks = SeenKeys(), []
        expired_ms = self._order.now_ms - self._order.settings.keep_deletes_ms
        for entry in reversed(self.entries):
            self._check_stopped()
            parts = list(self._read(entry, self._spec.key))
            columns = [
                pa.concat_arrays([batch.column(at) for _, batch in parts])
                for at in range(len(self._spec.key))
                if parts
            ]
            mask = seen.take(columns) if entry.rows else np.zeros(0, bool)
            deleted = parts[0][0].deleted_ms if parts else None
            if deleted is not None:
                mask &= (deleted == NOT_DELETED) | (deleted > expired_ms)
            masks.append(mask)
        return masks[::-1]

    def _read(
        self, entry: Entry, columns: tuple[str, ...] | None
    ) -> Iterator[tuple[Places, pa.RecordBatch]]:
        if not entry.rows:
            return
        names = self._version.schema.names
        chosen = None if columns is None else [names.index(name) for name in columns]
        wanted = Wanted(entry.first_offset, entry.next_offset, self._version, chosen)
        deleted = None
        if entry.kind == COMPACTED:
            data, origin = self._log.data(entry)
            deleted = read_compacted(data, entry, origin)[0].deleted_ms
        for found in read_entry(self._log, entry, self._order.schemas, wanted):
            yield Places(found.offsets, deleted), found.batch

    def _rewrite(self, entry: Entry, mask: Bools) -> Iterator[Piece]:
        if self._parts and starts_segment(self._first_ms, entry.appended_ms, self._order.settings):
            yield from self._flush(entry.first_offset)
        done = 0
        for places, batch in self._read(entry, None) if mask.any() else ():
            self._check_stopped()
            keep = mask[done : done + batch.num_rows]
            done += batch.num_rows
            self._take(entry, places, batch, keep)
            if self._bytes >= PIECE_BYTES:
                yield from self._flush(int(places.offsets[-1]) + 1)

    def _take(self, entry: Entry, places: Places, batch: pa.RecordBatch, keep: Bools) -> None:
        if not keep.any():
            return
        if not self._parts:
            self._first_ms = entry.appended_ms
        deleted = self._deletes(places, batch)
        if not keep.all():
            batch = batch.filter(pa.array(keep))
        kept = Places(places.offsets[keep], deleted[keep])
        self._parts.append((kept, batch))
        self._bytes += batch.nbytes
        self._appended_ms = max(self._appended_ms, entry.appended_ms)

    def _deletes(self, places: Places, batch: pa.RecordBatch) -> np.ndarray:
        if places.deleted_ms is not None:
            return places.deleted_ms
        is_dead = deletes_of(batch, self._values)
        return np.where(is_dead, self._order.now_ms, NOT_DELETED)

    def _flush(self, upto: int) -> Iterator[Piece]:
        """Yield the rows that wait as a piece that stands for all offsets up to one."""
        if upto == self._cover:
            return
        first, parts = self._cover, self._parts
        first_time = last_time = NO_TIME
        rows, chunks = 0, list[Bytes]()
        if parts:
            batch = pa.concat_batches([batch for _, batch in parts])
            offsets = np.concatenate([places.offsets for places, _ in parts])
            deleted = np.concatenate([places.deleted_ms for places, _ in parts])
            has_deletes = bool((deleted != NOT_DELETED).any())
            places = Places(offsets, deleted if has_deletes else None)
            rows, chunks = batch.num_rows, encode_compacted(places, batch, self._version.number)
            if self._spec.time is not None:
                found = event_times(batch.column(self._spec.time), self._spec.name)
                first_time, last_time = int(found.min()), int(found.max())
        yield Piece(first, upto, rows, first_time, last_time, self._appended_ms, chunks)
        self._cover, self._parts = upto, []
        self._bytes = self._appended_ms = self._first_ms = 0

    def _check_stopped(self) -> None:
        if self._order.stopped():
            raise CompactionStoppedError(
                f"the compaction of stream {self._spec.name!r} was ended with the bus; nothing of "
                "it counts, compact again",
                stream=self._spec.name,
            )
