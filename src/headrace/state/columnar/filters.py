"""A filter of hashes, by which a piece tells that it does not hold most keys it does not hold.

One bit for four positions in one word of 64, chosen by the hash: a blocked Bloom filter of a
byte a row, which lets 3 % of other keys through. Words are in the order of hashes, so sorted
requests read it from one end to the other. In tables with clusters a hash tells them apart first:
the same keys are in one window after the other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.records.keys import UInt64s

LEAST_ROWS = 1 << 17
"""Smaller pieces are searched as quickly as their filter would be asked."""

SCHEMA = pa.schema([("word", pa.uint64())])
_ROWS_A_WORD = 8
_HIGHEST = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)


class HashFilter:
    """Says which hashes may be in a piece.

    Args:
        low: the lowest hash of the piece.
        high: the highest one.
        words: of ``build``.
    """

    def __init__(self, low: int, high: int, words: UInt64s) -> None:
        self._low, self._words = np.uint64(low), words
        bits = (high - low).bit_length()
        self._shift = np.uint64(max(0, bits - 32))
        self._bits = np.uint64(min(bits, 32))

    @classmethod
    def build(cls, hashes: UInt64s) -> HashFilter:
        """Make the filter of sorted hashes."""
        words = np.zeros(max(1, len(hashes) // _ROWS_A_WORD), np.uint64)
        made = cls(int(hashes[0]), int(hashes[-1]), words)
        made._fill(hashes)
        return made

    @classmethod
    def build_clustered(cls, hashes: UInt64s, clusters: npt.NDArray[np.int64]) -> HashFilter:
        """Make the filter of rows in any order that have clusters; see ``clustered``."""
        apart = np.sort(_apart(hashes, clusters))
        words = np.zeros(max(1, len(apart) // _ROWS_A_WORD), np.uint64)
        made = cls(0, _HIGHEST, words)
        made._fill(apart)
        return made

    @classmethod
    def clustered(cls, words: UInt64s) -> HashFilter:
        """Return the filter that ``build_clustered`` made the words of."""
        return cls(0, _HIGHEST, words)

    @property
    def words(self) -> UInt64s:
        """The filter itself."""
        return self._words

    def batch(self) -> pa.RecordBatch:
        """Return the words for a file."""
        return pa.RecordBatch.from_arrays([pa.array(self._words)], schema=SCHEMA)

    def may_hold(
        self, hashes: UInt64s, clusters: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Say of each hash between the lowest and the highest whether it may be there.

        Args:
            hashes: shape (n,).
            clusters: of each, where the filter was built with them.
        """
        hashes = hashes if clusters is None else _apart(hashes, clusters)
        masks = _masks(hashes)
        found: npt.NDArray[np.bool_] = (self._words[self._places(hashes)] & masks) == masks
        return found

    def _fill(self, hashes: UInt64s) -> None:
        at = self._places(hashes)
        starts = np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]]))
        self._words[at[starts]] = np.bitwise_or.reduceat(_masks(hashes), starts)

    def _places(self, hashes: UInt64s) -> UInt64s:
        scaled = ((hashes - self._low) >> self._shift) * np.uint64(len(self._words))
        return scaled >> self._bits


def _apart(hashes: UInt64s, clusters: npt.NDArray[np.int64]) -> UInt64s:
    return hashes ^ (clusters.view(np.uint64) * _ODD)


def _masks(hashes: UInt64s) -> UInt64s:
    one, six = np.uint64(1), np.uint64(63)
    masks = one << (hashes & six)
    for shift in (6, 12, 18):
        masks |= one << ((hashes >> np.uint64(shift)) & six)
    return masks
