"""Partial results in a columnar table: the default, for nothing in it is done row by row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.records.layout import CLUSTER, TableLayout
from headrace.records.schema import normalise
from headrace.state.columnar.keys import TableKeys
from headrace.state.columnar.table import ColumnarTable
from headrace.task.chunk import Ints
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.partial_table import BUCKET, PartialTable

TOTALS = -(1 << 63)
"""The cluster of totals, in tables that have buckets beside them: before every bucket."""


def partial_layout(
    aggregation: Aggregation, keys: pa.Schema, *, buckets: bool, ttl_ms: int | None = None
) -> TableLayout:
    """Return the layout of a table of partials.

    Args:
        aggregation: what is kept.
        keys: the key columns.
        buckets: whether rows are by bucket and key; the bucket is the cluster.
        ttl_ms: how long after it was written a row is there.
    """
    return TableLayout(keys, aggregation.codec.arrow, buckets, ttl_ms)


class ColumnarPartials(PartialTable[TableKeys]):
    """Partial results as rows of a table.

    Args:
        table: made for the layout of ``partial_layout``.
        aggregation: what is kept.
    """

    def __init__(self, table: ColumnarTable, aggregation: Aggregation) -> None:
        super().__init__(aggregation, table.layout.keys.names)
        self._table, self._layout = table, table.layout

    def address(self, heads: pl.DataFrame) -> tuple[TableKeys, Ints]:
        """Hash the keys and sort them by bucket and hash."""
        clusters = None
        if BUCKET in heads.columns:
            clusters = heads[BUCKET].to_numpy()
        elif self._layout.cluster:
            clusters = np.full(heads.height, TOTALS)
        keys = TableKeys.of(self._layout, heads.select(self.keys).to_arrow(), clusters)
        return keys, keys.order

    def lookup(self, keys: TableKeys) -> tuple[pl.DataFrame, Ints]:
        """Search all runs."""
        found = self._table.get(keys)
        return _frame(found.values), found.index

    def put(self, keys: TableKeys, partials: pl.DataFrame) -> None:
        """Lay rows over those that are there."""
        values = normalise(partials.select(self.partials).to_arrow(), self._layout.values)
        self._table.put(keys, values)

    def buckets(self) -> set[int]:
        """Read what the runs say of themselves."""
        return set(self._table.clusters()) - {TOTALS}

    def take(self, first: int, last: int) -> Iterator[pl.DataFrame]:
        """Scan the buckets, then delete them."""
        for rows in self._table.scan(cluster_from=first, cluster_below=last + 1):
            self._table.delete(TableKeys.of_rows(self._layout, rows))
            yield self._shown(rows)

    def scan(self, first: int, last: int) -> Iterator[pl.DataFrame]:
        """Scan the buckets."""
        for rows in self._table.scan(cluster_from=first, cluster_below=last + 1):
            yield self._shown(rows)

    def remove(self, keys: TableKeys) -> None:
        """Lay deletions over rows."""
        self._table.delete(keys)

    def _shown(self, rows: pa.RecordBatch) -> pl.DataFrame:
        names = [CLUSTER, *self.keys, *self.partials]
        return _frame(rows.select(names)).rename({CLUSTER: BUCKET})


def _frame(batch: pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    return frame
