"""Operators without state on whole batches: expressions, functions on frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.sites import function_site
from headrace.plan.stages import CallLimits
from headrace.records.schema import normalise
from headrace.records.widening import fitted
from headrace.task.chunk import Chunk
from headrace.task.messages.calls import (
    Overdue,
    guarded,
    overdue_error,
    time_limit,
)
from headrace.task.messages.mapped import NO_LIMITS
from headrace.task.node import Node


class BatchNode(Node):
    """An operator that makes one chunk of another, and of any part of it in the same way."""

    def push(self, chunk: Chunk) -> None:
        """Compute, and pass on what came of it; without the rows that it fails on, if wanted."""
        if self.guard is None:
            self.emit(self.compute(chunk))
            return
        for made in self.guard.parts(chunk, self.compute):
            self.emit(made)

    def compute(self, chunk: Chunk) -> Chunk:
        """Return what is made of a chunk; called again on parts of it when it raises."""
        raise NotImplementedError


class SelectNode(BatchNode):
    """``map`` with expressions."""

    def __init__(self, name: str, expressions: Sequence[pl.Expr], schema: pa.Schema) -> None:
        super().__init__(name)
        self._expressions, self._schema = list(expressions), schema

    def compute(self, chunk: Chunk) -> Chunk:
        """Compute the new columns."""
        frame = guarded(self.name, lambda: chunk.frame().select(self._expressions))
        if frame.height != chunk.rows:
            raise FunctionResultError(
                f"operator {self.name!r} made {frame.height} rows of {chunk.rows}; map must keep "
                "the number of rows: use filter, flat_map or an aggregate",
                operator=self.name,
            )
        return chunk.with_batch(normalise(frame.to_arrow(), self._schema))


class ExplodeNode(BatchNode):
    """``flat_map`` with expressions; of an empty list, or none, there is no row."""

    def __init__(self, name: str, expressions: Sequence[pl.Expr], schema: pa.Schema) -> None:
        super().__init__(name)
        self._expressions, self._schema = list(expressions), schema

    def compute(self, chunk: Chunk) -> Chunk:
        """Make the rows."""

        def made() -> tuple[pl.DataFrame, pl.Series]:
            frame = chunk.frame().select(self._expressions)
            if frame.height != chunk.rows:
                raise FunctionResultError(
                    f"operator {self.name!r} made {frame.height} lists of {chunk.rows} rows; "
                    "flat_map takes an expression of each row by itself",
                    operator=self.name,
                )
            lists = frame.columns[0]
            counts = frame[lists].list.len().fill_null(0)
            rows = frame.filter(counts > 0).explode(lists)
            return rows.select(self._schema.names), counts  # the list may be for nobody

        frame, counts = guarded(self.name, made)
        rows = np.repeat(np.arange(chunk.rows), counts.to_numpy())
        return chunk.derive(normalise(frame.to_arrow(), self._schema), rows)


def condition_mask(operator: str, expression: pl.Expr, chunk: Chunk) -> npt.NDArray[np.bool_]:
    """Return for which rows a condition is true; null is not. Errors name the operator."""
    expression = expression.fill_null(value=False)
    mask = guarded(operator, lambda: chunk.frame().select(expression))
    keep = mask.to_series().cast(pl.Boolean).to_numpy()
    return keep if len(keep) == chunk.rows else np.broadcast_to(keep, chunk.rows)


class FilterNode(BatchNode):
    """``filter`` with an expression."""

    def __init__(self, name: str, expression: pl.Expr) -> None:
        super().__init__(name)
        self._expression = expression

    def compute(self, chunk: Chunk) -> Chunk:
        """Keep the rows where the expression is true."""
        kept = chunk.filter(condition_mask(self.name, self._expression, chunk))
        self.counts["filtered"] += chunk.rows - kept.rows
        return kept


class MapBatchesNode(BatchNode):
    """``map_batches``: a function on a Polars frame."""

    def __init__(
        self,
        name: str,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        schema: pa.Schema,
        uses: Sequence[str] | None,
        limits: CallLimits = NO_LIMITS,
    ) -> None:
        super().__init__(name)
        self._function, self._schema, self._uses = function, schema, uses
        self._limits = limits

    def compute(self, chunk: Chunk) -> Chunk:
        """Call the function on the whole chunk."""
        frame = chunk.frame()
        if self._uses is not None:
            frame = frame.select(self._uses)
        try:
            with time_limit(self._limits.timeout_s, lambda: 0):
                result = guarded(self.name, lambda: self._function(frame))
        except Overdue as error:
            met = f"a batch of {chunk.rows} rows"
            raise overdue_error(self.name, self._limits.timeout_s, error, met) from error
        if not isinstance(result, pl.DataFrame):
            found = "None" if result is None else f"a {type(result).__name__}"
            raise self._wrong(f"returned {found}; map_batches must return a Polars DataFrame")
        if result.height != chunk.rows:
            raise self._wrong(
                f"returned {result.height} rows for {chunk.rows}; map_batches must keep the rows "
                "and their order: use filter or flat_map to change their number"
            )
        try:
            return chunk.with_batch(normalise(result.to_arrow(), self._schema))
        except InvalidInputError as error:
            raise self._wrong(f"returned a frame that does not fit: {error.message}") from error

    def _wrong(self, what: str) -> FunctionResultError:
        site = function_site(self._function)
        at = f" (at {site})" if site.file else ""
        return FunctionResultError(f"operator {self.name!r} {what}{at}", operator=self.name)


class ForwardNode(Node):
    """``merge``, ``union``, a branch or a side: passes on what it gets, fitted to its columns."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        super().__init__(name)
        self._schema = schema

    def push(self, chunk: Chunk) -> None:
        """Pass the rows on, columns in one order."""
        self.emit(chunk.with_batch(fitted(chunk.batch, self._schema)))
