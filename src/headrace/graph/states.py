"""What a processor of a contract keeps: the store of a stateful one, the totals of a monoid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.graph.aggregates import Aggregate, Partial
from headrace.graph.monoid import Monoid
from headrace.graph.operators import StoreSpec
from headrace.graph.processors import MonoidProcessor, class_of
from headrace.graph.signatures import name_of

STATE = "state"
"""The store of a ``StatefulProcessor``, as ``context.store`` and ``stores=`` call it."""
PARTIAL = "partial"
"""The column in which partial results of a ``MonoidProcessor`` travel, as MessagePack."""


def with_state(specs: tuple[StoreSpec, ...], operator: str, kind: Any) -> tuple[StoreSpec, ...]:
    """Return stores with that of a stateful processor, of which one may be called ``STATE``."""
    given = next((spec for spec in specs if spec.name == STATE), StoreSpec(STATE))
    own = StoreSpec(
        f"{operator}.{STATE}", given.kind, kind, given.ttl_ms, given.changelog, given.remote
    )
    return (own, *(spec for spec in specs if spec.name != STATE))


@dataclass(frozen=True)
class MonoidTotal(Aggregate):
    """The totals of a ``MonoidProcessor``: combines partial results that are made already.

    Args:
        factory: makes the processor, whose ``combine`` and ``result`` are called.
        state: the type of partial results, for msgspec.
        returns: the Arrow type of what is shown.
    """

    factory: Callable[[], MonoidProcessor[Any, Any]] = field(compare=False)
    state: Any
    returns: pa.DataType

    @cached_property
    def _monoid(self) -> Monoid:
        made, read = self.factory(), (PARTIAL,)
        zero, show = made.identity(), made.result
        return Monoid(zero, _alone, made.combine, show, self.returns, read, self.state)

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what is made again where it is needed."""
        return {name: value for name, value in vars(self).items() if name != "_monoid"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields of a frozen record."""
        vars(self).update(state)

    def columns(self) -> tuple[str, ...]:
        """Return the column of partial results."""
        return (PARTIAL,)

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one binary column."""
        return {"state": pa.binary()}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the declared type."""
        return self.returns

    def identity(self) -> Partial:
        """Return the identity, encoded."""
        return self._monoid.identity()

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return the partial results as they are."""
        return [pl.col(PARTIAL).alias(f"{prefix}state")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return those of a group as one."""
        return [self._monoid.folded(PARTIAL).alias(f"{prefix}state")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return those of a group as one."""
        return self._monoid.combine(prefix)

    def result(self, prefix: str) -> pl.Expr:
        """Return what is shown of each."""
        return self._monoid.result(prefix)

    def lift_values(self, values: tuple[Any, ...]) -> Partial:
        """Return one partial result as it is."""
        return values

    def combine_values(self, first: Partial, second: Partial) -> Partial:
        """Return two as one."""
        return self._monoid.combine_values(first, second)

    def result_value(self, partial: Partial) -> Any:
        """Return what is shown of one."""
        return self._monoid.result_value(partial)

    def describe(self) -> str:
        """Return the class and the types."""
        state = self.state.__qualname__ if isinstance(self.state, type) else str(self.state)
        return f"{name_of(class_of(self.factory))} ({state}) -> {self.returns}"


def _alone(partial: Any) -> Any:
    return partial
