"""Operators without state: expressions, functions on frames and on messages, ``split``.

``join_table`` is here too: the table that it looks up is shared by all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.introspection import function_site
from headrace.graph.operators import (
    Branch,
    Explode,
    Filter,
    FilterMessages,
    FlatMapMessages,
    InspectMessages,
    JoinTable,
    MapBatches,
    MapMessages,
    Operator,
    Sample,
    Select,
    Split,
)
from headrace.graph.side_outputs import DEFAULT
from headrace.plan.stages import CallLimits
from headrace.records.evolution import cast_to_schema
from headrace.records.keys import encode_columns
from headrace.records.schema import normalise
from headrace.runtime.chunk import Chunk, Ints, Mask, join_found
from headrace.runtime.node import Node, Refused
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.user_calls import (
    NO_LIMITS,
    CallTimeout,
    MessageCalls,
    SideOutputRouter,
    condition_result,
    guarded,
    overdue_error,
    time_limit,
    too_many_error,
)
from headrace.state.broadcast import BroadcastTable


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


class _ExpressionNode(BatchNode):
    """An operator that has expressions."""

    @classmethod
    def of(cls, operator: Select | Explode, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        schema = build.stage.schemas[operator.name]
        return cls(operator.name, operator.expressions, schema)

    def __init__(self, name: str, expressions: Sequence[pl.Expr], schema: pa.Schema) -> None:
        super().__init__(name)
        self._expressions, self._schema = list(expressions), schema


class SelectNode(_ExpressionNode):
    """``map`` with expressions."""

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


class ExplodeNode(_ExpressionNode):
    """``flat_map`` with expressions; of an empty list, or none, there is no row."""

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


def condition_mask(operator: str, expression: pl.Expr, chunk: Chunk) -> Mask:
    """Return for which rows a condition is true; null is not. Errors name the operator."""
    expression = expression.fill_null(value=False)
    mask = guarded(operator, lambda: chunk.frame().select(expression))
    keep = mask.to_series().cast(pl.Boolean).to_numpy()
    return keep if len(keep) == chunk.rows else np.broadcast_to(keep, chunk.rows)


class FilterNode(BatchNode):
    """``filter`` with an expression."""

    @classmethod
    def of(cls, operator: Filter, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        assert operator.expression is not None
        return cls(operator.name, operator.expression)

    def __init__(self, name: str, expression: pl.Expr) -> None:
        super().__init__(name)
        self._expression = expression

    def compute(self, chunk: Chunk) -> Chunk:
        """Keep the rows where the expression is true."""
        kept = chunk.filter(condition_mask(self.name, self._expression, chunk))
        self.counts["filtered"] += chunk.rows - kept.rows
        return kept


SAMPLE_SEED = 0x5A4D504C45
"""Keys are placed by the hash of seed 0: a sample by that one would be all of some key groups."""


class SampleNode(BatchNode):
    """``sample``: keeps the rows whose hash is below a bound."""

    def __init__(self, name: str, by: Sequence[str], fraction: float) -> None:
        super().__init__(name)
        self._by = by
        self._below = None if fraction >= 1 else np.uint64(fraction * 2.0**64)

    @classmethod
    def of(cls, operator: Sample, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        return cls(operator.name, operator.by, operator.fraction)

    def compute(self, chunk: Chunk) -> Chunk:
        """Keep the rows of the sample."""
        if self._below is None:
            return chunk
        keys = encode_columns([_hashed(chunk.batch.column(name)) for name in self._by])
        kept = chunk.filter(keys.hashes(SAMPLE_SEED) < self._below)
        self.counts["filtered"] += chunk.rows - kept.rows
        return kept


def _hashed(column: pa.Array) -> pa.Array:
    """Return a column to hash: keys are signed, but unsigned integers above them can be sampled."""
    return column.view(pa.int64()) if column.type == pa.uint64() else column


class MapBatchesNode(BatchNode):
    """``map_batches``: a function on a Polars frame."""

    @classmethod
    def of(cls, operator: MapBatches, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        assert operator.function is not None
        schema, limits = build.stage.schemas[operator.name], build.runtime.limits
        return cls(operator.name, operator.function, schema, operator.uses, limits)

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
        except CallTimeout as error:
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

    @classmethod
    def of(cls, operator: Operator, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        return cls(operator.name, build.stage.schemas[operator.name])

    def __init__(self, name: str, schema: pa.Schema) -> None:
        super().__init__(name)
        self._schema = schema

    def push(self, chunk: Chunk) -> None:
        """Pass the rows on, columns in one order."""
        self.emit(chunk.with_batch(cast_to_schema(chunk.batch, self._schema)))


class MessageNode(Node):
    """Calls a function for each message.

    Args:
        operator: with the function.
        source: schema of the messages.
        schema: schema of the results; not used by ``filter``.
        limits: of each call.
    """

    @classmethod
    def of(
        cls, operator: MapMessages | FlatMapMessages | FilterMessages, build: NodeContext
    ) -> Self:
        """Return the node of an operator of a stage."""
        source, schema = build.source_schema(operator), build.stage.schemas[operator.name]
        return cls(operator, source=source, schema=schema, limits=build.runtime.limits)

    def __init__(
        self,
        operator: MapMessages | FlatMapMessages | FilterMessages,
        *,
        source: pa.Schema,
        schema: pa.Schema,
        limits: CallLimits = NO_LIMITS,
    ) -> None:
        super().__init__(operator.name)
        assert operator.function is not None
        self._kind, self._limits = type(operator), limits
        sides = () if isinstance(operator, FilterMessages) else operator.sides
        site = function_site(operator.function)
        self._router = SideOutputRouter(operator.name, schema, sides, site)
        convert: dict[type, Callable[[Any], Any]] = {
            FilterMessages: condition_result,
            FlatMapMessages: self._collected,
        }
        self._calls = MessageCalls(
            operator.name,
            operator.function,
            source=source,
            uses=operator.uses,
            limits=limits,
            convert=convert.get(self._kind),
            takes=operator.takes,
        )

    def push(self, chunk: Chunk) -> None:
        """Call the function for each row."""
        chunk, results = self._calls.results(chunk, self.guard)
        if self._kind is InspectMessages:
            self.emit(chunk)
        elif self._kind is FilterMessages:
            kept = chunk.filter(np.fromiter(results, np.bool_, len(results)))
            self.counts["filtered"] += chunk.rows - kept.rows
            self.emit(kept)
        elif self._kind is MapMessages:
            self._send(chunk, results, None)
        else:
            flat = list(chain.from_iterable(results))
            sizes = np.fromiter(map(len, results), np.int64, len(results))
            if flat:
                self._send(chunk, flat, np.repeat(np.arange(len(results)), sizes))

    def _send(self, chunk: Chunk, results: list[Any], rows: Ints | None) -> None:
        """Send results on, one for each row unless ``rows`` says of which row each is."""
        try:
            batches = self._router.packed(results)
        except InvalidInputError as error:
            of_row: Sequence[int] = range(len(results)) if rows is None else rows.tolist()
            if self.guard is None:
                raise self._router.refused(error, results, of_row, chunk.record) from error
            fitting = self._fitting(chunk, results, of_row)
            rows = np.array([of_row[at] for at in fitting], np.int64)
            batches = self._router.packed([results[at] for at in fitting])
        for side_batch in batches:
            self.emit(side_batch.of(chunk, rows), side_batch.side)

    def _fitting(self, chunk: Chunk, results: list[Any], rows: Sequence[int]) -> list[int]:
        """Return the places of the results of those rows of which all fit the declared columns."""
        assert self.guard is not None
        unfit: dict[int, Refused] = {}
        for row, result in zip(rows, results, strict=True):
            if row not in unfit:
                try:
                    self._router.packed([result])
                except InvalidInputError as error:
                    unfit[row] = Refused(row, error)
        self.guard.take(chunk, list(unfit.values()))
        return [at for at, row in enumerate(rows) if row not in unfit]

    def _collected(self, several: Any) -> list[Any]:
        """Run what is returned to its end: a generator is the user's code, too."""
        limit = self._limits.rows
        if type(several) is list and (limit is None or len(several) <= limit):
            return several.copy()  # the function may continue with its own
        if isinstance(several, str | bytes | Mapping) or not isinstance(several, Iterable):
            found = "None" if several is None else f"a {type(several).__name__} {several!r}"
            raise FunctionResultError(
                f"operator {self.name!r} returned {found:.200}; flat_map must return an iterable "
                "of messages, empty when there is nothing",
                operator=self.name,
            )
        if limit is None:
            return list(several)
        collected = list(islice(several, limit + 1))
        if len(collected) > limit:
            raise too_many_error(self.name, limit)
        return collected


Answer = tuple[Chunk, Mask]
"""Rows, and for which of them a condition is true."""


class SplitNode(Node):
    """Asks one condition after the other, each for the rows that are left.

    Args:
        operator: the branches.
        source: schema of the rows.
        limits: of each call of a function.
    """

    @classmethod
    def of(cls, operator: Split, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        return cls(operator, build.source_schema(operator), build.runtime.limits)

    def __init__(self, operator: Split, source: pa.Schema, limits: CallLimits = NO_LIMITS) -> None:
        super().__init__(operator.name)
        self._branches = operator.branches
        self._calls = {
            branch.name: MessageCalls(
                operator.name,
                branch.function,
                source=source,
                uses=operator.uses,
                limits=limits,
                convert=condition_result,
                takes=branch.takes,
            )
            for branch in operator.branches
            if branch.function is not None
        }

    def push(self, chunk: Chunk) -> None:
        """Send each row to its branch; what no branch takes and nobody reads is counted."""
        left = [chunk]
        for branch in self._branches:
            left = list(self._taken(branch, left))
        for rest in left:
            if DEFAULT in self.sides:
                self.emit(rest, DEFAULT)
            else:
                self.counts["unmatched"] += rest.rows

    def _taken(self, branch: Branch, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Send the rows that a branch takes, and yield the others."""
        for chunk in chunks:
            for part, keep in self._answers(branch, chunk):
                self.emit(part.filter(keep), branch.name)
                rest = part.filter(~keep)
                if rest.rows:
                    yield rest

    def _answers(self, branch: Branch, chunk: Chunk) -> Iterable[Answer]:
        """Ask a condition; the rows on which it fails are left out, if that is wanted."""
        if branch.expression is None:
            part, results = self._calls[branch.name].results(chunk, self.guard)
            return [(part, np.fromiter(results, np.bool_, len(results)))] if part.rows else []
        ask = partial(self._masked, branch)
        return [ask(chunk)] if self.guard is None else self.guard.parts(chunk, ask)

    def _masked(self, branch: Branch, chunk: Chunk) -> Answer:
        assert branch.expression is not None
        return chunk, condition_mask(self.name, branch.expression, chunk)


class BroadcastJoinNode(Node):
    """Looks up the rows of a table.

    Args:
        name: of the operator.
        table: of the process.
        on: columns of the messages, in the order of the table's key.
        columns: by new name, the columns of the table that later operators use.
        schema: of what leaves.
        keeps_all: whether messages without a match stay, with nulls.
    """

    @classmethod
    def of(cls, operator: JoinTable, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        table = build.tables[operator.table.name]
        added = operator.columns or tuple((name, name) for name in table.schema.names)
        schema = build.stage.schemas[operator.name]
        before = build.source_schema(operator).names
        return cls(
            operator.name,
            table,
            on=operator.on,
            columns={new: old for new, old in added if new not in before},
            schema=schema,
            keeps_all=operator.how == "left",
        )

    def __init__(
        self,
        name: str,
        table: BroadcastTable,
        *,
        on: Sequence[str],
        columns: Mapping[str, str],
        schema: pa.Schema,
        keeps_all: bool,
    ) -> None:
        super().__init__(name)
        self._table, self._on, self._columns = table, list(on), dict(columns)
        self._schema, self._keeps_all = schema, keeps_all

    def push(self, chunk: Chunk) -> None:
        """Join a chunk."""
        rows = self._table.index.find([chunk.batch.column(name) for name in self._on])
        joined = join_found(
            chunk, rows, self._table.batch, self._columns, self._schema, keeps_all=self._keeps_all
        )
        if joined.rows:
            self.emit(joined)
