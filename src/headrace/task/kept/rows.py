"""What the nodes of kept tables share: the layout, the last row of each key, nulls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.graph.table_operators import KeepTable
from headrace.plan.stages import Stage
from headrace.records.layout import TableLayout
from headrace.state.columnar.columns import Mask, Rows


def kept_layout(stage: Stage, operator: KeepTable) -> TableLayout:
    """Return the layout of a table: its key, and all other columns."""
    source = stage.schemas[operator.inputs[0]]
    keys = pa.schema([source.field(name) for name in operator.keys])
    values = [field for field in source if field.name not in operator.keys]
    return TableLayout(keys, pa.schema(values))


def columns_of(batch: pa.RecordBatch, names: Sequence[str], like: pa.Schema) -> pa.RecordBatch:
    """Return some columns under the names that a table has for them."""
    return pa.RecordBatch.from_arrays([batch.column(name) for name in names], like.names)


def last_rows(places: Rows, count: int) -> Rows:
    """Return the last row of each key, by its place, of which each has one; shape (count,)."""
    last = np.empty(count, np.int64)
    last[places] = np.arange(len(places))  # of several to one place the last is kept
    return last


def all_null(columns: Sequence[pa.Array], rows: int) -> Mask:
    """Say in which rows all columns are null; in none where there is no column."""
    found = np.full(rows, bool(columns))
    for column in columns:
        if not found.any():
            break
        found &= _nulls(column)
    return found


def any_null(columns: Sequence[pa.Array]) -> Mask:
    """Say in which rows some column is null."""
    found = np.zeros(len(columns[0]), bool)
    for column in columns:
        if column.null_count:
            found |= _nulls(column)
    return found


def _nulls(column: pa.Array) -> Mask:
    if not column.null_count:
        return np.zeros(len(column), bool)
    found: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return found
