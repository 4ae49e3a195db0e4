"""Finds the row of each key of a batch in a table, by hash, without a step per row in Python.

Rows are sorted by the hash of their key. The upper bits of a hash choose a bucket of about
one row, from whose first row the search goes up; hashes spread evenly, so it ends after two or
three steps, each of which only the rows take that are not done.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.keys import encode_columns

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NONE = -1
_MOST_BITS = 26


class KeyIndex:
    """An index over the key columns of a table whose keys differ and hold no null.

    Args:
        columns: of the key, each of shape (n,).
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        hashes = encode_columns(columns).hashes()
        order = np.argsort(hashes, kind="stable")
        # One row beyond the last, which no key is equal to: the search needs no bound.
        self._hashes = np.append(hashes[order], np.uint64(0xFFFF_FFFF_FFFF_FFFF))
        self._rows = np.append(order, _NONE)
        self._count = len(order)
        self._columns = list(columns)
        bits = min(_MOST_BITS, max(1, self._count.bit_length()))
        self._shift = np.uint64(64 - bits)
        begins = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self._begins = np.searchsorted(self._hashes[: self._count], begins).astype(np.int64)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    def find(self, columns: Sequence[pa.Array]) -> Int64s:
        """Return the table's row for each key of a batch, -1 where there is none.

        Args:
            columns: of the batch, of the key's types, in its order; a null matches nothing.
        """
        hashes = encode_columns(columns).hashes()
        at = self._begins[hashes >> self._shift]
        behind = np.flatnonzero(self._hashes[at] < hashes)
        while len(behind):
            behind = behind[at[behind] < self._count]
            at[behind] += 1
            behind = behind[self._hashes[at[behind]] < hashes[behind]]
        found = np.where(self._hashes[at] == hashes, self._rows[at], _NONE)
        return self._checked(columns, hashes, at, found)

    def _checked(
        self,
        columns: Sequence[pa.Array],
        hashes: npt.NDArray[np.uint64],
        at: Int64s,
        found: Int64s,
    ) -> Int64s:
        """Take back what has the hash of another key; the right row may follow it."""
        wrong = np.flatnonzero((found >= 0) & ~self._equal(columns, found))
        while len(wrong):
            at[wrong] += 1
            again = self._hashes[at[wrong]] == hashes[wrong]
            found[wrong] = np.where(again, self._rows[at[wrong]], _NONE)
            taken = pa.array(wrong)
            equal = self._equal([column.take(taken) for column in columns], found[wrong])
            wrong = wrong[(found[wrong] >= 0) & ~equal]
        return found

    def _equal(self, columns: Sequence[pa.Array], found: Int64s) -> Bools:
        """Whether the keys of rows found are those asked for; false where nothing was found."""
        equal = found >= 0
        rows = np.maximum(found, 0)
        if not self._count:
            return equal
        for mine, theirs in zip(self._columns, columns, strict=True):
            equal &= _same(mine, rows, theirs)
        return equal


def _same(mine: pa.Array, rows: Int64s, theirs: pa.Array) -> Bools:
    kind = mine.type
    if pa.types.is_integer(kind) and not theirs.null_count:
        return np.asarray(mine.to_numpy()[rows] == theirs.to_numpy())
    if pa.types.is_floating(kind):
        one, other = mine.to_numpy()[rows], theirs.to_numpy(zero_copy_only=False)
        both_nan = np.isnan(one) & np.isnan(other)
        is_null = theirs.is_null().to_numpy(zero_copy_only=False)
        return np.asarray(((one == other) | both_nan) & ~is_null)
    equal = pc.equal(mine.take(pa.array(rows)), theirs)
    return np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False))
