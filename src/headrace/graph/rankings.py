"""Aggregates that keep the first rows by an order: top k, and those of ``ORDER BY ... LIMIT``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.graph.aggregates import (
    KeptAggregate,
    PartialRow,
    check_column,
    column_type,
    is_ordered,
    ordered_type,
)
from headrace.graph.types import polars_type

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TopK(KeptAggregate):
    """The ``k`` rows with the greatest ``column``, each with the columns to ``keep``.

    Rows without a value (null or NaN) never rank. The result is a list of structs with the
    fields ``column`` and then ``keep``, greatest first.
    """

    column: str
    k: int = 10
    keep: tuple[str, ...] = ()
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    kept = "top"

    def columns(self) -> tuple[str, ...]:
        """Return the ranked column and the kept ones."""
        return (self.column, *self.keep)

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = [text for name in self.columns() for text in check_column(name, "top_k")]
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            wrong.append(f"top_k takes k of at least 1; found {self.k!r}")
        if len(set(self.columns())) < len(self.columns()):
            wrong.append(f"top_k names a column twice in {list(self.columns())}")
        return wrong

    def bind(self, schema: pa.Schema) -> Self:
        """Return a ranking that knows its fields."""
        return replace(self, type=self.result_type(schema).value_type)

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one list column."""
        return {"top": self.result_type(schema)}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return a list of structs of the ranked and kept columns."""
        fields = [(name, ordered_type(schema, name, "top_k")) for name in self.columns()]
        return pa.list_(pa.struct(fields))

    def identity(self) -> PartialRow:
        """Return the empty list."""
        return ([],)

    def _has_rank(self, values: pl.Expr) -> pl.Expr:
        is_float = self.type is not None and pa.types.is_floating(self.type.field(0).type)
        ranked = values.is_not_null()
        return ranked & values.is_not_nan() if is_float else ranked

    def _top(self, lists: pl.Expr) -> pl.Expr:
        # Inside lists, for sorting groups by the fields of an exploded struct crashes Polars 2.1.
        row = pl.element()
        fields = [row.struct.field(name) for name in self.columns()]
        descending = [True] + [False] * len(self.keep)
        ranked = row.sort_by(fields, descending=descending, nulls_last=True)
        return lists.list.eval(ranked.head(self.k))

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return a list of one struct, or of none without a value."""
        one = pl.concat_list(pl.struct(self.columns()))
        ranked = self._has_rank(pl.element().struct.field(self.column))
        return [one.list.eval(pl.element().filter(ranked)).alias(f"{prefix}top")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the top of a group."""
        rows = pl.struct(self.columns()).filter(self._has_rank(pl.col(self.column)))
        return [self._top(rows.implode()).alias(f"{prefix}top")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the top of all tops."""
        name = f"{prefix}top"
        return [self._top(pl.col(name).explode(empty_as_null=False).implode()).alias(name)]

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return a list of one row as a dict, or of none without a value."""
        value = values[0]
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ([],)
        return ([dict(zip(self.columns(), values, strict=True))],)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return the top of two."""
        rows = [*(first[0] or []), *(second[0] or [])]
        for name in reversed(self.keep):
            absent = [row for row in rows if row[name] is None]
            rows = sorted((row for row in rows if row[name] is not None), key=itemgetter(name))
            rows += absent
        rows.sort(key=itemgetter(self.column), reverse=True)
        return (rows[: self.k],)

    def describe(self) -> str:
        """Return ``top_k(column, k, keep)``."""
        return f"top_k({', '.join([self.column, str(self.k), *self.keep])})"


class Order(NamedTuple):
    """A column that rows are in the order of."""

    column: str
    is_descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True)
class FirstRows(KeptAggregate):
    """The first ``k`` rows by an order, as a list of structs of ``names``.

    Of rows that are equal in the order, the other columns decide, least first: so the result
    is the same for any order of arrival.
    """

    names: tuple[str, ...]
    order: tuple[Order, ...]
    k: int
    whole: tuple[Order, ...] = field(default=(), compare=False, repr=False)
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    kept = "first"

    def columns(self) -> tuple[str, ...]:
        """Return the columns that are kept."""
        return self.names

    def bind(self, schema: pa.Schema) -> Self:
        """Return rows that know their fields, and their whole order."""
        known = {one.column for one in self.order}
        others = [
            Order(name)
            for name in self.names
            if name not in known and is_ordered(schema.field(name).type)
        ]
        return replace(self, whole=(*self.order, *others), type=self.result_type(schema).value_type)

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one list column."""
        return {"first": self.result_type(schema)}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return a list of structs."""
        for one in self.order:
            ordered_type(schema, one.column, "ORDER BY")
        return pa.list_(pa.struct([(name, column_type(schema, name)) for name in self.names]))

    def identity(self) -> PartialRow:
        """Return the empty list."""
        return ([],)

    def _first(self, lists: pl.Expr) -> pl.Expr:
        row = pl.element()
        ranked = row.sort_by(
            [row.struct.field(one.column) for one in self.whole],
            descending=[one.is_descending for one in self.whole],
            nulls_last=[not one.nulls_first for one in self.whole],
        )
        return lists.list.eval(ranked.head(self.k))

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return a list of each row."""
        return [pl.concat_list(pl.struct(self.names)).alias(f"{prefix}first")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the first rows of a group."""
        return [self._first(pl.struct(self.names).implode()).alias(f"{prefix}first")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the first of all."""
        name = f"{prefix}first"
        return [self._first(pl.col(name).explode(empty_as_null=False).implode()).alias(name)]

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Return the first of two."""
        both = pl.concat_list(pl.col(f"{earlier}first"), pl.col(f"{later}first"))
        return [self._first(both).alias(f"{later}first")]

    def follow(self, frame: pl.DataFrame, group: str, prefix: str) -> list[pl.Series] | None:
        """Return the best so far."""
        if not frame.height:
            return None
        groups = frame[group].to_numpy()
        order = np.argsort(groups, kind="stable")
        is_first = np.diff(groups[order], prepend=groups[order[:1]] - 1) != 0
        # Polars takes rows of lists several times as fast out of one piece.
        lists = frame[f"{prefix}first"].rechunk()[order]
        best = self._first_so_far if self.k == 1 else self._best_so_far
        return [best(lists, is_first)[np.argsort(order)].alias(f"{prefix}first")]

    def _first_so_far(self, lists: pl.Series, is_first: Mask) -> pl.Series:
        """Return the first row so far: the least rank among all rows, within each group."""
        order, has_none, place = self.whole, "has none", "place"
        row = lists.list.first().struct
        keys = [row.field(one.column).alias(f"{n}") for n, one in enumerate(order)]
        frame = pl.DataFrame([(lists.list.len() == 0).alias(has_none), *keys])
        ranked = frame.with_row_index(place).sort(
            frame.columns,
            descending=[False, *(one.is_descending for one in order)],
            nulls_last=[True, *(not one.nulls_first for one in order)],
            maintain_order=True,
        )
        rows = ranked[place].to_numpy().astype(np.int64)
        count = len(rows)
        ranks = np.empty(count, np.int64)
        ranks[rows] = np.arange(count)
        # Later groups have lower numbers, so that no group sees those before it.
        below = (count - np.cumsum(is_first)) * count
        best: pl.Series = lists[rows[np.minimum.accumulate(ranks + below) - below]]
        return best

    def _best_so_far(self, lists: pl.Series, is_first: Mask) -> pl.Series:
        """Return the best so far, by doubling: of two rows each, then of four, of eight."""
        count, step = len(lists), 1
        places = np.arange(count) - np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
        while len(rows := np.flatnonzero(places >= step)):
            both = pl.DataFrame({"earlier": lists[rows - step], "later": lists[rows]})
            best = both.select(self._first(pl.concat_list("earlier", "later"))).to_series()
            chosen = np.arange(count)
            chosen[rows] = np.arange(count, count + len(rows))
            lists = pl.concat([lists, best], rechunk=True)[chosen]
            step *= 2
        return lists

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return a list of one row as a dict."""
        return ([dict(zip(self.names, values, strict=True))],)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return the first of two."""
        assert self.type is not None
        kind = pl.List(polars_type(self.type))
        rows = pl.Series("rows", [[*first[0], *second[0]]], dtype=kind)
        return (rows.to_frame().select(self._first(pl.col("rows"))).item().to_list(),)

    def describe(self) -> str:
        """Return the columns, the order and how many."""
        order = ", ".join(
            f"{one.column}{' desc' * one.is_descending}{' nulls first' * one.nulls_first}"
            for one in self.order
        )
        return f"first {self.k} of ({', '.join(self.names)}) by {order}"
