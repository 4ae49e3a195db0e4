"""What a lookup gives: the rows of several runs, put together in the order of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.records.layout import TableLayout
from headrace.state.columnar.columns import Rows, from_plain, gather, joined, plain
from headrace.state.columnar.run import Hit


@dataclass(frozen=True)
class Found:
    """The keys of a request that exist.

    ``index`` are their places in the request's ``TableKeys``, rising, shape (m,); ``values``
    holds their value columns in the same order, m rows.
    """

    index: Rows
    values: pa.RecordBatch


def assemble(layout: TableLayout, hits: Sequence[Hit]) -> Found:
    """Put together what was found in several pieces."""
    hits = [hit for hit in hits if len(hit.keys)]
    if not hits:
        return Found(np.empty(0, np.int64), pa.RecordBatch.from_pylist([], schema=layout.values))
    if len(hits) == 1:
        index, order = hits[0].keys, None
    else:
        index = np.concatenate([hit.keys for hit in hits])
        order = None
        if not (index[1:] > index[:-1]).all():
            order = np.argsort(index)
            index = index[order]
    arrays = [_column(hits, at, order) for at in range(len(layout.values))]
    return Found(index, _batch(arrays, layout.values, len(index)))


def _column(hits: Sequence[Hit], at: int, order: Rows | None) -> pa.Array:
    columns = [hit.piece.values[at] for hit in hits]
    if len(hits) == 1:
        return gather(columns[0], hits[0].rows)
    views = [plain(column) for column in columns]
    if any(view is None for view in views):
        column = joined([gather(c, hit.rows) for c, hit in zip(columns, hits, strict=True)])
        return column if order is None else column.take(pa.array(order))
    parts = [view[hit.rows] for view, hit in zip(views, hits, strict=True) if view is not None]
    values = np.concatenate(parts)
    return from_plain(values if order is None else values[order], columns[0].type)


def _batch(arrays: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
