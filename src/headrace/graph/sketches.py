"""Approximate aggregates of bounded size: distinct values, quantiles, frequent values.

Each keeps a sketch of Apache DataSketches as bytes; no bytes stand for no values. A group of rows
is given to its sketch at once, so Python is called for each group, not for each row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import polars as pl
import pyarrow as pa

from headrace import extras
from headrace.errors import InvalidInputError
from headrace.graph.aggregates import ColumnAggregate, PartialRow, column_type
from headrace.graph.types import polars_type

EMPTY = b""
_LEAST_SIZE, _MOST_SIZE = 32, 1 << 20


@dataclass(frozen=True)
class Sketch(ColumnAggregate):
    """What the kinds share: one binary partial column, made of a group by one call."""

    size: int
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    @abstractmethod
    def _sketch(self, values: pl.Series) -> bytes:
        """Return the sketch of values, of which there is at least one and none is null."""

    @abstractmethod
    def _merged(self, sketches: Sequence[bytes]) -> bytes:
        """Return one sketch of several that are not empty, at least two."""

    @abstractmethod
    def _shown(self, sketch: bytes) -> Any:
        """Return the value shown; ``EMPTY`` is the sketch of nothing."""

    @abstractmethod
    def _input_type(self, kind: pa.DataType) -> pa.DataType:
        """Return the type that values of a type are counted as; raise if they cannot be."""

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = super().check()
        power = isinstance(self.size, int) and self.size & (self.size - 1) == 0
        if not power or not _LEAST_SIZE <= self.size <= _MOST_SIZE:
            wrong.append(
                f"{self._name} takes a power of two from {_LEAST_SIZE} to {_MOST_SIZE} as size; "
                f"found {self.size!r}"
            )
        return [*wrong, *filter(None, [extras.lacking("datasketches", self._name)])]

    def bind(self, schema: pa.Schema) -> Self:
        """Return a sketch that knows what it counts."""
        return replace(self, type=self._input_type(column_type(schema, self.column)))

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one binary column."""
        self._input_type(column_type(schema, self.column))
        return {"sketch": pa.binary()}

    def identity(self) -> PartialRow:
        """Return the sketch of nothing."""
        return (EMPTY,)

    def _made(self, values: pl.Series) -> bytes:
        values = self._ready(values.drop_nulls())
        return self._sketch(values) if len(values) else EMPTY

    def _ready(self, values: pl.Series) -> pl.Series:
        assert self.type is not None
        if values.dtype.is_temporal():
            values = values.to_physical()
        values = values.cast(polars_type(self.type))
        return values.drop_nans() if values.dtype.is_float() else values

    def _join(self, sketches: pl.Series) -> bytes:
        some = [sketch for sketch in sketches.to_list() if sketch]
        return self._merged(some) if len(some) > 1 else some[0] if some else EMPTY

    def _lift_all(self, values: pl.Series) -> pl.Series:
        made = [self._made(values.slice(row, 1)) for row in range(len(values))]
        return pl.Series(made, dtype=pl.Binary)

    def _show_all(self, sketches: pl.Series) -> pl.Series:
        shown = pa.array([self._shown(sketch) for sketch in sketches.to_list()], self._result())
        series = pl.from_arrow(shown)
        assert isinstance(series, pl.Series)
        return series

    @abstractmethod
    def _result(self) -> pa.DataType:
        """Return the type of what is shown, once bound."""

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of what is shown."""
        return self.bind(schema)._result()  # noqa: SLF001 - of the same class

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return a sketch of each value."""
        values = pl.col(self.column)
        lifted = values.map_batches(self._lift_all, return_dtype=pl.Binary, is_elementwise=True)
        return [lifted.alias(f"{prefix}sketch")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the sketch of a group of rows."""
        return [_grouped(self.column, self._made).alias(f"{prefix}sketch")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the sketch of a group of sketches."""
        name = f"{prefix}sketch"
        return [_grouped(name, self._join).alias(name)]

    def result(self, prefix: str) -> pl.Expr:
        """Return what is shown of each sketch."""
        kind = polars_type(self._result()) if self.type is not None else None
        return pl.col(f"{prefix}sketch").map_batches(
            self._show_all, return_dtype=kind, is_elementwise=True
        )

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return the sketch of one value."""
        assert self.type is not None
        return (self._made(pl.Series([values[0]], strict=False)),)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return two sketches as one."""
        return (self._join(pl.Series([first[0], second[0]], dtype=pl.Binary)),)

    def result_value(self, partial: PartialRow) -> Any:
        """Return what is shown of a sketch."""
        return self._shown(partial[0])

    def describe(self) -> str:
        """Return the name, the column and the size."""
        return f"{self._name}({self.column}, {self.size})"


def _grouped(name: str, fold: Any) -> pl.Expr:
    return pl.map_groups(
        [pl.col(name)],
        lambda columns: fold(columns[0]),
        return_dtype=pl.Binary,
        returns_scalar=True,
    )


def _plain(name: str, column: str, kind: pa.DataType, *, floats: bool) -> pa.DataType:
    """Return the type that values are hashed as: integers, floats or text."""
    types = pa.types
    integral = (types.is_integer, types.is_boolean, types.is_temporal)
    if any(test(kind) for test in integral):
        return pa.int64()
    if types.is_string(kind) or (floats and types.is_floating(kind)):
        return pa.string() if types.is_string(kind) else pa.float64()
    raise InvalidInputError(
        f"{name}({column!r}) needs {'numbers' if floats else 'integers'}, text or times; the "
        f"column is {kind}"
    )


@dataclass(frozen=True)
class Distinct(Sketch):
    """About how many different values a column has, without nulls and NaN.

    Exact up to ``size`` values; beyond it the standard error is 1 / sqrt(size). The same for any
    order and any split of the rows: a theta sketch keeps the ``size`` least hashes.
    """

    _name = "approx_distinct"

    def _input_type(self, kind: pa.DataType) -> pa.DataType:
        return _plain(self._name, self.column, kind, floats=True)

    def _result(self) -> pa.DataType:
        return pa.int64()

    @property
    def _lg_size(self) -> int:
        return self.size.bit_length() - 1

    def _sketch(self, values: pl.Series) -> bytes:
        from datasketches import update_theta_sketch  # noqa: PLC0415 - only where it is used

        sketch = update_theta_sketch(self._lg_size)
        distinct = values.unique().to_list()
        if self.type == pa.string():  # the sketch passes over empty text
            distinct = [f"={value}" for value in distinct]
        for value in distinct:
            sketch.update(value)
        sketch.trim()
        return bytes(sketch.compact().serialize())

    def _merged(self, sketches: Sequence[bytes]) -> bytes:
        from datasketches import compact_theta_sketch, theta_union  # noqa: PLC0415 - as above

        union = theta_union(self._lg_size)
        for sketch in sketches:
            union.update(compact_theta_sketch.deserialize(sketch))
        return bytes(union.get_result().serialize())

    def _shown(self, sketch: bytes) -> int:
        from datasketches import compact_theta_sketch  # noqa: PLC0415 - as above

        return round(compact_theta_sketch.deserialize(sketch).get_estimate()) if sketch else 0


@dataclass(frozen=True)
class Quantiles(Sketch):
    """Values at some ranks of a column of numbers, without nulls and NaN; of nothing it is null.

    Exact up to ``size`` values; beyond it the rank of a value is off by about 2.3 / size ** 0.9, in
    99 of 100 cases. Which of the values near a rank is shown is drawn by lot.
    """

    at: tuple[float, ...] = (0.5,)

    _name = "quantiles"

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = super().check()
        bad = [rank for rank in self.at if not isinstance(rank, int | float) or not 0 <= rank <= 1]
        if bad or not self.at:
            wrong.append(f"quantiles takes ranks from 0 to 1, at least one; found {list(self.at)}")
        if isinstance(self.size, int) and self.size > 1 << 15:
            wrong.append(f"quantiles takes a size of at most {1 << 15}; found {self.size}")
        return wrong

    def _input_type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return pa.float64()
        raise InvalidInputError(f"quantiles({self.column!r}) needs numbers; the column is {kind}")

    def _result(self) -> pa.DataType:
        return pa.list_(pa.float64())

    def _sketch(self, values: pl.Series) -> bytes:
        from datasketches import kll_doubles_sketch  # noqa: PLC0415 - only where it is used

        sketch = kll_doubles_sketch(self.size)
        sketch.update(values.to_numpy(writable=True))
        return bytes(sketch.serialize())

    def _merged(self, sketches: Sequence[bytes]) -> bytes:
        from datasketches import kll_doubles_sketch  # noqa: PLC0415 - as above

        whole = kll_doubles_sketch.deserialize(sketches[0])
        for sketch in sketches[1:]:
            whole.merge(kll_doubles_sketch.deserialize(sketch))
        return bytes(whole.serialize())

    def _shown(self, sketch: bytes) -> list[float] | None:
        from datasketches import kll_doubles_sketch  # noqa: PLC0415 - as above

        if not sketch:
            return None
        ranks = [float(rank) for rank in self.at]
        return list(kll_doubles_sketch.deserialize(sketch).get_quantiles(ranks, True))

    def describe(self) -> str:
        """Return the column and the size; ranks may change under old state."""
        return f"quantiles({self.column}, {self.size})"


@dataclass(frozen=True)
class Frequent(Sketch):
    """The most frequent values of a column, each with how often it came at most and at least.

    Exact up to 3/4 of ``size`` different values; beyond it ``count`` is too high by at most
    3.5 / size of all rows. Most frequent first, then by value.
    """

    k: int = 10

    _name = "frequent"

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = super().check()
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            wrong.append(f"frequent takes k of at least 1; found {self.k!r}")
        return wrong

    def _input_type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_integer(kind) or pa.types.is_string(kind):
            return pa.string() if pa.types.is_string(kind) else pa.int64()
        raise InvalidInputError(
            f"frequent({self.column!r}) needs text or integers; the column is {kind}"
        )

    def _result(self) -> pa.DataType:
        fields = [(self.column, self.type), ("count", pa.int64()), ("least", pa.int64())]
        return pa.list_(pa.struct(fields))

    def _sketch(self, values: pl.Series) -> bytes:
        from datasketches import frequent_strings_sketch  # noqa: PLC0415 - only where it is used

        sketch = frequent_strings_sketch(self.size.bit_length() - 1)
        counts = values.cast(pl.String).value_counts(sort=True)
        for value, count in counts.iter_rows():
            sketch.update(value, count)
        return bytes(sketch.serialize())

    def _merged(self, sketches: Sequence[bytes]) -> bytes:
        from datasketches import frequent_strings_sketch  # noqa: PLC0415 - as above

        whole = frequent_strings_sketch.deserialize(sketches[0])
        for sketch in sketches[1:]:
            whole.merge(frequent_strings_sketch.deserialize(sketch))
        return bytes(whole.serialize())

    def _shown(self, sketch: bytes) -> list[dict[str, Any]]:
        from datasketches import (  # noqa: PLC0415 - as above
            frequent_items_error_type,
            frequent_strings_sketch,
        )

        if not sketch:
            return []
        whole = frequent_strings_sketch.deserialize(sketch)
        kind = frequent_items_error_type.NO_FALSE_NEGATIVES
        found = [
            (-upper, int(item) if self.type == pa.int64() else item, lower)
            for item, _, lower, upper in whole.get_frequent_items(kind)
        ]
        return [
            {self.column: item, "count": -upper, "least": lower}
            for upper, item, lower in sorted(found)[: self.k]
        ]

    def describe(self) -> str:
        """Return the column and the size; ``k`` may change under old state."""
        return f"frequent({self.column}, {self.size})"
