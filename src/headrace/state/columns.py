"""Columns as NumPy arrays, without a step for each row, and the keys of one request to a table.

Keys of a request are distinct, hashed, and sorted as runs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.keys import encode_columns
from headrace.records.schema import CLUSTER, HASH, TableLayout, normalise
from headrace.records.xxh64 import UInt64s

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_WIDTHS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def fixed_width_view(column: pa.Array) -> npt.NDArray[Any] | None:
    """Return a column of fixed width without nulls as a view of its bits, else ``None``."""
    kind = column.type
    if column.null_count or not pa.types.is_primitive(kind) or pa.types.is_boolean(kind):
        return None
    dtype = _WIDTHS.get(kind.bit_width)
    data = column.buffers()[1]
    if dtype is None or data is None:
        return None
    offset = column.offset
    return np.frombuffer(data, dtype)[offset : offset + len(column)]


def from_fixed_width(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return what ``fixed_width_view`` viewed as a column again."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def numbers(column: pa.Array, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return a column of 64 bits without nulls as a view."""
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype)[column.offset : column.offset + len(column)]


def flags(column: pa.Array) -> Mask:
    """Return a boolean column without nulls as an array; copied."""
    found: Mask = column.to_numpy(zero_copy_only=False)
    return found


def any_null(columns: Sequence[pa.Array]) -> Mask:
    """Say in which rows some column is null."""
    found = np.zeros(len(columns[0]), bool)
    for column in columns:
        if column.null_count:
            found |= flags(column.is_null())
    return found


def gather(column: pa.Array, rows: Rows) -> pa.Array:
    """Return a column's values in some rows, which lie in it."""
    count = len(rows)
    if count and rows[-1] - rows[0] == count - 1 and _is_rising(rows):
        return column.slice(int(rows[0]), count)
    values = fixed_width_view(column)
    if values is not None:
        return from_fixed_width(values[rows], column.type)
    return column.take(pa.array(rows))


def _is_rising(rows: Rows) -> bool:
    return bool((rows[1:] > rows[:-1]).all())


def equal_rows(
    left: Sequence[pa.Array], left_rows: Rows, right: Sequence[pa.Array], right_rows: Rows
) -> Mask:
    """Say for each pair of rows whether their keys are the same, as the canonical encoding has it.

    Null equals null, NaN equals NaN, and -0.0 equals 0.0.
    """
    same = np.ones(len(left_rows), bool)
    for one, other in zip(left, right, strict=True):
        same &= _equal(one, left_rows, other, right_rows)
    return same


def _equal(one: pa.Array, one_rows: Rows, other: pa.Array, other_rows: Rows) -> Mask:
    first, second = fixed_width_view(one), fixed_width_view(other)
    floating = pa.types.is_floating(one.type)
    if first is not None and second is not None and not floating:
        found: Mask = first[one_rows] == second[other_rows]
        return found
    a, b = gather(one, one_rows), gather(other, other_rows)
    same = pc.equal(a, b).fill_null(False)
    if floating:
        nans = pc.and_(pc.is_nan(a), pc.is_nan(b)).fill_null(False)
        same = pc.or_(same, nans)
    if a.null_count or b.null_count:
        same = pc.or_(same, pc.and_(a.is_null(), b.is_null()))
    return flags(same)


def no_columns(rows: int) -> pa.RecordBatch:
    """Return so many rows without a column."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def concatenated_columns(columns: Sequence[pa.Array]) -> pa.Array:
    """Return columns one after the other as one."""
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


Int64s = npt.NDArray[np.int64]


class HashRange(NamedTuple):
    """The hashes of some key groups: the first and the last."""

    first: int
    last: int

    def within(self, other: HashRange) -> HashRange:
        """Return the hashes that are in both; when none are, ``first`` is above ``last``."""
        return HashRange(max(self.first, other.first), min(self.last, other.last))

    def of(self, hashes: UInt64s) -> Mask:
        """Say which of some hashes are in it."""
        return (hashes >= np.uint64(self.first)) & (hashes <= np.uint64(self.last))

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

    ``order`` says where the caller has each: row ``i`` here is row ``order[i]`` there.

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
