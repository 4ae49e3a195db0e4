"""The aggregates of one operator as expressions on columns: partials, totals, what is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate
from headrace.task.messages.calls import guarded
from headrace.task.windows.partials import PartialCodec

_ROW = "__row"
_EARLIER = "<"
_TOO_WIDE = "conversion from `i128`"  # sums are made in 128 bits and kept in 64


class Aggregation:
    """The aggregates of one operator: their columns and expressions under one prefix each.

    Errors in the user's own aggregates name the operator.

    Args:
        operator: its name.
        aggregates: by name of the result column.
        source: schema of the messages.
    """

    def __init__(
        self, operator: str, aggregates: Sequence[tuple[str, Aggregate]], source: pa.Schema
    ) -> None:
        self._operator = operator
        self._all = [(f"{name}.", aggregate) for name, aggregate in aggregates]
        parts = {
            prefix: {prefix + part: kind for part, kind in a.partial_types(source).items()}
            for prefix, a in self._all
        }
        self._columns = {prefix: list(types) for prefix, types in parts.items()}
        self.codec = PartialCodec({n: kind for own in parts.values() for n, kind in own.items()})
        self._partial = [e for prefix, a in self._all for e in a.partial(prefix)]
        self._combine = [e for prefix, a in self._all for e in a.combine(prefix)]
        self._lift = [e for prefix, a in self._all for e in a.lift(prefix)]
        pairs = [a.combine_pair(_EARLIER + prefix, prefix) for prefix, a in self._all]
        every = all(pair is not None for pair in pairs)
        self._pairs = [e for pair in pairs for e in pair or ()] if every else None
        self._results = [a.result(prefix).alias(prefix[:-1]) for prefix, a in self._all]

    def reduced(self, frame: pl.DataFrame, by: Sequence[str], *beside: pl.Expr) -> pl.DataFrame:
        """Return one row of partials for each group of messages, with the columns ``beside``."""
        return self._guarded(lambda: frame.group_by(by).agg(*beside, *self._partial))

    def combined(self, frame: pl.DataFrame, by: Sequence[str], *beside: pl.Expr) -> pl.DataFrame:
        """Return one row of partials for each group of partials, combined in order."""
        return self._guarded(lambda: frame.group_by(by).agg(*beside, *self._combine))

    def paired(self, earlier: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
        """Return partials combined row by row; both frames hold partials alone, shape (n,)."""
        return self._guarded(lambda: self._pair(earlier, later))

    def _pair(self, earlier: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
        if self._pairs is not None:
            before = earlier.rename({name: _EARLIER + name for name in earlier.columns})
            return later.hstack(before.get_columns()).select(self._pairs)
        rows = pl.Series(_ROW, np.arange(later.height))
        frames = [earlier.with_columns(rows), later.with_columns(rows)]
        both = pl.concat(frames, how="vertical_relaxed")
        return both.group_by(_ROW).agg(self._combine).sort(_ROW).drop(_ROW)

    def lifted(self, frame: pl.DataFrame, *beside: pl.Series) -> pl.DataFrame:
        """Return the partials of each message on its own."""
        return self._guarded(lambda: frame.select(*beside, *self._lift))

    def shown(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Return the columns that users see."""
        return self._guarded(lambda: partials.select(self._results))

    def accumulated(self, frame: pl.DataFrame, group: str) -> pl.DataFrame:
        """Replace each row's partial by the running combination within its group, in order."""
        return self._guarded(lambda: self._accumulate(frame, group))

    def _accumulate(self, frame: pl.DataFrame, group: str) -> pl.DataFrame:
        expressions: list[pl.Expr] = []
        for prefix, aggregate in self._all:
            running = aggregate.accumulate(prefix)
            if running is None:
                frame = self._fold(frame, group, self._columns[prefix], aggregate)
            else:
                expressions += [e.over(group) for e in running]
        return frame.with_columns(expressions)

    @staticmethod
    def _fold(
        frame: pl.DataFrame, group: str, names: list[str], aggregate: Aggregate
    ) -> pl.DataFrame:
        latest: dict[object, tuple[object, ...]] = {}
        rows = []
        columns = [frame[name].to_list() for name in names]
        for key, *values in zip(frame[group].to_list(), *columns, strict=True):
            before = latest.get(key)
            now = tuple(values)
            latest[key] = now if before is None else aggregate.combine_values(before, now)
            rows.append(latest[key])
        series = [
            pl.Series(name, [row[i] for row in rows], dtype=frame.schema[name])
            for i, name in enumerate(names)
        ]
        return frame.with_columns(series)

    def _guarded(self, call: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        try:
            made: pl.DataFrame = guarded(self._operator, call)
        except InvalidInputError as error:
            if _TOO_WIDE not in error.message:
                raise
            raise InvalidInputError(
                f"operator {self._operator!r}: a sum of integers is beyond 64 bits; sum a float "
                "column instead",
                operator=self._operator,
            ) from error
        return made
