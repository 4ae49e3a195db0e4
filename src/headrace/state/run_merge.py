"""Make one sorted run of several, slice by slice, so that memory does not grow with the runs.

``LiveRowEstimate`` estimates how much of a table's runs still counts, from a sample of hashes:
hashes are even, so the rows of a narrow range of them stand for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
import pyarrow as pa

from headrace.records.schema import TableLayout
from headrace.records.xxh64 import UInt64s
from headrace.state.columns import (
    ALL_HASHES,
    HashRange,
    Int64s,
    Mask,
    Rows,
    canonical_order,
    concatenated_columns,
    equal_rows,
    flags,
    numbers,
    tied,
)
from headrace.state.sorted_run import Block, SortedRun, SortPosition, position_in

SLICE_ROWS = 1 << 20
SLICE_BYTES = 256 << 20
_ROWS_A_CLUSTER = 64


@dataclass(frozen=True)
class TableSlice:
    """Which rows of a table are wanted: a range of clusters, and one of hashes.

    ``clusters`` are the first and the one after the last; ``None`` is no bound.
    """

    clusters: tuple[int | None, int | None] = (None, None)
    hashes: HashRange = ALL_HASHES

    def is_contiguous(self, piece: Block) -> bool:
        """Say whether the rows of a range of hashes are neighbours: those of one cluster are."""
        first, last = self.clusters
        return not piece.has_clusters or (first is not None and last == first + 1)

    def of(self, piece: Block) -> list[tuple[int, int]]:
        """Return the ranges of rows within a piece, of all hashes where these are scattered."""
        info = piece.info
        if info.low_hash > self.hashes.last or info.high_hash < self.hashes.first:
            return []
        begin, end = 0, info.rows
        first, last = self.clusters
        if first is not None and first > info.first[0]:
            begin = position_in(piece, (first, 0), "left")
        if last is not None and last <= info.last[0]:
            end = position_in(piece, (last, 0), "left")
        if self.is_contiguous(piece) and not self.hashes.holds(info.low_hash, info.high_hash):
            cluster = first or 0
            begin = max(begin, position_in(piece, (cluster, self.hashes.first), "left"))
            end = min(end, position_in(piece, (cluster, self.hashes.last), "right"))
        return [(begin, end)] if begin < end else []


class _Cursor:
    """How far the rows of one run are taken, and up to which row they are looked at."""

    def __init__(self, run: SortedRun, part: TableSlice) -> None:
        hashes = run.hashes.within(part.hashes)
        own = TableSlice(part.clusters, hashes)
        self.left = [(piece, *rows) for piece in run.pieces for rows in own.of(piece)][::-1]
        self.rows = sum(end - begin for _, begin, end in self.left)
        self.taken = self.seen = 0
        infos = [piece.info for piece, _, _ in self.left if not own.is_contiguous(piece)]
        is_whole = all(hashes.holds(info.low_hash, info.high_hash) for info in infos)
        self.only = None if is_whole else hashes

    def place(self, row: int) -> SortPosition:
        """The place of a row that is not taken yet."""
        ahead = row - self.taken
        for piece, begin, end in reversed(self.left):
            if begin + ahead < end:
                return _place_of(piece, begin + ahead)
            ahead -= end - begin
        raise IndexError(row)

    def take(self, bound: SortPosition | None) -> list[pa.RecordBatch]:
        """Take the rows before a place; all when ``None``."""
        batches = []
        while self.left:
            piece, begin, end = self.left[-1]
            cut = end
            if bound is not None and _place_of(piece, end - 1) >= bound:
                cut = max(begin, position_in(piece, bound, "left"))
            if cut > begin:
                self.taken += cut - begin
                batches.append(piece.batch.slice(begin, cut - begin))
            if cut < end:
                self.left[-1] = (piece, cut, end)
                break
            self.left.pop()
        if (only := self.only) is None:
            return batches
        return [b.filter(pa.array(only.of(numbers(b.column(0), np.uint64)))) for b in batches]


def _place_of(piece: Block, row: int) -> SortPosition:
    info = piece.info
    if row in (0, info.rows - 1):  # known without reading the piece
        return info.last if row else info.first
    clusters = piece.clusters
    return (0 if clusters is None else int(clusters[row]), int(piece.hashes[row]))


class _SliceCutter:
    """Cuts all runs at the same places, with about so many rows between two of them.

    Rows are looked at a strip at a time, of the run first whose next row has the lowest place. So
    a turn touches no run but those that have rows in it: many runs whose rows are apart, as those
    of tasks are, cost what one does.
    """

    def __init__(self, cursors: Sequence[_Cursor], rows: int) -> None:
        self._cursors, self._rows = cursors, rows
        self._strip_rows = self._most = max(1, rows // 4)
        self._ahead: list[
            tuple[SortPosition, int, int]
        ] = []  # place, run, row; old ones are passed over

    def __iter__(self) -> Iterator[list[list[pa.RecordBatch]]]:
        """Yield the batches of each turn by run, the newest last, none empty."""
        left = sum(cursor.rows for cursor in self._cursors)
        if left > self._rows:
            for run in range(len(self._cursors)):
                self._put(run)
        while left > self._rows:
            runs, seen = self._look()
            bound, parts, taken = self._next(), [], 0
            for run in sorted(runs):
                cursor = self._cursors[run]
                taken -= cursor.taken
                parts.append(cursor.take(bound))
                taken += cursor.taken
                if cursor.taken < cursor.seen:
                    cursor.seen = cursor.taken
                    self._put(run)
            left -= taken
            # Of runs that lie over each other a strip each is looked at in vain.
            if taken < seen // 2:
                self._strip_rows = max(1, self._strip_rows // 2)
            elif taken > seen - seen // 8:
                self._strip_rows = min(2 * self._strip_rows, self._most)
            yield [part for part in parts if part]
        if left:
            yield [cursor.take(None) for cursor in self._cursors if cursor.taken < cursor.rows]

    def _look(self) -> tuple[set[int], int]:
        """Look at enough rows for a turn; return of which runs they are, and how many.

        Rows of one place are never cut apart, however many they are.
        """
        first, seen, runs = self._next(), 0, set[int]()
        while (place := self._next()) is not None and (seen < self._rows or place == first):
            run = heappop(self._ahead)[1]
            cursor = self._cursors[run]
            begin, cursor.seen = cursor.seen, min(cursor.seen + self._strip_rows, cursor.rows)
            seen += cursor.seen - begin
            runs.add(run)
            self._put(run)
        return runs, seen

    def _next(self) -> SortPosition | None:
        """The place of the first row that was not looked at yet; ``None``: there is none."""
        while self._ahead and self._ahead[0][2] != self._cursors[self._ahead[0][1]].seen:
            heappop(self._ahead)
        return self._ahead[0][0] if self._ahead else None

    def _put(self, run: int) -> None:
        cursor = self._cursors[run]
        if cursor.seen < cursor.rows:
            heappush(self._ahead, (cursor.place(cursor.seen), run, cursor.seen))


def rows_of(runs: Sequence[SortedRun], part: TableSlice) -> int:
    """Return how many rows ``merge_runs`` looks at for a part."""
    return sum(_Cursor(run, part).rows for run in runs)


def merged_schema(
    runs: Sequence[SortedRun | Sequence[pa.RecordBatch]], layout: TableLayout, drop_deleted: bool
) -> pa.Schema:
    """Return the schema of what ``merge_runs`` yields for the same arguments."""
    deletes = not drop_deleted and any(run.has_deletes for run in _runs(runs, layout))
    return layout.schema_with_deletes if deletes else layout.schema


def merge_runs(
    runs: Sequence[SortedRun | Sequence[pa.RecordBatch]],
    layout: TableLayout,
    drop_deleted: bool,
    now_ms: int | None = None,
    part: TableSlice = TableSlice(),
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
    horizon = _horizon(layout, now_ms) if drop_deleted else None
    for parts in _slices(whole, part, slice_rows):
        batch = _merged(parts, layout, schema, drop_deleted, horizon)
        if batch.num_rows:
            yield batch


def _live_rows(
    runs: Sequence[SortedRun], layout: TableLayout, now_ms: int | None, part: TableSlice
) -> int:
    """Return how many rows ``merge_runs`` yields for a part without those that are deleted."""
    live, horizon = 0, _horizon(layout, now_ms)
    for parts in _slices(runs, part, SLICE_ROWS):
        batches = [batch for own in parts for batch in own]
        rows, count = _chosen(batches, len(parts), layout, True, horizon)
        live += count if rows is None else len(rows)
    return live


def _horizon(layout: TableLayout, now_ms: int | None) -> int | None:
    return None if layout.ttl_ms is None or now_ms is None else now_ms - layout.ttl_ms


def _slices(
    runs: Sequence[SortedRun], part: TableSlice, slice_rows: int
) -> Iterator[list[list[pa.RecordBatch]]]:
    size = sum(run.size for run in runs) / max(1, sum(run.rows for run in runs))
    slice_rows = max(1, min(slice_rows, int(SLICE_BYTES / max(1, size))))
    return iter(_SliceCutter([_Cursor(run, part) for run in runs], slice_rows))


def _runs(
    runs: Sequence[SortedRun | Sequence[pa.RecordBatch]], layout: TableLayout
) -> list[SortedRun]:
    return [run if isinstance(run, SortedRun) else SortedRun.of(layout, run) for run in runs]


def _merged(
    parts: Sequence[list[pa.RecordBatch]],
    layout: TableLayout,
    schema: pa.Schema,
    drop_deleted: bool,
    horizon: int | None,
) -> pa.RecordBatch:
    batches = [batch for part in parts for batch in part]
    rows, count = _chosen(batches, len(parts), layout, drop_deleted, horizon)
    if rows is not None and len(rows) == count and np.array_equal(rows, np.arange(count)):
        rows = None
    taken = None if rows is None else pa.array(rows)
    columns = [_column(batches, at, taken) for at in range(len(layout.schema))]
    if len(schema) > len(layout.schema):
        columns.append(_deleted(batches, taken, len(layout.schema)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _chosen(
    batches: Sequence[pa.RecordBatch],
    parts: int,
    layout: TableLayout,
    drop_deleted: bool,
    horizon: int | None,
) -> tuple[Rows | None, int]:
    """Return which rows of some runs' batches stay, in order, and of how many.

    ``None``: all of them, as they are.
    """
    hashes = np.concatenate([numbers(batch.column(0), np.uint64) for batch in batches])
    clusters = None
    if layout.cluster:
        clusters = np.concatenate([numbers(batch.column(1), np.int64) for batch in batches])
    order, kept = None, None
    if parts > 1 and len(hashes):
        order, kept = _newest(batches, layout, hashes, clusters)
    gone = _unwanted(batches, layout, drop_deleted, horizon)
    if gone is not None:
        stays = ~(gone if order is None else gone[order])
        kept = stays if kept is None else kept & stays
    rows = order
    if kept is not None and not kept.all():
        rows = np.flatnonzero(kept) if order is None else order[kept]
    return rows, len(hashes)


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
        concatenated_columns([batch.column(at) for batch in batches])
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


def _column(batches: Sequence[pa.RecordBatch], at: int, rows: pa.Array | None) -> pa.Array:
    column = concatenated_columns([batch.column(at) for batch in batches])
    return column if rows is None else column.take(rows)


def _deleted(batches: Sequence[pa.RecordBatch], rows: pa.Array | None, width: int) -> pa.Array:
    columns = [
        batch.column(width)
        if batch.num_columns > width
        else pa.array(np.zeros(batch.num_rows, bool))
        for batch in batches
    ]
    column = concatenated_columns(columns)
    return column if rows is None else column.take(rows)


SAMPLE_ROWS = 4096
SAMPLE_CLUSTERS = 4
_RESOLUTION = 1 << 32


class LiveRowEstimate:
    """Keeps the estimate until the runs have grown or shrunk by an eighth, or time has.

    Args:
        layout: of the table.
    """

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._size = 0
        self._share = 1.0
        self._asked_ms = 0

    def live_bytes(self, runs: Sequence[SortedRun], now_ms: int | None) -> int:
        """Return about how many bytes the live rows of the runs take."""
        size = sum(run.size for run in runs)
        ttl_ms = self._layout.ttl_ms
        aged = ttl_ms is not None and (now_ms or 0) - self._asked_ms > ttl_ms // 8
        if aged or abs(size - self._size) > self._size // 8:
            self._asked_ms = now_ms or 0
            self._size, self._share = size, _share(runs, self._layout, now_ms)
        return int(size * self._share)


def _share(runs: Sequence[SortedRun], layout: TableLayout, now_ms: int | None) -> float:
    if len(runs) == 1 and layout.ttl_ms is None and not runs[0].has_deletes:
        return 1.0  # a run has each key once
    taken = live = 0
    for part in _parts(runs, layout):
        taken += rows_of(runs, part)
        live += _live_rows(runs, layout, now_ms, part)
    return live / taken if taken else 1.0


def _parts(runs: Sequence[SortedRun], layout: TableLayout) -> list[TableSlice]:
    rows = sum(run.rows for run in runs)
    infos = [piece.info for run in runs for piece in run.pieces]
    if not rows:
        return []
    low, high = min(i.low_hash for i in infos), max(i.high_hash for i in infos)
    wanted = min(_RESOLUTION, SAMPLE_ROWS * _RESOLUTION // rows)
    hashes = HashRange(low, low + (high - low) * wanted // _RESOLUTION)
    if not layout.cluster:
        return [TableSlice(hashes=hashes)]
    if any(info.clusters is None for info in infos):
        return []
    present = sorted({cluster for info in infos for cluster in info.clusters or ()})
    chosen = present[:: -(-len(present) // SAMPLE_CLUSTERS)]
    share = len(chosen) / len(present)
    wide = HashRange(low, low + int((high - low) * min(1.0, wanted / _RESOLUTION / share)))
    return [TableSlice((cluster, cluster + 1), wide) for cluster in chosen]
