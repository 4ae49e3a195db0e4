"""The user's own aggregate: a zero, how one row becomes a state, how two states combine.

States are kept as MessagePack, typed by msgspec, so that they can be stored, sent and
compared without running code.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from headrace.graph.aggregates import Aggregate, Partial, check_column, column_type
from headrace.graph.types import polars_type

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

    def identity(self) -> Partial:
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

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return the state of one row."""
        return (self._encode(self.lift_row(*values)),)

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Return two states as one."""
        return (self._encode(self.join(self._decode(first[0]), self._decode(second[0]))),)

    def result_value(self, partial: Partial) -> Any:
        """Return what is shown of a state."""
        state = self._decode(partial[0])
        return state if self.show is None else self.show(state)

    def describe(self) -> str:
        """Return the columns and the qualified names of the functions."""
        names = [getattr(f, "__qualname__", repr(f)) for f in (self.lift_row, self.join)]
        return f"monoid({', '.join([*self.reads, *names])}) -> {self.returns}"
