"""Variance and standard deviation, merged without adding up squares of large numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate, Partial, check_column, column_type


@dataclass(frozen=True)
class Variance(Aggregate):
    """The variance of a column of numbers, without nulls; null of fewer than ``ddof`` + 1.

    ``ddof`` 1 is that of a sample, 0 that of the whole; with ``is_root`` its square root.
    """

    column: str
    ddof: int = 1
    is_root: bool = False

    @property
    def _name(self) -> str:
        return "stddev" if self.is_root else "variance"

    def columns(self) -> tuple[str, ...]:
        """Return the column."""
        return (self.column,)

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = check_column(self.column, self._name)
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

    def identity(self) -> Partial:
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

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return the value as a mean of one."""
        if values[0] is None:
            return self.identity()
        return (1, float(values[0]), float(values[0]) * 0.0)

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Return two as one."""
        total = first[0] + second[0]
        share = second[0] / total if total else 0.0
        apart = second[1] - first[1]
        between = apart**2 * first[0] * share
        return (total, first[1] + apart * share, first[2] + second[2] + between)

    def result_value(self, partial: Partial) -> Any:
        """Return the variance, or its root."""
        count, _, squares = partial
        if count <= self.ddof:
            return None
        found = squares / (count - self.ddof)
        return math.sqrt(found) if self.is_root else found

    def describe(self) -> str:
        """Return ``variance(column)``: all of its kind keep the same."""
        return f"variance({self.column})"
