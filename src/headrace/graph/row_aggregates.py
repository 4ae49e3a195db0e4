"""Aggregates that keep values of rows: first, last, all or the different ones, and your own.

``Monoid`` is made of the user's functions: a zero, how one row becomes a state, and how two states
combine; its states are kept as MessagePack. The others keep values as they are.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Self

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import (
    Aggregate,
    ColumnAggregate,
    KeptAggregate,
    PartialRow,
    check_column,
    checked_sum,
    checked_value,
    column_type,
    ordered_type,
    sum_type,
)
from headrace.graph.types import polars_type

MESSAGES = "messages"
"""The aggregate that keeps the messages of a window."""


@dataclass(frozen=True)
class Pick(ColumnAggregate, KeptAggregate):
    """The first or the last value that is not null: by arrival, or where ``by`` is least or most.

    Rows without a value of ``by`` do not count; of equal ones the first, or last, to arrive does.
    """

    by: str | None = None
    is_last: bool = False
    type: tuple[pa.DataType, pa.DataType | None] | None = field(
        default=None, compare=False, repr=False
    )

    kept = "value"

    @property
    def _name(self) -> str:
        return "last" if self.is_last else "first"

    def columns(self) -> tuple[str, ...]:
        """Return the column, and the one that orders."""
        return (self.column,) if self.by in (None, self.column) else (self.column, str(self.by))

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = super().check()
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

    def identity(self) -> PartialRow:
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

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return the value, where it counts."""
        if self.by is None:
            return (values[0],)
        order = values[-1]
        if values[0] is None or order is None or order != order:  # noqa: PLR0124 - NaN
            return (None, None)
        return (values[0], order)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return the pick of two."""
        if first[0] is None or second[0] is None:
            return first if second[0] is None else second
        if self.by is None:
            return second if self.is_last else first
        keeps = first[1] > second[1] if self.is_last else first[1] <= second[1]
        return first if keeps else second

    def describe(self) -> str:
        """Return the columns."""
        by = "" if self.by is None else f", by {self.by}"
        return f"{self._name}({self.column}{by})"


@dataclass(frozen=True)
class Collect(KeptAggregate):
    """All messages in the order of arrival: structs of the columns, or bare values of one."""

    names: tuple[str, ...] = ()
    is_bare: bool = False
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    kept = "all"

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

    def identity(self) -> PartialRow:
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

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return a list of one message."""
        return ([values[0] if self.is_bare else dict(zip(self.names, values, strict=True))],)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return two lists, joined."""
        return ([*first[0], *second[0]],)

    def describe(self) -> str:
        """Return the columns."""
        return f"collect({', '.join(self.names)})"


@dataclass(frozen=True)
class Unique(ColumnAggregate):
    """The different values of a column, without null, in the order of arrival; NaN is one.

    Shown are the ``values`` or their ``count``, ``sum`` or ``mean``; these are null of no values.
    The state of a key is one row, which is written again in each epoch that adds a value.
    """

    shown: str = "count"
    type: pa.DataType | None = field(default=None, compare=False, repr=False)

    @property
    def _name(self) -> str:
        return "distinct" if self.shown == "values" else f"{self.shown}_distinct"

    def bind(self, schema: pa.Schema) -> Self:
        """Return one that knows its type."""
        return replace(self, type=self._type(schema))

    def _type(self, schema: pa.Schema) -> pa.DataType:
        if pa.types.is_binary(kind := column_type(schema, self.column)):
            return kind
        return ordered_type(schema, self.column, self._name)

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the number and the list of values."""
        return {"count": pa.int64(), "values": pa.list_(self._type(schema))}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return int64, a list, or the type of a sum or mean."""
        kind = self._type(schema)
        if self.shown in ("sum", "mean"):
            total = sum_type(kind, self._name, self.column)
            return total if self.shown == "sum" else pa.float64()
        return pa.int64() if self.shown == "count" else pa.list_(kind)

    def identity(self) -> PartialRow:
        """Return no values."""
        return (0, [])

    @staticmethod
    def _counted(values: pl.Expr, prefix: str) -> list[pl.Expr]:
        count = values.list.len().cast(pl.Int64)
        return [count.alias(f"{prefix}count"), values.alias(f"{prefix}values")]

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return a list of one value, or of none."""
        return self._counted(pl.concat_list(self.column).list.drop_nulls(), prefix)

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the values of a group."""
        values = pl.col(self.column).drop_nulls().unique(maintain_order=True)
        return self._grouped(values, prefix)

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the values of all."""
        each = pl.col(f"{prefix}values").list.explode(empty_as_null=False, keep_nulls=False)
        return self._grouped(each.unique(maintain_order=True), prefix)

    @staticmethod
    def _grouped(values: pl.Expr, prefix: str) -> list[pl.Expr]:
        count = values.len().cast(pl.Int64)
        return [count.alias(f"{prefix}count"), values.implode().alias(f"{prefix}values")]

    def combine_pair(self, earlier: str, later: str) -> list[pl.Expr]:
        """Return the values of two."""
        both = pl.concat_list(pl.col(f"{earlier}values"), pl.col(f"{later}values"))
        return self._counted(both.list.unique(maintain_order=True), later)

    def follow(self, frame: pl.DataFrame, group: str, prefix: str) -> list[pl.Series] | None:
        """Count what each row adds; only the last row of a group holds all values."""
        if self.shown != "count":
            return None
        name, row = f"{prefix}values", "__of"
        heads = frame.select(pl.col(group), pl.col(name)).with_row_index(row)
        each = heads.explode(name, empty_as_null=False)
        new = each.unique([group, name], keep="first", maintain_order=True)
        added = np.bincount(new[row].to_numpy(), minlength=frame.height)
        counts = (
            heads.with_columns(pl.Series("__added", added, dtype=pl.Int64))
            .select(pl.col("__added").cum_sum().over(group))
            .to_series()
        )
        whole = new.group_by(group).agg(pl.col(name))
        lasts = heads.group_by(group).agg(pl.col(row).last()).join(whole, group, how="left")
        empty = pl.lit([], frame.schema[name])
        held = (
            heads.select(row)
            .join(lasts, row, how="left", maintain_order="left")
            .select(pl.col(name).fill_null(empty))
            .to_series()
        )
        return [counts.alias(f"{prefix}count"), held.alias(name)]

    def result(self, prefix: str) -> pl.Expr:
        """Return what is shown of the list."""
        values = pl.col(f"{prefix}values")
        if self.shown == "count":
            return pl.col(f"{prefix}count")
        if self.shown == "sum":
            kind = None if self.type is None else sum_type(self.type, self._name, self.column)
            total = values.list.eval(checked_sum(pl.element(), kind)).list.first()
            return pl.when(pl.col(f"{prefix}count") > 0).then(total)
        return values.list.mean() if self.shown == "mean" else values

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return one value, or none."""
        return (0, []) if values[0] is None else (1, [values[0]])

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return the values of two."""
        # By a series, as NaN equals nothing in Python.
        kind = None if self.type is None else polars_type(self.type)
        whole = pl.Series([*first[1], *second[1]], dtype=kind).unique(maintain_order=True).to_list()
        return (len(whole), whole)

    def result_value(self, partial: PartialRow) -> Any:
        """Return what is shown of the list."""
        count, values = partial
        if self.shown in ("count", "values"):
            return count if self.shown == "count" else values
        if not count:
            return None
        return (
            checked_value(sum(values), self.describe())
            if self.shown == "sum"
            else (sum(values) / count)
        )

    def describe(self) -> str:
        """Return the column: all of its kind keep the same."""
        return f"distinct({self.column})"


_TYPED = (tuple, set, frozenset, bytes, datetime.date, datetime.time, decimal.Decimal)


@dataclass(frozen=True)
class Monoid(Aggregate):
    """An aggregate made of the user's functions.

    Args:
        zero: the state of no rows.
        lift_row: from the values of ``reads`` in one row, in order, to a state.
        join: from two states, the earlier first, to one; must be associative.
        show: from a state to the value shown; the state itself when ``None``.
        returns: the Arrow type of what is shown.
        reads: the columns read; at least one.
        state: the type of states, for msgspec; by default that of ``zero`` where
            MessagePack alone would forget it.
        fold_frame: from a Polars frame of ``reads`` to the state of all its rows: an optional
            quick form that must equal lifting and joining row by row.
    """

    zero: Any
    lift_row: Callable[..., Any] = field(compare=False)
    join: Callable[[Any, Any], Any] = field(compare=False)
    show: Callable[[Any], Any] | None = field(compare=False)
    returns: pa.DataType
    reads: tuple[str, ...]
    state: Any = None
    fold_frame: Callable[[pl.DataFrame], Any] | None = field(default=None, compare=False)

    def columns(self) -> tuple[str, ...]:
        """Return the columns read."""
        return self.reads

    def check(self) -> list[str]:
        """Return what is wrong with the arguments."""
        wrong = [text for name in self.reads for text in check_column(name, "monoid")]
        if not self.reads:
            wrong.append("monoid reads no columns; name at least one in columns=")
        functions = {"lift": self.lift_row, "combine": self.join, "result": self.show}
        for name, function in functions.items():
            if not callable(function) and not (name == "result" and function is None):
                wrong.append(f"monoid takes a function as {name}; found {function!r}")
        try:
            self._decode(self._encode(self.zero))
        except (TypeError, msgspec.ValidationError) as error:
            wrong.append(f"the zero of monoid cannot be kept as MessagePack: {error}")
        return wrong

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one binary column."""
        for name in self.reads:
            column_type(schema, name)
        return {"state": pa.binary()}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the declared type."""
        self.partial_types(schema)
        return self.returns

    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[Any]:
        kind = self.state
        if kind is None:
            own = type(self.zero)
            typed = issubclass(own, (msgspec.Struct, *_TYPED)) or dataclasses.is_dataclass(own)
            kind = own if typed else Any
        return msgspec.msgpack.Decoder(kind)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the decoder behind: it is made again where it is needed."""
        return {name: value for name, value in vars(self).items() if name != "_decoder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields of a frozen record."""
        vars(self).update(state)

    def _encode(self, state: Any) -> bytes:
        return msgspec.msgpack.encode(state, order="deterministic")

    def _decode(self, data: bytes) -> Any:
        return self._decoder.decode(data)

    def identity(self) -> PartialRow:
        """Return the zero, encoded."""
        return (self._encode(self.zero),)

    def _fold_rows(self, columns: list[pl.Series]) -> bytes:
        if self.fold_frame is not None:
            named = [s.alias(name) for s, name in zip(columns, self.reads, strict=True)]
            return self._encode(self.fold_frame(pl.DataFrame(named)))
        rows = zip(*(column.to_list() for column in columns), strict=True)
        states = (self.lift_row(*row) for row in rows)
        return self._encode(reduce(self.join, states, self._decode(self._encode(self.zero))))

    def _fold_states(self, columns: list[pl.Series]) -> bytes:
        held: list[bytes] = columns[0].to_list()
        if len(held) == 1:
            return held[0]
        states = map(self._decode, held)
        return self._encode(reduce(self.join, states, self._decode(self._encode(self.zero))))

    def _lift_rows(self, rows: pl.Series) -> pl.Series:
        columns = [rows.struct.field(name).to_list() for name in self.reads]
        lifted = [self._encode(self.lift_row(*row)) for row in zip(*columns, strict=True)]
        return pl.Series(lifted, dtype=pl.Binary)

    def _show_all(self, states: pl.Series) -> pl.Series:
        values = [self.result_value((state,)) for state in states.to_list()]
        shown = pl.from_arrow(pa.array(values, self.returns))
        assert isinstance(shown, pl.Series)
        return shown

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return the state of each row."""
        rows = pl.struct(self.reads)
        lifted = rows.map_batches(self._lift_rows, return_dtype=pl.Binary, is_elementwise=True)
        return [lifted.alias(f"{prefix}state")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return the state of a group of rows."""
        return [self._grouped(self.reads, self._fold_rows).alias(f"{prefix}state")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return the state of a group of states."""
        name = f"{prefix}state"
        return [self.folded(name).alias(name)]

    def folded(self, name: str) -> pl.Expr:
        """Return the state of a group of states, which stand in a column."""
        return self._grouped((name,), self._fold_states)

    def _grouped(self, names: tuple[str, ...], fold: Callable[[Any], bytes]) -> pl.Expr:
        columns = [pl.col(name) for name in names]
        return pl.map_groups(columns, fold, return_dtype=pl.Binary, returns_scalar=True)

    def result(self, prefix: str) -> pl.Expr:
        """Return what is shown of each state."""
        states = pl.col(f"{prefix}state")
        kind = polars_type(self.returns)
        return states.map_batches(self._show_all, return_dtype=kind, is_elementwise=True)

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return the state of one row."""
        return (self._encode(self.lift_row(*values)),)

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return two states as one."""
        return (self._encode(self.join(self._decode(first[0]), self._decode(second[0]))),)

    def result_value(self, partial: PartialRow) -> Any:
        """Return what is shown of a state."""
        state = self._decode(partial[0])
        return state if self.show is None else self.show(state)

    def describe(self) -> str:
        """Return the columns and the qualified names of the functions."""
        names = [getattr(f, "__qualname__", repr(f)) for f in (self.lift_row, self.join)]
        return f"monoid({', '.join([*self.reads, *names])}) -> {self.returns}"
