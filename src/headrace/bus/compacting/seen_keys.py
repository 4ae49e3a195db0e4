"""The keys that a compaction has met so far, by 128 bits of hash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.records.hashing import UInt64s
from headrace.records.key_columns import encode_columns

_CHECK_SEED = 0x48454144
Bools = npt.NDArray[np.bool_]


class SeenKeys:
    """Says which rows are the last of their key, given batches from the newest to the oldest.

    A key is known by two hashes. Runs of them, sorted by the first one, are merged as they
    double; of two keys with the same first hash one is in a run, the other in a set.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[UInt64s, UInt64s]] = []
        self._others: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        """Return how many keys there are."""
        return sum(len(hashes) for hashes, _ in self._runs) + len(self._others)

    def take(self, columns: Sequence[pa.Array]) -> Bools:
        """Return which rows of the next older batch are the last of their key; shape (n,).

        Args:
            columns: of the key; each of shape (n,).
        """
        return self.take_hashes(*_hashes(columns))

    def take_hashes(self, hashes: UInt64s, checks: UInt64s) -> Bools:
        """Return the same for keys that are given by their two hashes; each of shape (n,)."""
        count = len(hashes)
        if not count:
            return np.zeros(0, bool)
        # Rows by hash, and of one hash the last row first.
        places = count - 1 - np.argsort(hashes[::-1], kind="stable")
        hashes, checks = hashes[places], checks[places]
        is_first = np.ones(count, bool)
        is_first[1:] = hashes[1:] != hashes[:-1]
        last_of_hash = np.maximum.accumulate(np.where(is_first, np.arange(count), 0))
        is_other = checks != checks[last_of_hash]
        is_gone = ~is_first & ~is_other
        for known, known_checks in self._runs:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            is_there, is_same = known[at] == hashes, known_checks[at] == checks
            is_gone |= is_there & is_same
            is_other |= is_there & ~is_same
        for row in np.flatnonzero(is_other & ~is_gone).tolist():
            pair = int(hashes[row]), int(checks[row])
            is_gone[row] = pair in self._others
            self._others.add(pair)
        is_new = is_first & ~is_gone & ~is_other
        self._add(hashes[is_new], checks[is_new])
        keep = np.empty(count, bool)
        keep[places] = ~is_gone
        return keep

    def _add(self, hashes: UInt64s, checks: UInt64s) -> None:
        while self._runs and len(self._runs[-1][0]) <= 2 * len(hashes):
            known, known_checks = self._runs.pop()
            hashes, checks = np.concatenate([known, hashes]), np.concatenate([known_checks, checks])
            order = np.argsort(hashes, kind="stable")
            hashes, checks = hashes[order], checks[order]
        if len(hashes):
            self._runs.append((hashes, checks))


def _hashes(columns: Sequence[pa.Array]) -> tuple[UInt64s, UInt64s]:
    keys = encode_columns(columns)
    return keys.hashes(), keys.hashes(_CHECK_SEED)
