"""Which rows of two sorted pieces make pairs: by key, and near each other in event time.

A row's *code* has the upper half of its key's hash, which its key group follows from, above its
event time. So rows sorted by code are together by key, in order of time, and what a row may be
paired with is one range of them, found by bisection: no row is looked at that is too far away,
however many there are of one key. Half a hash does not tell all keys apart, and the time in it
goes round after 2**32 units: so what is found is compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.graph.reaches import Reach
from headrace.records.keys import UInt64s
from headrace.state.columnar.columns import Mask, Rows, equal_rows
from headrace.state.columnar.run import Piece
from headrace.task.chunk import Ints

BLOCK = 1 << 19
BLOCK_BYTES = 128 << 20
"""Pairs that are looked at together, and about how many bytes of columns they have."""

_KEY, _TIME = np.uint64(0xFFFFFFFF_00000000), np.uint64(0xFFFFFFFF)


class Codes:
    """Makes codes for pairs that are at most so far apart.

    Args:
        span_ms: from the earliest to the latest partner of a row.
    """

    def __init__(self, span_ms: int) -> None:
        # Half a round at most, so that few rows of a range are of another one.
        self._shift = max(0, span_ms.bit_length() - 31)

    def of(self, hashes: UInt64s, times: Ints) -> UInt64s:
        """Return the code of each row."""
        codes: UInt64s = (hashes & _KEY) | ((times >> self._shift).astype(np.uint64) & _TIME)
        return codes


class Matcher:
    """Finds pairs of a left and a right piece.

    Args:
        codes: that the pieces are sorted by.
        reach: which rows are near each other.
    """

    def __init__(self, codes: Codes, reach: Reach) -> None:
        self._codes, self._reach = codes, reach

    def pairs(self, left: Piece, right: Piece) -> Iterator[tuple[Rows, Rows]]:
        """Yield the rows of pairs side by side, a block at a time."""
        # The fewer rows are looked for among the others.
        if left.info.rows <= right.info.rows:
            yield from self._found(left, self._near(left, right, 0), right, 0)
            return
        for rows, others in self._found(right, self._near(right, left, 1), left, 1):
            yield others, rows

    def has_partner(self, piece: Piece, rows: Rows, other: Piece, side: int) -> Mask:
        """Say which rows of a piece are in a pair with any row of another one.

        Args:
            piece: on ``side``, 0: left.
            rows: of it, rising.
            other: on the other side.
            side: of the piece.
        """
        found = np.zeros(len(rows), bool)
        asked, first, counts = self._ranges(piece, rows, other, side)
        if not len(asked):
            return found
        # The first of a range nearly always is a partner; where it is none, all are asked.
        sure = self._is_pair(piece, rows[asked], other, first, side)
        found[asked[sure]] = True
        if not sure.all():
            left = np.flatnonzero(~sure)
            for own, others in _expanded(first[left], counts[left], BLOCK):
                places = asked[left[own]]
                is_pair = self._is_pair(piece, rows[places], other, others, side)
                found[places[is_pair]] = True
        return found

    def _near(self, piece: Piece, other: Piece, side: int) -> Rows:
        """The rows that are near any row of another piece, by the times of all."""
        reach, times = self._reach, piece.written
        (first, last), (begin, end) = piece.written_span, other.written_span
        if reach.last(first, side) >= begin and reach.first(last, side) <= end:
            return np.arange(piece.info.rows)
        return np.flatnonzero(
            (reach.last(times, side) >= begin) & (reach.first(times, side) <= end)
        )

    def _ranges(self, piece: Piece, rows: Rows, other: Piece, side: int) -> tuple[Rows, Rows, Rows]:
        """Where the partners of rows are: places in ``rows``, first row there, how many."""
        hashes, times = piece.hashes[rows], piece.written[rows]
        low = self._codes.of(hashes, self._reach.first(times, side))
        high = self._codes.of(hashes, self._reach.last(times, side))
        places = np.arange(len(rows))
        goes_round = low > high
        if goes_round.any():
            again = np.flatnonzero(goes_round)
            low = np.concatenate([low, low[again] & _KEY])
            high = np.concatenate([high, high[again]])
            high[again] |= _TIME
            places = np.concatenate([places, again])
        first = np.searchsorted(other.hashes, low)
        # Most ranges are empty, which one look tells.
        some = np.flatnonzero(other.hashes[np.minimum(first, other.info.rows - 1)] <= high)
        some = some[first[some] < other.info.rows]
        counts = np.searchsorted(other.hashes, high[some], side="right") - first[some]
        return places[some], first[some], counts

    def _found(
        self, piece: Piece, rows: Rows, other: Piece, side: int
    ) -> Iterator[tuple[Rows, Rows]]:
        places, first, counts = self._ranges(piece, rows, other, side)
        asked = rows[places]
        each = sum(held.batch.nbytes // held.info.rows for held in (piece, other))
        block = max(1, min(BLOCK, BLOCK_BYTES // max(1, each)))
        for own, theirs in _expanded(first, counts, block):
            mine = asked[own]
            is_pair = self._is_pair(piece, mine, other, theirs, side)
            if is_pair.all():
                yield mine, theirs
            elif is_pair.any():
                yield mine[is_pair], theirs[is_pair]

    def _is_pair(self, piece: Piece, rows: Rows, other: Piece, others: Rows, side: int) -> Mask:
        times, theirs = piece.written[rows], other.written[others]
        near: Mask = theirs >= self._reach.first(times, side)
        near &= theirs <= self._reach.last(times, side)
        return near & equal_rows(piece.keys, rows, other.keys, others)


def _expanded(first: Rows, counts: Rows, block: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield each element of ranges with the place of its range, a block at a time."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, block):
        end = min(begin + block, total)
        start = int(np.searchsorted(ends, begin, side="right"))
        stop = int(np.searchsorted(ends, end)) + 1
        own, low = counts[start:stop].copy(), first[start:stop].copy()
        skipped = begin - int(ends[start] - own[0])
        own[0] -= skipped
        low[0] += skipped
        own[-1] -= int(ends[stop - 1]) - end
        places = np.repeat(np.arange(start, stop), own)
        steps = np.arange(len(places)) - np.repeat(np.cumsum(own) - own, own)
        yield places, low[places - start] + steps
