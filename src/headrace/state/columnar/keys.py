"""The keys of one request to a table: distinct, hashed, and sorted as runs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.records.keys import UInt64s, encode_columns
from headrace.records.layout import CLUSTER, HASH, TableLayout
from headrace.records.schema import normalise
from headrace.state.columnar.columns import Rows, equal_rows, gather, numbers

Int64s = npt.NDArray[np.int64]


class HashRange(NamedTuple):
    """The hashes of some key groups: the first and the last."""

    first: int
    last: int

    def within(self, other: HashRange) -> HashRange:
        """Return the hashes that are in both; when none are, ``first`` is above ``last``."""
        return HashRange(max(self.first, other.first), min(self.last, other.last))

    def holds(self, low: int, high: int) -> bool:
        """Say whether all hashes from ``low`` to ``high`` are in it."""
        return self.first <= low and high <= self.last


ALL_HASHES = HashRange(0, (1 << 64) - 1)


def hash_range(low: int, high: int, key_groups: int) -> HashRange:
    """Return the hashes of the key groups from ``low`` to the one before ``high``."""
    begin, end = (-(-(group << 32) // key_groups) << 32 for group in (low, high))
    return HashRange(begin, end - 1)


@dataclass(frozen=True)
class TableKeys:
    """Distinct keys in the order of runs: by cluster, then hash.

    ``order`` tells where the caller has each: row ``i`` here is row ``order[i]`` there.

    Args:
        columns: the key columns, sorted; each of shape (n,).
        hashes: of each key; shape (n,).
        clusters: of each key, in tables that have them; shape (n,).
        order: rows of the caller; shape (n,).
    """

    columns: tuple[pa.Array, ...]
    hashes: UInt64s
    clusters: Int64s | None
    order: Rows

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self.hashes)

    @classmethod
    def of(
        cls,
        layout: TableLayout,
        columns: pa.RecordBatch | pa.Table,
        clusters: Int64s | None = None,
        hashes: UInt64s | None = None,
    ) -> TableKeys:
        """Sort the keys of a request.

        Args:
            layout: of the table.
            columns: its key columns, in any form that ``normalise`` takes; rows are distinct.
            clusters: of each row, where the table has them.
            hashes: of each row, if they are known.
        """
        batch = normalise(columns, layout.keys)
        assert layout.cluster == (clusters is not None), "clusters are part of some tables' keys"
        if hashes is None:
            hashes = encode_columns(batch.columns).hashes()
        order = sorted_rows(hashes, clusters)
        return cls._taken(batch.columns, hashes, clusters, order)

    @classmethod
    def of_rows(cls, layout: TableLayout, rows: pa.RecordBatch) -> TableKeys:
        """Return the keys of rows that a scan gave, or of some of them in the same order."""
        clusters = numbers(rows.column(CLUSTER), np.int64) if layout.cluster else None
        hashes = numbers(rows.column(HASH), np.uint64)
        columns = tuple(rows.column(name) for name in layout.keys.names)
        return cls(columns, hashes, clusters, np.arange(rows.num_rows))

    @classmethod
    def distinct(
        cls,
        layout: TableLayout,
        columns: pa.RecordBatch | pa.Table,
        clusters: Int64s | None = None,
        hashes: UInt64s | None = None,
    ) -> tuple[TableKeys, Rows]:
        """Sort keys that may repeat; returns each once, and the place of each row's key in them.

        ``order`` names one row of those that have the key.
        """
        keys = cls.of(layout, columns, clusters, hashes)
        if not len(keys):
            return keys, keys.order
        ordered = keys.order
        ties = tied(keys.hashes, keys.clusters)
        before = np.flatnonzero(ties)
        same = equal_rows(keys.columns, before, keys.columns, before + 1)
        if not same.all():
            by = canonical_order(keys.columns, keys.hashes, keys.clusters, ties)
            keys = keys.select(by)
            ordered = keys.order
            same = equal_rows(keys.columns, before, keys.columns, before + 1)
        first = np.ones(len(keys), bool)
        first[before[same] + 1] = False
        places = np.empty(len(keys), np.int64)
        places[ordered] = np.cumsum(first) - 1
        return keys.select(np.flatnonzero(first)), places

    def select(self, rows: Rows) -> TableKeys:
        """Return some of the keys; ``rows`` rise, or move equal hashes only."""
        return self._taken(self.columns, self.hashes, self.clusters, rows, self.order)

    @classmethod
    def _taken(
        cls,
        columns: Sequence[pa.Array],
        hashes: UInt64s,
        clusters: Int64s | None,
        rows: Rows,
        order: Rows | None = None,
    ) -> TableKeys:
        return cls(
            tuple(gather(column, rows) for column in columns),
            hashes[rows],
            None if clusters is None else np.asarray(clusters, np.int64)[rows],
            rows if order is None else order[rows],
        )


def sorted_rows(hashes: UInt64s, clusters: Int64s | None) -> Rows:
    """Return the rows in the order of runs; those of equal hash in any order."""
    by_hash = np.argsort(hashes)  # not stable, and five times as quick as what is
    if clusters is None or not len(hashes):
        return by_hash
    present = np.unique(clusters)
    if len(present) == 1:
        return by_hash
    if len(present) >= 1 << 16:
        return np.lexsort((hashes, clusters))
    codes = np.searchsorted(present, clusters).astype(np.uint16)
    rows: Rows = by_hash[np.argsort(codes[by_hash], kind="stable")]
    return rows


def tied(hashes: UInt64s, clusters: Int64s | None) -> npt.NDArray[np.bool_]:
    """Say of each row but the last of a sorted list whether the next has its hash; (n - 1,)."""
    same: npt.NDArray[np.bool_] = hashes[1:] == hashes[:-1]
    if clusters is not None:
        same &= clusters[1:] == clusters[:-1]
    return same


def canonical_order(
    columns: Sequence[pa.Array],
    hashes: UInt64s,
    clusters: Int64s | None,
    ties: npt.NDArray[np.bool_],
) -> Rows:
    """Return sorted rows so that equal keys are neighbours, in the order they came.

    Only rows that share their hash move: by their canonical encoding, which is slow and rare.
    """
    rows = np.arange(len(hashes))
    member = np.zeros(len(hashes), bool)
    member[:-1] |= ties
    member[1:] |= ties
    own = np.flatnonzero(member)
    begins = np.ones(len(own), bool)
    begins[1:] = ~ties[own[1:] - 1]
    encoded = encode_columns([gather(column, own) for column in columns]).to_list()
    rank = {key: number for number, key in enumerate(sorted(set(encoded)))}
    ranks = np.fromiter((rank[key] for key in encoded), np.int64, len(encoded))
    rows[own] = own[np.lexsort((ranks, np.cumsum(begins)))]
    return rows
