"""Aggregates as monoids: a partial result, how two combine, and what is shown.

A partial result is one row of columns. ``partial`` folds a group of rows, ``combine`` a group of
partial rows, ``lift`` and ``accumulate`` give running totals. The planner binds each aggregate to
the types of its columns. Here are the base class and those of numbers: count, sum, mean, least and
greatest value, variance. ``row_aggregates`` and ``sketches`` have the others, ``agg`` makes all.
Names of these classes are in the catalog of a job: see ``coordinator``.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError

PartialRow = tuple[Any, ...]
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
class NamedAggregate:
    """An aggregate with the name of the column of its result; made by ``Aggregate.alias``."""

    name: str
    aggregate: Aggregate


@dataclass(frozen=True)
class Aggregate(ABC):
    """A monoid over messages, with a vectorised form.

    The planner calls ``bind`` once; expressions of a bound aggregate give exactly the types
    of ``partial_types`` and refuse integer overflow. Combining is associative, ``identity``
    changes nothing, and splitting the rows anywhere gives the same result (floating point
    sums: up to rounding). Order of rows is the order of arrival.
    """

    is_per_epoch: ClassVar[bool] = False
    """Whether its messages are totals of an epoch already, so that none is sent for each."""

    def alias(self, name: str) -> NamedAggregate:
        """Name the column of the result, which may be any name."""
        return NamedAggregate(name, self)

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Return the columns that are read, without repeats."""

    def check(self) -> list[str]:
        """Return the mistakes in the arguments, one sentence each."""
        return []

    def bind(self, schema: pa.Schema) -> Self:
        """Return the aggregate for the types of its columns.

        Raises:
            InvalidInputError: a column is missing or of a type that does not fit.
        """
        return self

    @abstractmethod
    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return suffix and type of each partial column."""

    @abstractmethod
    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the result.

        Raises:
            InvalidInputError: a column is missing or of a type that does not fit.
        """

    @abstractmethod
    def identity(self) -> PartialRow:
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
            The partial columns; ``None`` if there is no such form, and ``combine`` is used.
        """
        return None

    def accumulate(self, prefix: str) -> list[pl.Expr] | None:
        """Return the running combination over partial rows, each to be used with ``.over(keys)``.

        Put the stored partial row of a key first, then the lifted rows. ``None``: there is no
        cumulative form; use ``combine_values`` row by row.
        """
        return None

    def follow(self, frame: pl.DataFrame, group: str, prefix: str) -> list[pl.Series] | None:
        """Return the running combination within groups, as far as it is shown.

        Args:
            frame: partial rows in order, that stored of each group first; shape (n,).
            group: the column with the group of each row.
            prefix: of the partial columns.

        Returns:
            The partial columns: whole in the last row of each group, in the others what ``result``
            reads. ``None``: use ``accumulate``.
        """
        return None

    @abstractmethod
    def result(self, prefix: str) -> pl.Expr:
        """Return the result, an expression over partial columns; name it with ``alias``."""

    @abstractmethod
    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return the partial result of one row, given the values of ``columns()``."""

    @abstractmethod
    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return two partial results as one; ``first`` arrived before ``second``."""

    @abstractmethod
    def result_value(self, partial: PartialRow) -> Any:
        """Return the result of a partial result."""

    @abstractmethod
    def describe(self) -> str:
        """Return a stable text of everything that must not change while its state is kept."""

    def fold(self, partials: Iterable[PartialRow]) -> PartialRow:
        """Combine partial results in the given order, starting with the identity."""
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
class KeptAggregate(Aggregate):
    """An aggregate that shows its first partial column as it is; ``kept`` is its suffix."""

    kept: ClassVar[str]

    def result(self, prefix: str) -> pl.Expr:
        """Return the partial column."""
        return pl.col(f"{prefix}{self.kept}")

    def result_value(self, partial: PartialRow) -> Any:
        """Return the partial result."""
        return partial[0]


@dataclass(frozen=True)
class ColumnAggregate(Aggregate):
    """An aggregate of the values of one column."""

    column: str

    @property
    @abstractmethod
    def _name(self) -> str:
        """What users call it."""

    def columns(self) -> tuple[str, ...]:
        """Return the column."""
        return (self.column,)

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        return check_column(self.column, self._name)

    def describe(self) -> str:
        """Return the name and the column."""
        return f"{self._name}({self.column})"


@dataclass(frozen=True)
class Count(KeptAggregate):
    """How many rows, or how many with a value in ``column``."""

    column: str | None = None

    kept = "count"

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

    def identity(self) -> PartialRow:
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

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return 1 for a counted row."""
        return (int(self.column is None or values[0] is not None),)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Add counts."""
        return (first[0] + second[0],)

    def describe(self) -> str:
        """Return ``count()`` or ``count(column)``."""
        return f"count({self.column or ''})"


def sum_type(kind: pa.DataType, who: str, column: str) -> pa.DataType:
    """Return the type that values of a type are added up in.

    Raises:
        InvalidInputError: they are no numbers.
    """
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    raise InvalidInputError(f"{who}({column!r}) needs numbers; the column is {kind}")


def checked_sum(values: pl.Expr, kind: pa.DataType | None, *, running: bool = False) -> pl.Expr:
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


def checked_value(value: Any, who: str) -> Any:
    """Return a sum that fits in 64 bits; raise for others."""
    if isinstance(value, int) and not _INT64_MIN <= value <= _INT64_MAX:
        raise InvalidInputError(f"{who} is {value}, beyond 64 bits; sum a float column instead")
    return value


@dataclass(frozen=True)
class Sum(ColumnAggregate, KeptAggregate):
    """The sum of a column: int64 of integers, float64 of floats; nulls count as 0."""

    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    _name = kept = "sum"

    def bind(self, schema: pa.Schema) -> Self:
        """Return a sum that knows whether it adds integers or floats."""
        return replace(self, type=self.result_type(schema))

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one column of the result's type."""
        return {"sum": self.result_type(schema)}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return int64 or float64."""
        return sum_type(column_type(schema, self.column), "sum", self.column)

    def identity(self) -> PartialRow:
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
        return [checked_sum(pl.col(self.column), self.type).alias(f"{prefix}sum")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Add sums."""
        return [checked_sum(pl.col(f"{prefix}sum"), self.type)]

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Add two sums."""
        return [_checked_pair(pl.col(f"{later}sum"), pl.col(f"{earlier}sum"), self.type)]

    def accumulate(self, prefix: str) -> list[pl.Expr]:
        """Add sums row after row."""
        return [checked_sum(pl.col(f"{prefix}sum"), self.type, running=True)]

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return the value, or 0 for null."""
        return (self.identity()[0] if values[0] is None else self.identity()[0] + values[0],)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Add sums, refusing what does not fit in 64 bits."""
        return (checked_value(first[0] + second[0], self.describe()),)


@dataclass(frozen=True)
class Mean(ColumnAggregate):
    """The mean of a column, without nulls; the mean of nothing is null."""

    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    _name = "mean"

    def bind(self, schema: pa.Schema) -> Self:
        """Return a mean that knows whether it adds integers or floats."""
        return replace(self, type=self.partial_types(schema)["sum"])

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the sum, exact for integers, and the count."""
        kind = sum_type(column_type(schema, self.column), "mean", self.column)
        return {"sum": kind, "count": pa.int64()}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return float64."""
        self.partial_types(schema)
        return pa.float64()

    def _sum(self) -> Sum:
        return Sum(self.column, self.type)

    def _count(self) -> Count:
        return Count(self.column)

    def identity(self) -> PartialRow:
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

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return the value and 1, or 0 and 0 for null."""
        return (*self._sum().lift_values(values), int(values[0] is not None))

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Add sums and counts."""
        return (checked_value(first[0] + second[0], self.describe()), first[1] + second[1])

    def result_value(self, partial: PartialRow) -> Any:
        """Return sum over count, or None."""
        return float(partial[0]) / partial[1] if partial[1] else None


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


def is_ordered(kind: pa.DataType) -> bool:
    """Say whether values of a type have an order."""
    return any(test(kind) for test in _ORDERED)


def ordered_type(schema: pa.Schema, column: str, who: str) -> pa.DataType:
    """Return the type of a column whose values have an order.

    Raises:
        InvalidInputError: the column is missing, or a list, struct or binary.
    """
    kind = column_type(schema, column)
    if not is_ordered(kind):
        raise InvalidInputError(f"{who}({column!r}) needs values with an order; found {kind}")
    return kind


@dataclass(frozen=True)
class Extreme(ColumnAggregate, KeptAggregate):
    """The least or greatest value of a column, without nulls and NaN; of nothing it is null."""

    is_max: bool = False
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    @property
    def _name(self) -> str:
        return "max" if self.is_max else "min"

    def bind(self, schema: pa.Schema) -> Self:
        """Return an extreme that knows the type it compares."""
        return replace(self, type=self.result_type(schema))

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one column of the result's type."""
        return {self._name: self.result_type(schema)}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the column."""
        return ordered_type(schema, self.column, self._name)

    def identity(self) -> PartialRow:
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

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return the value; None for NaN."""
        value = values[0]
        return (None if isinstance(value, float) and math.isnan(value) else value,)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return the extreme of two."""
        if first[0] is None or second[0] is None:
            return first if second[0] is None else second
        return (max(first[0], second[0]) if self.is_max else min(first[0], second[0]),)


@dataclass(frozen=True)
class Variance(ColumnAggregate):
    """The variance of a column of numbers, without nulls; null of fewer than ``ddof`` + 1.

    ``ddof`` 1 is that of a sample, 0 that of the whole; with ``is_root`` its square root.
    """

    ddof: int = 1
    is_root: bool = False

    @property
    def _name(self) -> str:
        return "stddev" if self.is_root else "variance"

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = super().check()
        if self.ddof not in (0, 1) or isinstance(self.ddof, bool):
            wrong.append(f"{self._name} takes ddof of 0 or 1; found {self.ddof!r}")
        return wrong

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return count, mean and sum of squared differences from it."""
        kind = column_type(schema, self.column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise InvalidInputError(
                f"{self._name}({self.column!r}) needs numbers; the column is {kind}"
            )
        return {"count": pa.int64(), "mean": pa.float64(), "squares": pa.float64()}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return float64."""
        self.partial_types(schema)
        return pa.float64()

    def identity(self) -> PartialRow:
        """Return nothing counted."""
        return (0, 0.0, 0.0)

    def _values(self) -> pl.Expr:
        return pl.col(self.column).cast(pl.Float64)

    @staticmethod
    def _named(prefix: str, count: pl.Expr, mean: pl.Expr, squares: pl.Expr) -> list[pl.Expr]:
        return [
            count.cast(pl.Int64).alias(f"{prefix}count"),
            mean.fill_null(0.0).alias(f"{prefix}mean"),
            squares.fill_null(0.0).alias(f"{prefix}squares"),
        ]

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return each value as a mean of one."""
        values = self._values()
        return self._named(prefix, values.is_not_null(), values, values * 0.0)

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return those of a group."""
        values = self._values()
        return self._named(
            prefix, values.count(), values.mean(), values.var(ddof=0) * values.count()
        )

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Add what lies within the parts to what lies between them."""
        count, mean, squares = (pl.col(f"{prefix}{name}") for name in ("count", "mean", "squares"))
        total = count.sum()
        weighted = (mean * count).sum()
        whole = pl.when(total > 0).then(weighted / total)
        return self._named(
            prefix, total, whole, squares.sum() + (count * (mean - whole) ** 2).sum()
        )

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Return two as one."""
        old = [pl.col(f"{earlier}{name}") for name in ("count", "mean", "squares")]
        new = [pl.col(f"{later}{name}") for name in ("count", "mean", "squares")]
        total = old[0] + new[0]
        share = pl.when(total > 0).then(new[0] / total).otherwise(0.0)
        apart = new[1] - old[1]
        between = apart**2 * old[0] * share
        return self._named(later, total, old[1] + apart * share, old[2] + new[2] + between)

    def result(self, prefix: str) -> pl.Expr:
        """Return the variance, or its root."""
        count, squares = pl.col(f"{prefix}count"), pl.col(f"{prefix}squares")
        found = pl.when(count > self.ddof).then(squares / (count - self.ddof))
        return found.sqrt() if self.is_root else found

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return the value as a mean of one."""
        if values[0] is None:
            return self.identity()
        return (1, float(values[0]), float(values[0]) * 0.0)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return two as one."""
        total = first[0] + second[0]
        share = second[0] / total if total else 0.0
        apart = second[1] - first[1]
        between = apart**2 * first[0] * share
        return (total, first[1] + apart * share, first[2] + second[2] + between)

    def result_value(self, partial: PartialRow) -> Any:
        """Return the variance, or its root."""
        count, _, squares = partial
        if count <= self.ddof:
            return None
        found = squares / (count - self.ddof)
        return math.sqrt(found) if self.is_root else found

    def describe(self) -> str:
        """Return ``variance(column)``: all of its kind keep the same."""
        return f"variance({self.column})"
