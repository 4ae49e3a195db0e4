"""Columns as NumPy arrays, their rows gathered and compared, without a step for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_WIDTHS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def plain(column: pa.Array) -> npt.NDArray[Any] | None:
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


def from_plain(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return what ``plain`` viewed as a column again."""
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


def gather(column: pa.Array, rows: Rows) -> pa.Array:
    """Return a column's values in some rows, which lie in it."""
    count = len(rows)
    if count and rows[-1] - rows[0] == count - 1 and _is_rising(rows):
        return column.slice(int(rows[0]), count)
    values = plain(column)
    if values is not None:
        return from_plain(values[rows], column.type)
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
    first, second = plain(one), plain(other)
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


def joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Return columns one after the other as one."""
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
