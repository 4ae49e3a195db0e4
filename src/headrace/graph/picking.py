"""Aggregates that keep values as they are: the first, the last, all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate, Partial, check_column, column_type
from headrace.graph.extremes import ordered_type


@dataclass(frozen=True)
class Pick(Aggregate):
    """The first or the last value that is not null: by arrival, or where ``by`` is least or most.

    Rows without a value of ``by`` do not count; of equal ones the first, or last, to arrive does.
    """

    column: str
    by: str | None = None
    is_last: bool = False
    type: tuple[pa.DataType, pa.DataType | None] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def _name(self) -> str:
        return "last" if self.is_last else "first"

    def columns(self) -> tuple[str, ...]:
        """Return the column, and the one that orders."""
        return (self.column,) if self.by in (None, self.column) else (self.column, str(self.by))

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = check_column(self.column, self._name)
        return wrong if self.by is None else wrong + check_column(self.by, self._name)

    def bind(self, schema: pa.Schema) -> Self:
        """Return a pick that knows its types."""
        kinds = self.partial_types(schema)
        return replace(self, type=(kinds["value"], kinds.get("by")))

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the value, and what orders it."""
        kinds = {"value": column_type(schema, self.column)}
        if self.by is not None:
            kinds["by"] = ordered_type(schema, self.by, self._name)
        return kinds

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the column."""
        return self.partial_types(schema)["value"]

    def identity(self) -> Partial:
        """Return null."""
        return (None,) if self.by is None else (None, None)

    def _order(self) -> pl.Expr:
        assert self.by is not None
        order = pl.col(self.by)
        kind = None if self.type is None else self.type[1]
        return order.fill_nan(None) if kind is not None and pa.types.is_floating(kind) else order

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return the value, where it counts."""
        if self.by is None:
            return [pl.col(self.column).alias(f"{prefix}value")]
        order = self._order()
        value = pl.when(order.is_not_null()).then(pl.col(self.column))
        order = pl.when(pl.col(self.column).is_not_null()).then(order)
        return [value.alias(f"{prefix}value"), order.alias(f"{prefix}by")]

    def _fold(self, value: pl.Expr, order: pl.Expr | None, prefix: str) -> list[pl.Expr]:
        if order is None:
            own = value.drop_nulls()
            picked = own.last() if self.is_last else own.first()
            return [picked.alias(f"{prefix}value")]
        counts = value.is_not_null() & order.is_not_null()
        by = order.filter(counts)
        own = value.filter(counts).sort_by(by, maintain_order=True)
        picked, edge = (own.last(), by.max()) if self.is_last else (own.first(), by.min())
        return [picked.alias(f"{prefix}value"), edge.alias(f"{prefix}by")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the pick of a group."""
        order = None if self.by is None else self._order()
        return self._fold(pl.col(self.column), order, prefix)

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the pick of picks."""
        order = None if self.by is None else pl.col(f"{prefix}by")
        return self._fold(pl.col(f"{prefix}value"), order, prefix)

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Return the pick of two."""
        old, new = pl.col(f"{earlier}value"), pl.col(f"{later}value")
        if self.by is None:
            both = (new, old) if self.is_last else (old, new)
            return [pl.coalesce(*both).alias(f"{later}value")]
        old_by, new_by = pl.col(f"{earlier}by"), pl.col(f"{later}by")
        keeps_old = old_by > new_by if self.is_last else old_by <= new_by
        keeps_old = new_by.is_null() | keeps_old.fill_null(value=False)
        return [
            pl.when(keeps_old).then(old).otherwise(new).alias(f"{later}value"),
            pl.when(keeps_old).then(old_by).otherwise(new_by).alias(f"{later}by"),
        ]

    def accumulate(self, prefix: str) -> list[pl.Expr] | None:
        """Return the pick so far, by arrival; there is no such form with ``by``."""
        if self.by is not None:
            return None
        value = pl.col(f"{prefix}value")
        if self.is_last:
            return [value.forward_fill()]
        seen = value.is_not_null().cum_sum() > 0
        return [pl.when(seen).then(value.drop_nulls().first()).alias(f"{prefix}value")]

    def result(self, prefix: str) -> pl.Expr:
        """Return the value."""
        return pl.col(f"{prefix}value")

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return the value, where it counts."""
        if self.by is None:
            return (values[0],)
        order = values[-1]
        if values[0] is None or order is None or order != order:  # noqa: PLR0124 - NaN
            return (None, None)
        return (values[0], order)

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Return the pick of two."""
        if first[0] is None or second[0] is None:
            return first if second[0] is None else second
        if self.by is None:
            return second if self.is_last else first
        keeps = first[1] > second[1] if self.is_last else first[1] <= second[1]
        return first if keeps else second

    def result_value(self, partial: Partial) -> Any:
        """Return the value."""
        return partial[0]

    def describe(self) -> str:
        """Return the columns."""
        by = "" if self.by is None else f", by {self.by}"
        return f"{self._name}({self.column}{by})"


@dataclass(frozen=True)
class Collect(Aggregate):
    """All messages in the order of arrival: structs of the columns, or bare values of one."""

    names: tuple[str, ...] = ()
    is_bare: bool = False
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    def columns(self) -> tuple[str, ...]:
        """Return the columns; before it is bound, none for all."""
        return self.names

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = [text for name in self.names for text in check_column(name, "collect")]
        if len(set(self.names)) < len(self.names):
            wrong.append(f"collect names a column twice in {list(self.names)}")
        return wrong

    def bind(self, schema: pa.Schema) -> Self:
        """Return a list that knows its columns."""
        return replace(self, names=self._names(schema), type=self.result_type(schema))

    def _names(self, schema: pa.Schema) -> tuple[str, ...]:
        return self.names or tuple(schema.names)

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one list column."""
        return {"all": self.result_type(schema)}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return a list of the column's type, or of structs of the columns."""
        fields = [(name, column_type(schema, name)) for name in self._names(schema)]
        if not fields:
            raise InvalidInputError("collect has no columns to collect")
        return pa.list_(fields[0][1] if self.is_bare else pa.struct(fields))

    def identity(self) -> Partial:
        """Return the empty list."""
        return ([],)

    def _item(self) -> pl.Expr:
        return pl.col(self.names[0]) if self.is_bare else pl.struct(self.names)

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return a list of each message."""
        return [pl.concat_list(self._item()).alias(f"{prefix}all")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the list of a group."""
        return [self._item().implode().alias(f"{prefix}all")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the lists of a group, joined."""
        lists = pl.col(f"{prefix}all")
        return [lists.list.explode(empty_as_null=False, keep_nulls=False).implode()]

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Return two lists, joined."""
        both = pl.concat_list(pl.col(f"{earlier}all"), pl.col(f"{later}all"))
        return [both.alias(f"{later}all")]

    def result(self, prefix: str) -> pl.Expr:
        """Return the list."""
        return pl.col(f"{prefix}all")

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return a list of one message."""
        return ([values[0] if self.is_bare else dict(zip(self.names, values, strict=True))],)

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Return two lists, joined."""
        return ([*first[0], *second[0]],)

    def result_value(self, partial: Partial) -> Any:
        """Return the list."""
        return partial[0]

    def describe(self) -> str:
        """Return the columns."""
        return f"collect({', '.join(self.names)})"
