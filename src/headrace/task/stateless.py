"""Operators without state: expressions, functions on messages, functions on batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import HeadraceError, InvalidInputError
from headrace.graph.operators import Site
from headrace.graph.sites import failure_site
from headrace.plan.expressions import one_line
from headrace.records.messages import from_messages, message_type, to_messages
from headrace.records.schema import normalise
from headrace.task.chunk import Chunk
from headrace.task.node import Node


class SelectNode(Node):
    """``map`` with expressions."""

    def __init__(self, name: str, expressions: Sequence[pl.Expr], schema: pa.Schema) -> None:
        super().__init__(name)
        self._expressions, self._schema = list(expressions), schema

    def push(self, chunk: Chunk) -> None:
        """Compute the new columns."""
        frame = guarded(self.name, lambda: chunk.frame().select(self._expressions))
        if frame.height != chunk.rows:
            raise InvalidInputError(
                f"operator {self.name!r} made {frame.height} rows of {chunk.rows}; map must keep "
                "the number of rows: use filter, flat_map or an aggregate",
                operator=self.name,
            )
        self.emit(chunk.with_batch(normalise(frame.to_arrow(), self._schema)))


class FilterNode(Node):
    """``filter`` with an expression."""

    def __init__(self, name: str, expression: pl.Expr) -> None:
        super().__init__(name)
        self._expression = expression.fill_null(value=False)

    def push(self, chunk: Chunk) -> None:
        """Keep the rows where the expression is true."""
        mask = guarded(self.name, lambda: chunk.frame().select(self._expression))
        keep = mask.to_series().cast(pl.Boolean).to_numpy()
        if len(keep) != chunk.rows:
            keep = np.broadcast_to(keep, chunk.rows)
        kept = chunk.filter(keep)
        self.counts["filtered"] += chunk.rows - kept.rows
        self.emit(kept)


class MessageNode(Node):
    """``map``, ``flat_map`` and ``filter`` with a function on one message.

    Args:
        name: of the operator.
        function: called once for each message, in order.
        shape: ``map``, ``flat_map`` or ``filter``.
        source: schema of the messages.
        schema: schema of the results; not used by ``filter``.
        uses: columns that messages have; ``None``: all.
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
    ) -> None:
        super().__init__(name)
        self._function, self._shape, self._schema = function, shape, schema
        self._columns = list(uses) if uses is not None else list(source.names)
        self._message = message_type("Message", pa.schema([source.field(c) for c in self._columns]))

    def push(self, chunk: Chunk) -> None:
        """Call the function for each row."""
        messages = to_messages(chunk.batch.select(self._columns), self._message)
        if self._shape == "filter":
            keep = np.fromiter(self._call_each(messages, bool), np.bool_, len(messages))
            kept = chunk.filter(keep)
            self.counts["filtered"] += chunk.rows - kept.rows
            self.emit(kept)
            return
        if self._shape == "map":
            results = list(self._call_each(messages))
            self.emit(chunk.with_batch(from_messages(results, self._schema, self.name)))
            return
        flat: list[Any] = []
        rows: list[int] = []
        for row, several in enumerate(self._call_each(messages, self._collected)):
            flat.extend(several)
            rows += [row] * len(several)
        if flat:
            batch = from_messages(flat, self._schema, self.name)
            self.emit(chunk.derive(batch, np.asarray(rows, np.int64)))

    def _collected(self, several: Any) -> list[Any]:
        """Run what is returned to its end: a generator is the user's code, too."""
        if isinstance(several, str | bytes | Mapping) or not isinstance(several, Iterable):
            found = "None" if several is None else f"a {type(several).__name__} {several!r}"
            raise InvalidInputError(
                f"operator {self.name!r} returned {found:.200}; flat_map must return an iterable "
                "of messages, empty when there is nothing",
                operator=self.name,
            )
        return list(several)

    def _call_each(
        self, messages: list[Any], convert: Callable[[Any], Any] | None = None
    ) -> Iterator[Any]:
        function, name = self._function, self.name
        for message in messages:
            try:
                result = function(message)
                if convert is not None:
                    result = convert(result)
            except HeadraceError as error:
                name_operator(error, name)
                raise
            except Exception as error:
                raise UserFunctionError.of(name, error, message) from error
            yield result


class MapBatchesNode(Node):
    """``map_batches``: a function on a Polars frame."""

    def __init__(
        self,
        name: str,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        schema: pa.Schema,
        uses: Sequence[str] | None,
    ) -> None:
        super().__init__(name)
        self._function, self._schema, self._uses = function, schema, uses

    def push(self, chunk: Chunk) -> None:
        """Call the function on the whole chunk."""
        frame = chunk.frame()
        if self._uses is not None:
            frame = frame.select(self._uses)
        result = guarded(self.name, lambda: self._function(frame))
        if not isinstance(result, pl.DataFrame):
            raise InvalidInputError(
                f"operator {self.name!r} returned a {type(result).__name__}; map_batches must "
                "return a Polars DataFrame",
                operator=self.name,
            )
        if result.height != chunk.rows:
            raise InvalidInputError(
                f"operator {self.name!r} returned {result.height} rows for {chunk.rows}; "
                "map_batches must keep the rows and their order: use filter or flat_map to "
                "change their number",
                operator=self.name,
            )
        batch = guarded(self.name, lambda: normalise(result.to_arrow(), self._schema))
        self.emit(chunk.with_batch(batch))


class ForwardNode(Node):
    """``merge``: passes on what it gets."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        super().__init__(name)
        self._schema = schema

    def push(self, chunk: Chunk) -> None:
        """Pass the rows on, columns in one order."""
        self.emit(chunk.with_batch(chunk.batch.select(self._schema.names)))


class UserFunctionError(InvalidInputError):
    """A user's function raised. Fix it; nothing of the epoch became visible."""

    code = "HR102"

    @classmethod
    def of(
        cls, operator: str, error: Exception, met: object = None, what: str = "message"
    ) -> UserFunctionError:
        """Describe an error of the user's with the operator and the message it met."""
        on = "" if met is None else f" on {what} {met!r:.300}"
        site = failure_site(error, Site())
        at = f" at {site}" if site.file else ""
        said = one_line(error) if isinstance(error, pl.exceptions.PolarsError) else str(error)
        text = f"operator {operator!r} raised {type(error).__name__}: {said}{at}{on}"
        return cls(text, operator=operator)


def name_operator(error: HeadraceError, operator: str) -> None:
    """Give an error that came up below a user's function the operator, if it has none."""
    error.fields.setdefault("operator", operator)


def guarded(operator: str, call: Callable[[], Any]) -> Any:
    """Run a user's function or expression; its errors name the operator."""
    try:
        return call()
    except HeadraceError as error:
        name_operator(error, operator)
        raise
    except Exception as error:
        raise UserFunctionError.of(operator, error) from error
