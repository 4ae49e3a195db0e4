"""A range of keys in canonical order, as a condition on key columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidInputError
from headrace.state.columnar.columns import Mask, Rows, flags


class KeyRange:
    """Which rows have keys from ``low`` to before ``high``; either may name some columns only.

    Nulls come before all values, NaN after all numbers.

    Raises:
        InvalidInputError: too many values, or one that is not of its column's type.
    """

    def __init__(
        self, keys: pa.Schema, low: Sequence[object] | None, high: Sequence[object] | None
    ) -> None:
        self._keys = keys
        self._low = _scalars(keys, low)
        self._high = _scalars(keys, high)

    def rows(self, batch: pa.RecordBatch) -> Rows | None:
        """Return the rows of a batch that are in the range; ``None`` when all are."""
        if not self._low and not self._high:
            return None
        columns = [batch.column(name) for name in self._keys.names]
        inside = np.ones(batch.num_rows, bool)
        if self._low:
            inside &= ~_before(columns, self._low)
        if self._high:
            inside &= _before(columns, self._high)
        return None if inside.all() else np.flatnonzero(inside)


def _scalars(keys: pa.Schema, values: Sequence[object] | None) -> list[pa.Scalar]:
    if values is None:
        return []
    if len(values) > len(keys):
        raise InvalidInputError(f"found {len(values)} values for the key columns {keys.names}")
    try:
        return [pa.scalar(v, field.type) for v, field in zip(values, keys, strict=False)]
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise InvalidInputError(f"{values!r} are no values of {keys.names}: {error}") from error


def _before(columns: Sequence[pa.Array], values: Sequence[pa.Scalar]) -> Mask:
    """Say which rows come before the values, which stand for the first columns."""
    before = np.zeros(len(columns[0]), bool)
    same = np.ones(len(columns[0]), bool)
    for column, value in zip(columns, values, strict=False):
        less, equal = _compared(column, value)
        before |= same & less
        same &= equal
    return before


def _compared(column: pa.Array, value: pa.Scalar) -> tuple[Mask, Mask]:
    nulls = flags(column.is_null())
    if not value.is_valid:
        return np.zeros(len(column), bool), nulls
    less = flags(pc.less(column, value).fill_null(True))
    equal = flags(pc.equal(column, value).fill_null(False))
    if pa.types.is_floating(column.type):
        nans = flags(pc.is_nan(column).fill_null(False))
        if value.as_py() != value.as_py():
            return ~nans, nans
        less &= ~nans
    return less, equal
