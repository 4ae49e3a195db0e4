"""The least and the greatest value as aggregates, and which types have an order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate, Partial, check_column, column_type

_ORDERED = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_decimal,
)


def ordered_type(schema: pa.Schema, column: str, who: str) -> pa.DataType:
    """Return the type of a column whose values have an order.

    Raises:
        InvalidInputError: the column is missing, or a list, struct or binary.
    """
    kind = column_type(schema, column)
    if not any(test(kind) for test in _ORDERED):
        raise InvalidInputError(f"{who}({column!r}) needs values with an order; found {kind}")
    return kind


@dataclass(frozen=True)
class Extreme(Aggregate):
    """The least or greatest value of a column, without nulls and NaN; of nothing it is null."""

    column: str
    is_max: bool = False
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    @property
    def _name(self) -> str:
        return "max" if self.is_max else "min"

    def columns(self) -> tuple[str, ...]:
        """Return the compared column."""
        return (self.column,)

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        return check_column(self.column, self._name)

    def bind(self, schema: pa.Schema) -> Self:
        """Return an extreme that knows the type it compares."""
        return replace(self, type=self.result_type(schema))

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one column of the result's type."""
        return {self._name: self.result_type(schema)}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the column."""
        return ordered_type(schema, self.column, self._name)

    def identity(self) -> Partial:
        """Return null."""
        return (None,)

    def _values(self) -> pl.Expr:
        values = pl.col(self.column)
        is_float = self.type is not None and pa.types.is_floating(self.type)
        return values.fill_nan(None) if is_float else values

    def _fold(self, values: pl.Expr) -> pl.Expr:
        return values.max() if self.is_max else values.min()

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return the value."""
        return [self._values().alias(f"{prefix}{self._name}")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the extreme of a group."""
        return [self._fold(self._values()).alias(f"{prefix}{self._name}")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the extreme of extremes."""
        return [self._fold(pl.col(f"{prefix}{self._name}"))]

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Return the extreme of two."""
        both = [pl.col(f"{later}{self._name}"), pl.col(f"{earlier}{self._name}")]
        return [pl.max_horizontal(both) if self.is_max else pl.min_horizontal(both)]

    def accumulate(self, prefix: str) -> list[pl.Expr]:
        """Return the extreme so far, row after row."""
        values = pl.col(f"{prefix}{self._name}")
        return [(values.cum_max() if self.is_max else values.cum_min()).forward_fill()]

    def result(self, prefix: str) -> pl.Expr:
        """Return the extreme."""
        return pl.col(f"{prefix}{self._name}")

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return the value; None for NaN."""
        value = values[0]
        return (None if isinstance(value, float) and math.isnan(value) else value,)

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Return the extreme of two."""
        if first[0] is None or second[0] is None:
            return first if second[0] is None else second
        return (max(first[0], second[0]) if self.is_max else min(first[0], second[0]),)

    def result_value(self, partial: Partial) -> Any:
        """Return the extreme."""
        return partial[0]

    def describe(self) -> str:
        """Return ``min(column)`` or ``max(column)``."""
        return f"{self._name}({self.column})"
