"""A table of one task: what the epoch changed, over the runs that were committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.records.layout import WRITTEN, TableLayout
from headrace.records.schema import normalise
from headrace.state.columnar.columns import gather
from headrace.state.columnar.found import Found, assemble
from headrace.state.columnar.keys import ALL_HASHES, HashRange, Int64s, TableKeys
from headrace.state.columnar.live import LiveShare
from headrace.state.columnar.merge import Part, merge_runs, merged_schema
from headrace.state.columnar.ranges import KeyRange
from headrace.state.columnar.run import Hit, Run

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
        self._committed: list[Run] = []
        self._changes: list[Run] = []
        self._now_ms: int | None = None
        self._share = LiveShare(layout)

    @property
    def runs(self) -> Sequence[Run]:
        """The committed runs, the newest last."""
        return self._committed

    def attach(self, runs: Sequence[Run]) -> None:
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
    ) -> Found:
        """Return the values of the keys that exist.

        Args:
            keys: a request's.
            columns: of the values; default: all.
            committed: as they were when the epoch began.
        """
        hits: list[Hit] = []
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

    def _live(self, hit: Hit) -> Hit:
        gone = hit.piece.gone(hit.rows, self._horizon)
        return hit if gone is None else Hit(hit.piece, hit.keys[~gone], hit.rows[~gone])

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
            self._changes.append(Run.of(self.layout, [rows]))
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
        self._changes.append(Run.of(layout, [batch]))
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

    def _merged(self, runs: Sequence[Run]) -> Run:
        return Run.of(self.layout, list(merge_runs(runs, self.layout, drop_deleted=False)))

    def scan(
        self,
        *,
        cluster_from: int | None = None,
        cluster_below: int | None = None,
        low: Sequence[object] | None = None,
        high: Sequence[object] | None = None,
        hashes: HashRange | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the live rows, as they are at the call, by cluster and hash.

        Args:
            cluster_from: the first cluster.
            cluster_below: the cluster before which to stop.
            low: values of the first key columns; rows whose key comes before are left out.
            high: values of the first key columns; rows whose key is theirs or comes after are
                left out.
            hashes: those of some key groups only.

        Yields:
            Batches of ``__hash``, ``__cluster`` where there are clusters, keys and values.
        """
        part = Part((cluster_from, cluster_below), hashes or ALL_HASHES)
        wanted = KeyRange(self.layout.keys, low, high)
        return self._scan([*self._committed, *self._changes], part, wanted, self._now_ms)

    def _scan(
        self, runs: Sequence[Run], part: Part, wanted: KeyRange, now_ms: int | None
    ) -> Iterator[pa.RecordBatch]:
        hidden = WRITTEN if self.layout.ttl_ms is not None else None
        names = [name for name in self.layout.schema.names if name != hidden]
        for batch in merge_runs(runs, self.layout, True, now_ms, part):
            rows = wanted.rows(batch)
            columns = [batch.column(name) for name in names]
            if rows is not None:
                columns = [gather(column, rows) for column in columns]
            if len(columns[0]):
                yield pa.RecordBatch.from_arrays(columns, names=names)

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
