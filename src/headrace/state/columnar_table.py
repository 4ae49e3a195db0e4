"""A table of one task: what the epoch changed, over the runs that were committed.

A lookup puts the rows of several runs together in the order of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.records.schema import WRITTEN, TableLayout, normalise
from headrace.state.columns import (
    HashRange,
    Int64s,
    Rows,
    TableKeys,
    concatenated_columns,
    fixed_width_view,
    from_fixed_width,
    gather,
    no_columns,
    numbers,
)
from headrace.state.run_merge import LiveRowEstimate, TableSlice, merge_runs, merged_schema
from headrace.state.sorted_run import BlockHit, SortedRun


@dataclass(frozen=True)
class LookupResult:
    """The keys of a request that exist.

    ``index`` are their places in the request's ``TableKeys``, rising, shape (m,); ``values``
    holds their value columns in the same order, m rows; ``written`` their event times in tables
    that go by them, shape (m,).
    """

    index: Rows
    values: pa.RecordBatch
    written: Rows | None = None


def assemble(
    layout: TableLayout, hits: Sequence[BlockHit], columns: Sequence[str] | None = None
) -> LookupResult:
    """Put together what was found in several pieces: all value columns, or those named."""
    names = layout.values.names if columns is None else columns
    schema = pa.schema([layout.values.field(name) for name in names])
    hits = [hit for hit in hits if len(hit.keys)]
    if not hits:
        none = np.empty(0, np.int64)
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        return LookupResult(none, empty, none if layout.by_event else None)
    if len(hits) == 1:
        index, order = hits[0].keys, None
    else:
        index = np.concatenate([hit.keys for hit in hits])
        order = None
        if not (index[1:] > index[:-1]).all():
            order = np.argsort(index)
            index = index[order]
    first = layout.first_value
    places = [first + layout.values.get_field_index(name) for name in names]
    arrays = [_column(hits, at, order) for at in places]
    written = None
    if layout.by_event:
        written = numbers(_column(hits, layout.first_key - 1, order), np.int64)
    return LookupResult(index, _batch(arrays, schema, len(index)), written)


def _column(hits: Sequence[BlockHit], at: int, order: Rows | None) -> pa.Array:
    columns = [hit.piece.batch.column(at) for hit in hits]
    if len(hits) == 1:
        return gather(columns[0], hits[0].rows)
    views = [fixed_width_view(column) for column in columns]
    if any(view is None for view in views):
        column = concatenated_columns(
            [gather(c, hit.rows) for c, hit in zip(columns, hits, strict=True)]
        )
        return column if order is None else column.take(pa.array(order))
    parts = [view[hit.rows] for view, hit in zip(views, hits, strict=True) if view is not None]
    values = np.concatenate(parts)
    return from_fixed_width(values if order is None else values[order], columns[0].type)


def _batch(arrays: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else no_columns(rows)


_MERGE_FROM = 4


class TableChanges(NamedTuple):
    """What an epoch changed of a table: sorted batches of one schema."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]


class ColumnarTable:
    """The rows of one store of one task, by key; for one thread.

    Within an epoch later changes lie over earlier ones, and all of them over the committed
    runs. Runs are never changed, so a scan sees the table as it was when it began.

    Args:
        layout: of the rows.
    """

    def __init__(self, layout: TableLayout) -> None:
        self.layout = layout
        self._committed: list[SortedRun] = []
        self._changes: list[SortedRun] = []
        self._now_ms: int | None = None
        self._share = LiveRowEstimate(layout)

    @property
    def runs(self) -> Sequence[SortedRun]:
        """The committed runs, the newest last."""
        return self._committed

    def attach(self, runs: Sequence[SortedRun]) -> None:
        """Set the committed runs, the newest last; changes of an epoch are forgotten."""
        self._committed = list(runs)
        self._changes = []

    def begin(self, now_ms: int | None = None) -> None:
        """Begin an epoch.

        Args:
            now_ms: its wall time, which rows are written at and expire by; tables whose rows
                expire need it. The watermark in tables that go by event time.
        """
        self._now_ms = now_ms

    def get(
        self,
        keys: TableKeys,
        columns: Sequence[str] | None = None,
        *,
        committed: bool = False,
    ) -> LookupResult:
        """Return the values of the keys that exist.

        Args:
            keys: a request's.
            columns: of the values; default: all.
            committed: as they were when the epoch began.
        """
        hits: list[BlockHit] = []
        wanted = np.arange(len(keys))
        runs = self._committed if committed else [*self._committed, *self._changes]
        for run in reversed(runs):
            if not len(wanted):
                break
            own = list(run.find(keys, wanted))
            if own:
                left = np.zeros(len(keys), bool)
                left[wanted] = True
                for hit in own:
                    left[hit.keys] = False
                wanted = np.flatnonzero(left)
                hits += own
        return assemble(self.layout, [self._live(hit) for hit in hits], columns)

    def _live(self, hit: BlockHit) -> BlockHit:
        gone = hit.piece.gone(hit.rows, self._horizon)
        return hit if gone is None else BlockHit(hit.piece, hit.keys[~gone], hit.rows[~gone])

    @property
    def _horizon(self) -> int | None:
        ttl_ms = self.layout.ttl_ms
        return None if ttl_ms is None or self._now_ms is None else self._now_ms - ttl_ms

    def put(
        self, keys: TableKeys, values: pa.RecordBatch | pa.Table, written: Int64s | None = None
    ) -> None:
        """Set the values of keys.

        Args:
            keys: a request's.
            values: their value columns, in any form that ``normalise`` takes, in the order of
                the sorted keys: the caller's rows taken by ``keys.order``.
            written: event times of the rows, in tables that go by them.
        """
        batch = normalise(values, self.layout.values)
        assert batch.num_rows == len(keys), "a row of values for each key"
        self._add(keys, batch.columns, written, deleted=False)

    def delete(self, keys: TableKeys) -> None:
        """Delete keys; deleting what is not there is fine."""
        nothing = [pa.nulls(len(keys), field.type) for field in self.layout.values]
        self._add(keys, nothing, deleted=True)

    def append(self, rows: pa.RecordBatch) -> None:
        """Add rows to a table in which several may have one key.

        Args:
            rows: columns of the layout's schema, by hash.
        """
        assert self.layout.repeats, "rows of other tables are put under their keys"
        if rows.num_rows:
            self._changes.append(SortedRun.of(self.layout, [rows]))
            self._merge_changes()

    def _add(
        self,
        keys: TableKeys,
        values: Sequence[pa.Array],
        written: Int64s | None = None,
        *,
        deleted: bool,
    ) -> None:
        if not len(keys):
            return
        layout = self.layout
        columns: list[pa.Array] = [pa.array(keys.hashes)]
        if keys.clusters is not None:
            columns.append(pa.array(keys.clusters))
        if layout.ttl_ms is not None:
            if written is None:
                assert self._now_ms is not None, "rows that expire need the wall time of the epoch"
                written = np.full(len(keys), self._now_ms, np.int64)
            columns.append(pa.array(written))
        columns += [*keys.columns, *values]
        schema = layout.schema
        if deleted:
            schema = layout.schema_with_deletes
            columns.append(pa.array(np.ones(len(keys), bool)))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        self._changes.append(SortedRun.of(layout, [batch]))
        self._merge_changes()

    def _merge_changes(self) -> None:
        """Merge the newest changes when several have gathered of about one size.

        So a row is merged as often as its epoch has doubled, and lookups meet few runs.
        """
        begin = len(self._changes) - 1
        total = self._changes[begin].rows
        while begin and self._changes[begin - 1].rows <= total:
            begin -= 1
            total += self._changes[begin].rows
        if len(self._changes) - begin >= _MERGE_FROM:
            self._changes[begin:] = [self._merged(self._changes[begin:])]

    def _merged(self, runs: Sequence[SortedRun]) -> SortedRun:
        return SortedRun.of(self.layout, list(merge_runs(runs, self.layout, drop_deleted=False)))

    def scan(
        self,
        *,
        cluster_from: int | None = None,
        cluster_below: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the live rows, as they are at the call, by cluster and hash.

        Args:
            cluster_from: the first cluster.
            cluster_below: the cluster before which to stop.

        Yields:
            Batches of ``__hash``, ``__cluster`` where there are clusters, keys and values.
        """
        part = TableSlice((cluster_from, cluster_below))
        return self._scan([*self._committed, *self._changes], part, self._now_ms)

    def _scan(
        self, runs: Sequence[SortedRun], part: TableSlice, now_ms: int | None
    ) -> Iterator[pa.RecordBatch]:
        hidden = WRITTEN if self.layout.ttl_ms is not None else None
        names = [name for name in self.layout.schema.names if name != hidden]
        for batch in merge_runs(runs, self.layout, True, now_ms, part):
            columns = [batch.column(name) for name in names]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    @property
    def rows(self) -> int:
        """How many rows the committed runs have, with those that count no more."""
        return sum(run.rows for run in self._committed)

    def scan_part(self, part: int, parts: int) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of one of some parts of about the same size, as ``scan`` does.

        Args:
            part: from 0.
            parts: into which the range of hashes that the runs have is cut.
        """
        runs = [*self._committed, *self._changes]
        spans = [
            HashRange(piece.info.low_hash, piece.info.high_hash).within(run.hashes)
            for run in runs
            for piece in run.pieces
        ]
        if spans := [span for span in spans if span.first <= span.last]:
            first, last = min(spans)[0], max(span.last for span in spans)
            begin, end = (first + (last + 1 - first) * at // parts for at in (part, part + 1))
            within = TableSlice(hashes=HashRange(begin, end - 1))
            yield from self._scan(runs, within, self._now_ms)

    def clusters(self) -> list[int]:
        """Return the clusters of all rows, rising; those of rows deleted since may be there too."""
        found: set[int] = set()
        for run in (*self._committed, *self._changes):
            found |= run.clusters()
        return sorted(found)

    def first_cluster(self, at_least: int) -> int | None:
        """Return the first cluster from ``at_least`` on; rows of others may lie there."""
        pieces = [piece for run in (*self._committed, *self._changes) for piece in run.pieces]
        found = (
            int(piece.clusters[np.searchsorted(piece.clusters, at_least)])
            for piece in pieces
            if piece.info.last[0] >= at_least and piece.clusters is not None
        )
        return min(found, default=None)

    def seal(self) -> TableChanges | None:
        """Return what the epoch changed; it stays until ``attach`` or ``discard``."""
        if len(self._changes) > 1:
            self._changes = [self._merged(self._changes)]
        if not self._changes:
            return None
        schema = merged_schema(self._changes, self.layout, drop_deleted=False)
        batches = [
            # Keys that were deleted may have been put again: then no column says so.
            pa.RecordBatch.from_arrays(piece.batch.columns[: len(schema)], schema=schema)
            for piece in self._changes[0].pieces
        ]
        return TableChanges(schema, batches)

    def discard(self) -> None:
        """Forget what the epoch changed."""
        self._changes = []

    @property
    def overlay_bytes(self) -> int:
        """How much memory the changes of the epoch take."""
        return sum(run.size for run in self._changes)

    @property
    def live_bytes(self) -> int:
        """About how many bytes the committed rows take that are still seen."""
        return self._share.live_bytes(self._committed, self._now_ms)
