"""Operators without state: expressions, functions on messages, functions on batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import FunctionResultError, HeadraceError, InvalidInputError
from headrace.plan.stages import CallLimits
from headrace.records.messages import from_messages, message_type, to_messages
from headrace.records.schema import normalise
from headrace.task.calls import (
    Overdue,
    UserFunctionError,
    guarded,
    name_operator,
    overdue_error,
    time_limit,
)
from headrace.task.chunk import Chunk
from headrace.task.dead_letters import Refused, without
from headrace.task.node import Node

NO_LIMITS = CallLimits()


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


class FilterNode(BatchNode):
    """``filter`` with an expression."""

    def __init__(self, name: str, expression: pl.Expr) -> None:
        super().__init__(name)
        self._expression = expression.fill_null(value=False)

    def compute(self, chunk: Chunk) -> Chunk:
        """Keep the rows where the expression is true."""
        mask = guarded(self.name, lambda: chunk.frame().select(self._expression))
        keep = mask.to_series().cast(pl.Boolean).to_numpy()
        if len(keep) != chunk.rows:
            keep = np.broadcast_to(keep, chunk.rows)
        kept = chunk.filter(keep)
        self.counts["filtered"] += chunk.rows - kept.rows
        return kept


class MessageNode(Node):
    """``map``, ``flat_map`` and ``filter`` with a function on one message.

    Args:
        name: of the operator.
        function: called once for each message, in order.
        shape: ``map``, ``flat_map`` or ``filter``.
        source: schema of the messages.
        schema: schema of the results; not used by ``filter``.
        uses: columns that messages have; ``None``: all.
        limits: of each call.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Any], Any],
        *,
        shape: str,
        source: pa.Schema,
        schema: pa.Schema,
        uses: Sequence[str] | None = None,
        limits: CallLimits = NO_LIMITS,
    ) -> None:
        super().__init__(name)
        self._function, self._shape, self._schema = function, shape, schema
        self._limits, self._row = limits, 0
        self._columns = list(uses) if uses is not None else list(source.names)
        self._message = message_type("Message", pa.schema([source.field(c) for c in self._columns]))
        convert: dict[str, Callable[[Any], Any]] = {"filter": bool, "flat_map": self._collected}
        self._convert = convert.get(shape)

    def push(self, chunk: Chunk) -> None:
        """Call the function for each row."""
        messages = to_messages(chunk.batch.select(self._columns), self._message)
        refused: list[Refused] = []
        with time_limit(self._limits.timeout_s, lambda: self._row):
            results = list(self._call_each(messages, refused))
        if refused:
            chunk = self._leave_out(chunk, refused)
        if self._shape == "filter":
            kept = chunk.filter(np.fromiter(results, np.bool_, len(results)))
            self.counts["filtered"] += chunk.rows - kept.rows
            self.emit(kept)
        elif self._shape == "map":
            self._emit_results(chunk, results, None)
        else:
            flat: list[Any] = []
            rows: list[int] = []
            for row, several in enumerate(results):
                flat.extend(several)
                rows += [row] * len(several)
            if flat:
                self._emit_results(chunk, flat, rows)

    def _emit_results(self, chunk: Chunk, results: list[Any], rows: list[int] | None) -> None:
        """Send results on, one for each row unless ``rows`` says of which row each is."""
        try:
            batch = from_messages(results, self._schema, self.name)
        except InvalidInputError:
            if self.guard is None:
                raise
            self._emit_fitting(chunk, results, range(len(results)) if rows is None else rows)
            return
        if rows is None:
            self.emit(chunk.with_batch(batch))
        else:
            self.emit(chunk.derive(batch, np.asarray(rows, np.int64)))

    def _emit_fitting(self, chunk: Chunk, results: list[Any], rows: Sequence[int]) -> None:
        """Send on the results of those rows of which all fit the declared columns."""
        unfit: dict[int, Refused] = {}
        for row, result in zip(rows, results, strict=True):
            if row not in unfit:
                try:
                    from_messages([result], self._schema, self.name)
                except InvalidInputError as error:
                    unfit[row] = Refused(row, error)
        self._leave_out(chunk, list(unfit.values()))
        fitting = [at for at, row in enumerate(rows) if row not in unfit]
        if fitting:
            batch = from_messages([results[at] for at in fitting], self._schema, self.name)
            self.emit(chunk.derive(batch, np.asarray([rows[at] for at in fitting], np.int64)))

    def _leave_out(self, chunk: Chunk, refused: list[Refused]) -> Chunk:
        assert self.guard is not None
        self.guard.take(chunk, refused)
        return without(chunk, refused)

    def _collected(self, several: Any) -> list[Any]:
        """Run what is returned to its end: a generator is the user's code, too."""
        if isinstance(several, str | bytes | Mapping) or not isinstance(several, Iterable):
            found = "None" if several is None else f"a {type(several).__name__} {several!r}"
            raise FunctionResultError(
                f"operator {self.name!r} returned {found:.200}; flat_map must return an iterable "
                "of messages, empty when there is nothing",
                operator=self.name,
            )
        limit = self._limits.rows
        if limit is None:
            return list(several)
        collected = list(islice(several, limit + 1))
        if len(collected) > limit:
            raise too_many(self.name, limit)
        return collected

    def _call_each(self, messages: list[Any], refused: list[Refused]) -> Iterator[Any]:
        """Yield what the function makes of each message; of the refused ones, nothing."""
        function, convert, name = self._function, self._convert, self.name
        for row, message in enumerate(messages):
            self._row = row
            try:
                result = function(message)
                if convert is not None:
                    result = convert(result)
            except Overdue as overdue:
                timeout = overdue_error(name, self._limits.timeout_s, overdue, message)
                self._refuse(row, timeout, refused, overdue)
            except HeadraceError as error:
                name_operator(error, name)
                self._refuse(row, error, refused)
            except Exception as error:  # noqa: BLE001 - any of the user's
                said = UserFunctionError.of(name, error, message)
                self._refuse(row, said, refused, error)
            else:
                yield result

    def _refuse(
        self,
        row: int,
        error: HeadraceError,
        refused: list[Refused],
        cause: BaseException | None = None,
    ) -> None:
        if self.guard is None or not isinstance(error, InvalidInputError):
            raise error from cause
        refused.append(Refused(row, error))


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
            raise FunctionResultError(
                f"operator {self.name!r} returned {found}; map_batches must "
                "return a Polars DataFrame",
                operator=self.name,
            )
        if result.height != chunk.rows:
            raise FunctionResultError(
                f"operator {self.name!r} returned {result.height} rows for {chunk.rows}; "
                "map_batches must keep the rows and their order: use filter or flat_map to "
                "change their number",
                operator=self.name,
            )
        batch = guarded(self.name, lambda: normalise(result.to_arrow(), self._schema))
        return chunk.with_batch(batch)


class ForwardNode(Node):
    """``merge``: passes on what it gets."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        super().__init__(name)
        self._schema = schema

    def push(self, chunk: Chunk) -> None:
        """Pass the rows on, columns in one order."""
        self.emit(chunk.with_batch(chunk.batch.select(self._schema.names)))


def too_many(operator: str, limit: int) -> FunctionResultError:
    """Return the error for a message of which too many were made."""
    return FunctionResultError(
        f"operator {operator!r} made more than {limit} messages of one; let it make fewer, or "
        "raise job.rows_per_message",
        operator=operator,
    )
