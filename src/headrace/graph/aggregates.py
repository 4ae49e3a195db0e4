"""Aggregates as monoids: a partial result, how two combine, and what is shown.

This file holds the interface and count, sum and mean; ``extremes`` holds min and max,
``ranking`` top k, ``monoid`` the user's own, ``agg`` the short functions that users call.

A partial result is one row of *partial columns*, named prefix + suffix, such as ``delay.``
and ``sum``. Four forms of the same law exist because each has its moment: ``partial`` folds
the rows of a group at once, ``combine`` folds partial rows, ``lift`` with ``accumulate``
gives the running result after each row, and the scalar forms do one step in Python.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError

Partial = tuple[Any, ...]
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def column_type(schema: pa.Schema, name: str) -> pa.DataType:
    """Return the type of a column.

    Raises:
        InvalidInputError: there is none of that name; names the nearest.
    """
    index = schema.get_field_index(name)
    if index < 0:
        raise InvalidInputError(unknown_column(name, schema.names))
    return schema.field(index).type


def unknown_column(name: str, names: list[str]) -> str:
    """Say that a column does not exist, with the nearest names or all of a few."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"columns are {names}"
    return f"no column {name!r}; {hint}"


@dataclass(frozen=True)
class Aggregate(ABC):
    """A monoid over messages, with a vectorised form.

    The planner calls ``bind`` once; expressions of a bound aggregate give exactly the types
    of ``partial_types`` and refuse integer overflow. Combining is associative, ``identity``
    changes nothing, and splitting the rows anywhere gives the same result (floating point
    sums: up to rounding). Order of rows is the order of arrival.
    """

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Return the columns that are read, without repeats."""

    def check(self) -> list[str]:
        """Return what is wrong with the arguments, one sentence each."""
        return []

    def bind(self, schema: pa.Schema) -> Self:
        """Return the same aggregate fitted to the types of its columns.

        Raises:
            InvalidInputError: a column is missing or of a type that does not fit.
        """
        return self

    @abstractmethod
    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return suffix and type of each partial column."""

    @abstractmethod
    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of what is shown.

        Raises:
            InvalidInputError: a column is missing or of a type that does not fit.
        """

    @abstractmethod
    def identity(self) -> Partial:
        """Return the partial result of no rows at all."""

    @abstractmethod
    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return the partial columns of each single row; as many rows as the frame."""

    @abstractmethod
    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the partial columns of a group of rows, for ``group_by().agg()``."""

    @abstractmethod
    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the partial columns of a group of partial rows, for ``group_by().agg()``."""

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr] | None:
        """Return two partial rows of one key as one, side by side in a frame, named as ``later``.

        Args:
            earlier: prefix of the columns that arrived first.
            later: prefix of the others.

        Returns:
            The partial columns; ``None`` where there is no such form, and ``combine`` is used.
        """
        return None

    def accumulate(self, prefix: str) -> list[pl.Expr] | None:
        """Return the running combination over partial rows, each to be used with ``.over(keys)``.

        Put the stored partial row of a key first, then the lifted rows. ``None``: there is no
        cumulative form; go row by row with ``combine_values``.
        """
        return None

    @abstractmethod
    def result(self, prefix: str) -> pl.Expr:
        """Return what is shown, an expression over partial columns; name it with ``alias``."""

    @abstractmethod
    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return the partial result of one row, given the values of ``columns()``."""

    @abstractmethod
    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Return two partial results as one; ``first`` arrived before ``second``."""

    @abstractmethod
    def result_value(self, partial: Partial) -> Any:
        """Return what is shown of a partial result."""

    @abstractmethod
    def describe(self) -> str:
        """Return a stable text: what must not change while state built with it is kept."""

    def fold(self, partials: Iterable[Partial]) -> Partial:
        """Combine partial results in the order given, beginning with the identity."""
        total = self.identity()
        for partial in partials:
            total = self.combine_values(total, partial)
        return total


def check_column(column: object, who: str) -> list[str]:
    """Return a sentence when a column argument is no name."""
    if isinstance(column, str) and column:
        return []
    return [f"{who} takes the name of a column; found {column!r}"]


@dataclass(frozen=True)
class Count(Aggregate):
    """How many rows, or how many with a value in ``column``."""

    column: str | None = None

    def columns(self) -> tuple[str, ...]:
        """Return the counted column, if any."""
        return () if self.column is None else (self.column,)

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        return [] if self.column is None else check_column(self.column, "count")

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one int64 column."""
        return {"count": self.result_type(schema)}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return int64."""
        if self.column is not None:
            column_type(schema, self.column)
        return pa.int64()

    def identity(self) -> Partial:
        """Return zero."""
        return (0,)

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return 1 for each counted row."""
        one = pl.repeat(1, pl.len(), dtype=pl.Int64)
        if self.column is not None:
            one = pl.col(self.column).is_not_null().cast(pl.Int64)
        return [one.alias(f"{prefix}count")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the number of counted rows."""
        number = pl.len() if self.column is None else pl.col(self.column).count()
        return [number.cast(pl.Int64).alias(f"{prefix}count")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Add counts."""
        return [pl.col(f"{prefix}count").sum()]

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Add two counts."""
        return [pl.col(f"{later}count") + pl.col(f"{earlier}count")]

    def accumulate(self, prefix: str) -> list[pl.Expr]:
        """Add counts row after row."""
        return [pl.col(f"{prefix}count").cum_sum()]

    def result(self, prefix: str) -> pl.Expr:
        """Return the count."""
        return pl.col(f"{prefix}count")

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return 1 for a counted row."""
        return (int(self.column is None or values[0] is not None),)

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Add counts."""
        return (first[0] + second[0],)

    def result_value(self, partial: Partial) -> Any:
        """Return the count."""
        return partial[0]

    def describe(self) -> str:
        """Return ``count()`` or ``count(column)``."""
        return f"count({self.column or ''})"


def _sum_type(kind: pa.DataType, who: str, column: str) -> pa.DataType:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    raise InvalidInputError(f"{who}({column!r}) needs numbers; the column is {kind}")


def _checked_sum(values: pl.Expr, kind: pa.DataType | None, *, running: bool = False) -> pl.Expr:
    """Sum into int64 or float64; integers go through 128 bits, so overflow is refused."""
    if kind is None:
        return values.cum_sum() if running else values.sum()
    wide = values.cast(pl.Float64 if pa.types.is_floating(kind) else pl.Int128)
    total = wide.cum_sum() if running else wide.sum()
    return total.cast(pl.Float64 if pa.types.is_floating(kind) else pl.Int64)


def _checked_pair(later: pl.Expr, earlier: pl.Expr, kind: pa.DataType | None) -> pl.Expr:
    """Add two columns of sums, refusing what does not fit in 64 bits."""
    if kind is None or pa.types.is_floating(kind):
        return later + earlier
    return (later.cast(pl.Int128) + earlier.cast(pl.Int128)).cast(pl.Int64)


def _checked_value(value: Any, who: str) -> Any:
    if isinstance(value, int) and not _INT64_MIN <= value <= _INT64_MAX:
        raise InvalidInputError(f"{who} is {value}, beyond 64 bits; sum a float column instead")
    return value


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of a column: int64 of integers, float64 of floats; nulls count as 0."""

    column: str
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    def columns(self) -> tuple[str, ...]:
        """Return the summed column."""
        return (self.column,)

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        return check_column(self.column, "sum")

    def bind(self, schema: pa.Schema) -> Self:
        """Return a sum that knows whether it adds integers or floats."""
        return replace(self, type=self.result_type(schema))

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one column of the result's type."""
        return {"sum": self.result_type(schema)}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return int64 or float64."""
        return _sum_type(column_type(schema, self.column), "sum", self.column)

    def identity(self) -> Partial:
        """Return zero."""
        return (0.0 if self.type is not None and pa.types.is_floating(self.type) else 0,)

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return the value, or 0 for null."""
        values = pl.col(self.column)
        if self.type is not None:
            values = values.cast(pl.Float64 if pa.types.is_floating(self.type) else pl.Int64)
        return [values.fill_null(0).alias(f"{prefix}sum")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the sum of a group."""
        return [_checked_sum(pl.col(self.column), self.type).alias(f"{prefix}sum")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Add sums."""
        return [_checked_sum(pl.col(f"{prefix}sum"), self.type)]

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Add two sums."""
        return [_checked_pair(pl.col(f"{later}sum"), pl.col(f"{earlier}sum"), self.type)]

    def accumulate(self, prefix: str) -> list[pl.Expr]:
        """Add sums row after row."""
        return [_checked_sum(pl.col(f"{prefix}sum"), self.type, running=True)]

    def result(self, prefix: str) -> pl.Expr:
        """Return the sum."""
        return pl.col(f"{prefix}sum")

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return the value, or 0 for null."""
        return (self.identity()[0] if values[0] is None else self.identity()[0] + values[0],)

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Add sums, refusing what does not fit in 64 bits."""
        return (_checked_value(first[0] + second[0], self.describe()),)

    def result_value(self, partial: Partial) -> Any:
        """Return the sum."""
        return partial[0]

    def describe(self) -> str:
        """Return ``sum(column)``."""
        return f"sum({self.column})"


@dataclass(frozen=True)
class Mean(Aggregate):
    """The mean of a column, without nulls; the mean of nothing is null."""

    column: str
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    def columns(self) -> tuple[str, ...]:
        """Return the averaged column."""
        return (self.column,)

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        return check_column(self.column, "mean")

    def bind(self, schema: pa.Schema) -> Self:
        """Return a mean that knows whether it adds integers or floats."""
        return replace(self, type=self.partial_types(schema)["sum"])

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the sum, exact for integers, and the count."""
        kind = _sum_type(column_type(schema, self.column), "mean", self.column)
        return {"sum": kind, "count": pa.int64()}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return float64."""
        self.partial_types(schema)
        return pa.float64()

    def _sum(self) -> Sum:
        return Sum(self.column, self.type)

    def _count(self) -> Count:
        return Count(self.column)

    def identity(self) -> Partial:
        """Return a sum of zero over no rows."""
        return (*self._sum().identity(), 0)

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return the value and 1, or 0 and 0 for null."""
        return [*self._sum().lift(prefix), *self._count().lift(prefix)]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the sum and count of a group."""
        return [*self._sum().partial(prefix), *self._count().partial(prefix)]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Add sums and counts."""
        return [*self._sum().combine(prefix), *self._count().combine(prefix)]

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Add two sums and two counts."""
        sums = self._sum().combine_pair(earlier, later)
        return [*sums, *self._count().combine_pair(earlier, later)]

    def accumulate(self, prefix: str) -> list[pl.Expr]:
        """Add sums and counts row after row."""
        return [*self._sum().accumulate(prefix), *self._count().accumulate(prefix)]

    def result(self, prefix: str) -> pl.Expr:
        """Return sum over count, or null."""
        count = pl.col(f"{prefix}count")
        total = pl.col(f"{prefix}sum").cast(pl.Float64)
        return pl.when(count > 0).then(total / count).otherwise(None)

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return the value and 1, or 0 and 0 for null."""
        return (*self._sum().lift_values(values), int(values[0] is not None))

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Add sums and counts."""
        return (_checked_value(first[0] + second[0], self.describe()), first[1] + second[1])

    def result_value(self, partial: Partial) -> Any:
        """Return sum over count, or None."""
        return float(partial[0]) / partial[1] if partial[1] else None

    def describe(self) -> str:
        """Return ``mean(column)``."""
        return f"mean({self.column})"
