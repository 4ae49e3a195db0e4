"""Make one run of several, slice by slice, so that memory does not grow with the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from headrace.records.keys import UInt64s
from headrace.records.layout import TableLayout
from headrace.state.columnar.columns import Mask, Rows, equal_rows, flags, joined, numbers
from headrace.state.columnar.keys import (
    ALL_HASHES,
    HashRange,
    Int64s,
    canonical_order,
    tied,
)
from headrace.state.columnar.run import Piece, Place, Run, place_in

SLICE_ROWS = 1 << 20
SLICE_BYTES = 256 << 20
_ROWS_A_CLUSTER = 64


@dataclass(frozen=True)
class Part:
    """Which rows of a table are wanted: a range of clusters, and one of hashes.

    ``clusters`` are the first and the one after the last; ``None`` is no bound.
    """

    clusters: tuple[int | None, int | None] = (None, None)
    hashes: HashRange = ALL_HASHES

    def is_contiguous(self, piece: Piece) -> bool:
        """Say whether the rows of a range of hashes are neighbours: those of one cluster are."""
        first, last = self.clusters
        return not piece.has_clusters or (first is not None and last == first + 1)

    def of(self, piece: Piece) -> list[tuple[int, int]]:
        """Return the ranges of rows within a piece, of all hashes where these are scattered."""
        info = piece.info
        if info.low_hash > self.hashes.last or info.high_hash < self.hashes.first:
            return []
        begin, end = 0, info.rows
        first, last = self.clusters
        if first is not None and first > info.first[0]:
            begin = place_in(piece, (first, 0), "left")
        if last is not None and last <= info.last[0]:
            end = place_in(piece, (last, 0), "left")
        if self.is_contiguous(piece) and not self.hashes.holds(info.low_hash, info.high_hash):
            cluster = first or 0
            begin = max(begin, place_in(piece, (cluster, self.hashes.first), "left"))
            end = min(end, place_in(piece, (cluster, self.hashes.last), "right"))
        return [(begin, end)] if begin < end else []


class _Cursor:
    """How far the rows of one run are taken."""

    def __init__(self, run: Run, part: Part) -> None:
        hashes = run.hashes.within(part.hashes)
        own = Part(part.clusters, hashes)
        self.left = [(piece, *rows) for piece in run.pieces for rows in own.of(piece)][::-1]
        self.rows = sum(end - begin for _, begin, end in self.left)
        infos = [piece.info for piece, _, _ in self.left if not own.is_contiguous(piece)]
        is_whole = all(hashes.holds(info.low_hash, info.high_hash) for info in infos)
        self.only = None if is_whole else hashes

    def bound(self, ahead: int) -> Place | None:
        """The place of the row so far ahead; ``None`` when that is beyond the end."""
        for piece, begin, end in reversed(self.left):
            if begin + ahead < end:
                return _place_of(piece, begin + ahead)
            ahead -= end - begin
        return None

    def take(self, bound: Place | None) -> list[pa.RecordBatch]:
        """Take the rows up to a place, which is included; all when ``None``."""
        batches = []
        while self.left:
            piece, begin, end = self.left[-1]
            cut = end
            if bound is not None and _place_of(piece, end - 1) > bound:
                cut = max(begin, place_in(piece, bound, "right"))
            if cut > begin:
                self.rows -= cut - begin
                batches.append(piece.batch.slice(begin, cut - begin))
            if cut < end:
                self.left[-1] = (piece, cut, end)
                break
            self.left.pop()
        return batches if self.only is None else [_within(b, self.only) for b in batches]


def _within(batch: pa.RecordBatch, hashes: HashRange) -> pa.RecordBatch:
    own = numbers(batch.column(0), np.uint64)
    return batch.filter(
        pa.array((own >= np.uint64(hashes.first)) & (own <= np.uint64(hashes.last)))
    )


def _place_of(piece: Piece, row: int) -> Place:
    clusters = piece.clusters
    return (0 if clusters is None else int(clusters[row]), int(piece.hashes[row]))


def rows_of(runs: Sequence[Run], part: Part) -> int:
    """Return how many rows ``merge_runs`` looks at for a part."""
    return sum(_Cursor(run, part).rows for run in runs)


def merged_schema(
    runs: Sequence[Run | Sequence[pa.RecordBatch]], layout: TableLayout, drop_deleted: bool
) -> pa.Schema:
    """Return the schema of what ``merge_runs`` yields for the same arguments."""
    deletes = not drop_deleted and any(run.has_deletes for run in _runs(runs, layout))
    return layout.schema_with_deletes if deletes else layout.schema


def merge_runs(
    runs: Sequence[Run | Sequence[pa.RecordBatch]],
    layout: TableLayout,
    drop_deleted: bool,
    now_ms: int | None = None,
    part: Part = Part(),
    slice_rows: int = SLICE_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one run that stands for several.

    Args:
        runs: the newest last; each in order, as runs or as their batches.
        layout: of the table.
        drop_deleted: leave out deleted and expired rows, for nothing older is below.
        now_ms: the wall time, for rows that expire.
        part: take only these rows.
        slice_rows: about how many rows are held at once.

    Yields:
        Batches in order, none empty, all of ``merged_schema``.
    """
    whole = _runs(runs, layout)
    schema = merged_schema(whole, layout, drop_deleted)
    horizon = None
    if drop_deleted and layout.ttl_ms is not None and now_ms is not None:
        horizon = now_ms - layout.ttl_ms
    size = sum(run.size for run in whole) / max(1, sum(run.rows for run in whole))
    slice_rows = max(1, min(slice_rows, int(SLICE_BYTES / max(1, size))))
    cursors = [_Cursor(run, part) for run in whole]
    while total := sum(cursor.rows for cursor in cursors):
        bound = None
        if total > slice_rows:
            # In step with what is left of each, so that all come to their ends together.
            steps = [cursor.rows * slice_rows // total for cursor in cursors]
            bounds = [c.bound(step) for c, step in zip(cursors, steps, strict=True) if c.rows]
            bound = min((found for found in bounds if found is not None), default=None)
        parts = [taken for cursor in cursors if (taken := cursor.take(bound))]
        batch = _merged(parts, layout, schema, drop_deleted, horizon)
        if batch.num_rows:
            yield batch


def _runs(runs: Sequence[Run | Sequence[pa.RecordBatch]], layout: TableLayout) -> list[Run]:
    return [run if isinstance(run, Run) else Run.of(layout, run) for run in runs]


def _merged(
    parts: Sequence[list[pa.RecordBatch]],
    layout: TableLayout,
    schema: pa.Schema,
    drop_deleted: bool,
    horizon: int | None,
) -> pa.RecordBatch:
    batches = [batch for part in parts for batch in part]
    hashes = np.concatenate([numbers(batch.column(0), np.uint64) for batch in batches])
    clusters = None
    if layout.cluster:
        clusters = np.concatenate([numbers(batch.column(1), np.int64) for batch in batches])
    order, kept = None, None
    if len(parts) > 1 and len(hashes):
        order, kept = _newest(batches, layout, hashes, clusters)
    gone = _unwanted(batches, layout, drop_deleted, horizon)
    if gone is not None:
        stays = ~(gone if order is None else gone[order])
        kept = stays if kept is None else kept & stays
    rows = order
    if kept is not None and not kept.all():
        rows = np.flatnonzero(kept) if order is None else order[kept]
    columns = [_column(batches, at, rows, len(hashes)) for at in range(len(layout.schema))]
    if len(schema) > len(layout.schema):
        columns.append(_deleted(batches, rows, len(layout.schema)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _newest(
    batches: Sequence[pa.RecordBatch],
    layout: TableLayout,
    hashes: UInt64s,
    clusters: Int64s | None,
) -> tuple[Rows, Mask]:
    """Return the order of all rows, and which of them in that order are the newest of their key.

    The sort is stable and finds the runs that are sorted already, so newer rows come last.
    """
    order = _stable_order(hashes, clusters)
    kept = np.ones(len(order), bool)
    if layout.repeats:
        return order, kept
    by_hash, by_cluster = hashes[order], None if clusters is None else clusters[order]
    ties = tied(by_hash, by_cluster)
    before = np.flatnonzero(ties)
    if not len(before):
        return order, kept
    columns = [
        joined([batch.column(at) for batch in batches])
        for at in range(layout.first_key, layout.first_value)
    ]
    same = equal_rows(columns, order[before], columns, order[before + 1])
    if not same.all():
        taken = [column.take(pa.array(order)) for column in columns]
        order = order[canonical_order(taken, by_hash, by_cluster, ties)]
        same = equal_rows(columns, order[before], columns, order[before + 1])
    kept[before[same]] = False
    return order, kept


def _stable_order(hashes: UInt64s, clusters: Int64s | None) -> Rows:
    """Sort by cluster, then hash; each step finds the runs that are sorted already."""
    if clusters is None:
        return np.argsort(hashes, kind="stable")
    order = np.argsort(clusters, kind="stable")
    by_cluster, by_hash = clusters[order], hashes[order]
    cuts = [0, *(np.flatnonzero(by_cluster[1:] != by_cluster[:-1]) + 1).tolist(), len(order)]
    if len(cuts) > 8 + len(order) // _ROWS_A_CLUSTER:
        return np.lexsort((hashes, clusters))
    for begin, end in pairwise(cuts):
        own = order[begin:end]
        order[begin:end] = own[np.argsort(by_hash[begin:end], kind="stable")]
    return order


def _unwanted(
    batches: Sequence[pa.RecordBatch],
    layout: TableLayout,
    drop_deleted: bool,
    horizon: int | None,
) -> Mask | None:
    gone: Mask | None = None
    width = len(layout.schema)
    if drop_deleted and any(batch.num_columns > width for batch in batches):
        gone = flags(_deleted(batches, None, width))
    if horizon is not None:
        column = layout.first_key - 1
        written = np.concatenate([numbers(batch.column(column), np.int64) for batch in batches])
        gone = written <= horizon if gone is None else gone | (written <= horizon)
    return gone if gone is not None and gone.any() else None


def _column(batches: Sequence[pa.RecordBatch], at: int, rows: Rows | None, count: int) -> pa.Array:
    column = joined([batch.column(at) for batch in batches])
    if rows is None or (len(rows) == count and np.array_equal(rows, np.arange(count))):
        return column
    return column.take(pa.array(rows))


def _deleted(batches: Sequence[pa.RecordBatch], rows: Rows | None, width: int) -> pa.Array:
    columns = [
        batch.column(width)
        if batch.num_columns > width
        else pa.array(np.zeros(batch.num_rows, bool))
        for batch in batches
    ]
    column = joined(columns)
    return column if rows is None else column.take(pa.array(rows))
