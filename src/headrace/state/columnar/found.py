"""What a lookup gives: the rows of several runs, put together in the order of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.records.layout import TableLayout
from headrace.state.columnar.columns import (
    Rows,
    from_plain,
    gather,
    joined,
    no_columns,
    numbers,
    plain,
)
from headrace.state.columnar.run import Hit


@dataclass(frozen=True)
class Found:
    """The keys of a request that exist.

    ``index`` are their places in the request's ``TableKeys``, rising, shape (m,); ``values``
    holds their value columns in the same order, m rows; ``written`` their event times in tables
    that go by them, shape (m,).
    """

    index: Rows
    values: pa.RecordBatch
    written: Rows | None = None


def assemble(
    layout: TableLayout, hits: Sequence[Hit], columns: Sequence[str] | None = None
) -> Found:
    """Put together what was found in several pieces: all value columns, or those named."""
    names = layout.values.names if columns is None else columns
    schema = pa.schema([layout.values.field(name) for name in names])
    hits = [hit for hit in hits if len(hit.keys)]
    if not hits:
        none = np.empty(0, np.int64)
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        return Found(none, empty, none if layout.by_event else None)
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
    return Found(index, _batch(arrays, schema, len(index)), written)


def _column(hits: Sequence[Hit], at: int, order: Rows | None) -> pa.Array:
    columns = [hit.piece.batch.column(at) for hit in hits]
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
    return pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else no_columns(rows)
