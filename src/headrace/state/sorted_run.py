"""A sorted run: rows of a table in order, in blocks that lie in memory or in a mapped file.

Runs never change. A table lays them one over the other: of two rows of one key that of the newer
run counts. A block has a blocked Bloom filter of a byte a row, which lets 3 % of other keys
through; its words are in the order of hashes, so sorted requests read it from end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.records.schema import DELETED, WRITTEN, TableLayout
from headrace.records.xxh64 import UInt64s
from headrace.state.columns import (
    ALL_HASHES,
    HashRange,
    Int64s,
    Mask,
    Rows,
    TableKeys,
    equal_rows,
    flags,
    gather,
    numbers,
    tied,
)

LEAST_ROWS = 1 << 17
"""Smaller pieces are searched as quickly as their filter would be asked."""

SCHEMA = pa.schema([("word", pa.uint64())])
_ROWS_A_WORD = 8
_HIGHEST = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)


class BloomFilter:
    """Says which hashes may be in a piece.

    Args:
        words: of ``build``.
        low: the lowest hash of the piece; where there are clusters, of all.
        high: the highest one; the same.
    """

    def __init__(self, words: UInt64s, low: int = 0, high: int = _HIGHEST) -> None:
        self._low, self.words = np.uint64(low), words
        bits = (high - low).bit_length()
        self._shift = np.uint64(max(0, bits - 32))
        self._bits = np.uint64(min(bits, 32))

    @classmethod
    def build(cls, hashes: UInt64s, clusters: Int64s | None = None) -> BloomFilter:
        """Make the filter of sorted hashes, or of hashes in any order with their clusters."""
        words = np.zeros(max(1, len(hashes) // _ROWS_A_WORD), np.uint64)
        if clusters is None:
            made = cls(words, int(hashes[0]), int(hashes[-1]))
        else:
            made, hashes = cls(words), np.sort(_apart(hashes, clusters))
        at = made._places(hashes)
        starts = np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]]))
        words[at[starts]] = np.bitwise_or.reduceat(_masks(hashes), starts)
        return made

    def batch(self) -> pa.RecordBatch:
        """Return the words for a file."""
        return pa.RecordBatch.from_arrays([pa.array(self.words)], schema=SCHEMA)

    def may_hold(self, hashes: UInt64s, clusters: Int64s | None = None) -> Mask:
        """Say of each hash between the lowest and the highest whether it may be there.

        Args:
            hashes: shape (n,).
            clusters: of each, where the filter was built with them.
        """
        hashes = hashes if clusters is None else _apart(hashes, clusters)
        masks = _masks(hashes)
        found: Mask = (self.words[self._places(hashes)] & masks) == masks
        return found

    def _places(self, hashes: UInt64s) -> UInt64s:
        scaled = ((hashes - self._low) >> self._shift) * np.uint64(len(self.words))
        return scaled >> self._bits


def _apart(hashes: UInt64s, clusters: Int64s) -> UInt64s:
    return hashes ^ (clusters.view(np.uint64) * _ODD)


def _masks(hashes: UInt64s) -> UInt64s:
    one, six = np.uint64(1), np.uint64(63)
    masks = one << (hashes & six)
    for shift in (6, 12, 18):
        masks |= one << ((hashes >> np.uint64(shift)) & six)
    return masks


RUN_BLOCK_ROWS = 1 << 20
MOST_CLUSTERS = 4096
_MOST_HELD, _MEANINGFUL = 0.75, 256

SortPosition = tuple[int, int]
"""Cluster and hash of a row; the cluster is 0 in tables without."""


class BlockInfo(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a piece without reading it.

    ``ties`` is how many neighbours share cluster and hash, at most; ``clusters`` those
    present, rising, unless there are too many to tell; ``has_filter`` says whether a filter
    of its hashes follows.
    """

    rows: int
    first: SortPosition
    last: SortPosition
    low_hash: int
    high_hash: int
    ties: int
    deleted: int
    clusters: tuple[int, ...] | None = ()
    has_filter: bool = False


class Block:
    """Sorted rows in one batch, read when first asked for.

    Args:
        layout: of the table.
        info: of the rows.
        load: returns them.
        load_filter: returns the words of the filter, where there is one.
    """

    def __init__(
        self,
        layout: TableLayout,
        info: BlockInfo,
        load: Callable[[], pa.RecordBatch],
        load_filter: Callable[[], UInt64s] | None = None,
    ) -> None:
        self.info = info
        self._layout = layout
        self._load, self._load_filter = load, load_filter

    @classmethod
    def of(cls, layout: TableLayout, batch: pa.RecordBatch) -> Block:
        """Return rows that are in memory as a piece."""
        return cls(layout, block_info(batch), lambda: batch)

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """The rows; verified when they come from a file."""
        return self._load()

    @property
    def has_clusters(self) -> bool:
        """Say whether the table has them."""
        return self._layout.cluster

    @cached_property
    def hashes(self) -> UInt64s:
        """The hash of each row."""
        return numbers(self.batch.column(0), np.uint64)

    @cached_property
    def clusters(self) -> Int64s | None:
        """The cluster of each row, in tables that have them."""
        return numbers(self.batch.column(1), np.int64) if self._layout.cluster else None

    @cached_property
    def written(self) -> Int64s:
        """When each row was written, in tables whose rows expire."""
        return numbers(self.batch.column(self._layout.first_key - 1), np.int64)

    @cached_property
    def written_span(self) -> tuple[int, int]:
        """When the first and the last row were written."""
        return int(self.written.min()), int(self.written.max())

    @cached_property
    def by_written(self) -> tuple[Int64s, Rows]:
        """When rows were written, rising, and which rows these are."""
        order = np.argsort(self.written)
        return self.written[order], order

    def written_between(self, begin: int, end: int) -> Rows:
        """Return the rows that were written from one moment to before another; they rise."""
        first, last = self.written_span
        if last < begin or first >= end:
            return np.empty(0, np.int64)
        if begin <= first and last < end:
            return np.arange(self.info.rows)
        times, order = self.by_written
        return np.sort(order[np.searchsorted(times, begin) : np.searchsorted(times, end)])

    @property
    def keys(self) -> list[pa.Array]:
        """The key columns."""
        layout = self._layout
        return [self.batch.column(at) for at in range(layout.first_key, layout.first_value)]

    def likely(self, keys: TableKeys, wanted: Rows) -> Rows:
        """Leave out wanted keys that are certainly not here, if that is worth asking.

        Once most keys that were asked for are here, the filter is not asked any more.
        """
        if self._load_filter is None:
            return wanted
        words, hashes = self._load_filter(), keys.hashes[wanted]
        if keys.clusters is None:
            filter_ = BloomFilter(words, self.info.low_hash, self.info.high_hash)
            found = filter_.may_hold(hashes)
        else:
            found = BloomFilter(words).may_hold(hashes, keys.clusters[wanted])
        if np.count_nonzero(found) > _MOST_HELD * len(wanted) and len(wanted) >= _MEANINGFUL:
            self._load_filter = None
        return wanted[found]

    def find(self, keys: TableKeys, wanted: Rows) -> tuple[Rows, Rows]:
        """Return which of the wanted keys are here, and at which rows; both rise.

        Args:
            keys: of a request.
            wanted: rows of it, rising, that lie between this piece's first and last.
        """
        hashes = keys.hashes[wanted]
        clusters = None if keys.clusters is None else keys.clusters[wanted]
        at = self._lower(hashes, clusters)
        found, rows = self._matching(keys, wanted, hashes, clusters, at)
        latest = found
        for _ in range(self.info.ties - 1):
            left = at < self.info.rows - 1
            left[np.searchsorted(wanted, latest)] = False
            wanted, hashes, at = wanted[left], hashes[left], at[left] + 1
            clusters = None if clusters is None else clusters[left]
            latest, more = self._matching(keys, wanted, hashes, clusters, at)
            found, rows = np.concatenate([found, latest]), np.concatenate([rows, more])
        if self.info.ties > 1:
            by = np.argsort(found)
            found, rows = found[by], rows[by]
        return found, rows

    def _matching(
        self, keys: TableKeys, wanted: Rows, hashes: UInt64s, clusters: Int64s | None, at: Rows
    ) -> tuple[Rows, Rows]:
        same = self.hashes[at] == hashes
        if clusters is not None and self.clusters is not None:
            same &= self.clusters[at] == clusters
        if same.all():
            rows = at
        else:
            wanted, rows = wanted[same], at[same]
        equal = equal_rows(keys.columns, wanted, self.keys, rows)
        return (wanted, rows) if equal.all() else (wanted[equal], rows[equal])

    def _lower(self, hashes: UInt64s, clusters: Int64s | None) -> Rows:
        """The first row that does not come before each place."""
        own = self.clusters
        if clusters is None or own is None:
            return np.searchsorted(self.hashes, hashes)
        if not len(hashes):
            return np.empty(0, np.int64)
        cuts = [0, *(np.flatnonzero(clusters[1:] != clusters[:-1]) + 1).tolist(), len(clusters)]
        if len(cuts) > 8 + len(clusters) // 32:
            return _bisected(own, self.hashes, clusters, hashes)
        at = np.empty(len(hashes), np.int64)
        starts = np.searchsorted(own, clusters[cuts[:-1]]).tolist()
        ends = np.searchsorted(own, clusters[cuts[:-1]], side="right").tolist()
        for start, end, first, last in zip(starts, ends, cuts[:-1], cuts[1:], strict=True):
            at[first:last] = start + np.searchsorted(self.hashes[start:end], hashes[first:last])
        return at

    def gone(self, rows: Rows, horizon: int | None) -> Mask | None:
        """Say which rows are deleted, or were written by ``horizon``; ``None``: none."""
        batch, gone = self.batch, None
        if self.info.deleted:
            gone = flags(gather(batch.column(batch.num_columns - 1), rows))
        if horizon is not None:
            expired: Mask = self.written[rows] <= horizon
            gone = expired if gone is None else gone | expired
        return gone if gone is not None and gone.any() else None


def _bisected(own_clusters: Int64s, own_hashes: UInt64s, clusters: Int64s, hashes: UInt64s) -> Rows:
    """Search all places at once, a step for all; for many clusters of few rows."""
    low = np.zeros(len(hashes), np.int64)
    high = np.full(len(hashes), len(own_hashes), np.int64)
    for _ in range(len(own_hashes).bit_length()):
        middle = np.minimum((low + high) >> 1, len(own_hashes) - 1)
        there = own_clusters[middle]
        less = (there < clusters) | ((there == clusters) & (own_hashes[middle] < hashes))
        less &= low < high
        low = np.where(less, middle + 1, low)
        high = np.where(less, high, middle)
    return np.minimum(low, len(own_hashes) - 1)


def block_info(batch: pa.RecordBatch) -> BlockInfo:
    """Return what is to be known of sorted rows, of which there is at least one."""
    hashes = numbers(batch.column(0), np.uint64)
    has_clusters = batch.schema.names[1] == "__cluster"
    clusters = numbers(batch.column(1), np.int64) if has_clusters else None
    ends = [0 if clusters is None else int(clusters[at]) for at in (0, -1)]
    present: tuple[int, ...] | None = ()
    if clusters is None:
        low, high = int(hashes[0]), int(hashes[-1])
    else:
        low, high = int(hashes.min()), int(hashes.max())
        changes = np.flatnonzero(clusters[1:] != clusters[:-1]) + 1
        few = len(changes) < MOST_CLUSTERS
        present = tuple(clusters[[0, *changes.tolist()]].tolist()) if few else None
    deleted = 0
    if batch.schema.names[-1] == DELETED:
        deleted = batch.column(batch.num_columns - 1).true_count
    return BlockInfo(
        len(hashes),
        (ends[0], int(hashes[0])),
        (ends[1], int(hashes[-1])),
        low,
        high,
        _longest(tied(hashes, clusters)),
        deleted,
        present,
    )


def _longest(ties: npt.NDArray[np.bool_]) -> int:
    """How many neighbours are tied to each other, at most."""
    if not ties.any():
        return 1
    breaks = np.flatnonzero(np.concatenate([[True], ~ties, [True]]))
    return int(np.diff(breaks).max())


class BlockHit(NamedTuple):
    """Keys of a request that a piece holds: their places in the request, and its rows."""

    piece: Block
    keys: Rows
    rows: Rows


class SortedRun:
    """Pieces in order.

    Args:
        layout: of the table.
        pieces: each begins where the one before ends.
        size: bytes that they take.
        hashes: rows of other hashes count as not there.
    """

    def __init__(
        self,
        layout: TableLayout,
        pieces: Sequence[Block],
        size: int,
        hashes: HashRange = ALL_HASHES,
    ) -> None:
        self.layout, self.hashes = layout, hashes
        self.pieces = tuple(pieces)
        self.size = size
        self.rows = sum(piece.info.rows for piece in pieces)

    @classmethod
    def of(cls, layout: TableLayout, batches: Sequence[pa.RecordBatch]) -> SortedRun:
        """Return sorted batches in memory as a run."""
        pieces = [Block.of(layout, batch) for batch in batches if batch.num_rows]
        return cls(layout, pieces, sum(batch.nbytes for batch in batches))

    @property
    def has_deletes(self) -> bool:
        """Say whether any row deletes."""
        return any(piece.info.deleted for piece in self.pieces)

    @cached_property
    def own(self) -> Sequence[Block]:
        """The pieces without rows that count as not there, in tables without clusters."""
        if self.hashes == ALL_HASHES:
            return self.pieces
        first, last = (np.uint64(bound) for bound in self.hashes)
        found = []
        for piece in self.pieces:
            begin = int(np.searchsorted(piece.hashes, first))
            rows = int(np.searchsorted(piece.hashes, last, side="right")) - begin
            if rows == piece.info.rows:
                found.append(piece)
            elif rows:
                found.append(Block.of(self.layout, piece.batch.slice(begin, rows)))
        return tuple(found)

    def written_between(self, begin: int, end: int) -> Iterator[tuple[Block, Rows]]:
        """Yield the rows that were written from one moment to before another, piece by piece."""
        for piece in self.pieces:
            rows = piece.written_between(begin, end)
            if len(rows) and self.hashes != ALL_HASHES:
                rows = rows[self.hashes.of(piece.hashes[rows])]
            if len(rows):
                yield piece, rows

    def clusters(self) -> set[int]:
        """Return the clusters of all rows, deleted ones too."""
        found: set[int] = set()
        for piece in self.pieces:
            present = piece.info.clusters
            if present is None:
                assert piece.clusters is not None
                present = np.unique(piece.clusters).tolist()
            found.update(present)
        return found

    def find(self, keys: TableKeys, wanted: Rows) -> Iterator[BlockHit]:
        """Yield where the wanted keys are; those that are not here are left out."""
        if self.hashes != ALL_HASHES:
            wanted = wanted[self.hashes.of(keys.hashes[wanted])]
        for piece in self.pieces:
            begin = _bound(keys, wanted, piece.info.first, "left")
            end = _bound(keys, wanted, piece.info.last, "right")
            if begin < end:
                likely = piece.likely(keys, wanted[begin:end])
                if len(likely):
                    found, rows = piece.find(keys, likely)
                    if len(found):
                        yield BlockHit(piece, found, rows)


def _bound(keys: TableKeys, wanted: Rows, place: SortPosition, side: str) -> int:
    """How many of the wanted keys come before a place, or up to it."""
    at = _place(keys.hashes, keys.clusters, place, side)
    return int(np.searchsorted(wanted, at))


def _place(hashes: UInt64s, clusters: Int64s | None, place: SortPosition, side: str) -> int:
    begin, end = 0, len(hashes)
    if clusters is not None:
        begin = int(np.searchsorted(clusters, place[0]))
        end = int(np.searchsorted(clusters, place[0], side="right"))
    within = np.searchsorted(hashes[begin:end], np.uint64(place[1]), side=side)  # type: ignore[call-overload]
    return begin + int(within)


def position_in(piece: Block, place: SortPosition, side: str) -> int:
    """How many rows of a piece come before a place, or with ``side`` "right" up to it."""
    return _place(piece.hashes, piece.clusters, place, side)


def check_schema(layout: TableLayout, schema: pa.Schema, origin: str) -> None:
    """Refuse rows that were written with other columns.

    Raises:
        InvalidInputError: the columns are not the table's.
    """
    if not (schema.equals(layout.schema) or schema.equals(layout.schema_with_deletes)):
        raise InvalidInputError(
            f"{origin} holds columns {_columns_text(schema)}, the table now has "
            f"{_columns_text(layout.schema)}; "
            "run the job as it was, or under another name"
        )


def _columns_text(schema: pa.Schema) -> str:
    own = (WRITTEN, DELETED)
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name not in own)
