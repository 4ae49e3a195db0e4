"""What Polars can say of a user's expression before any row is there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import unknown_column
from headrace.graph.types import arrow_schema, polars_schema, polars_type

_PROBE = "__probe"


@dataclass(frozen=True)
class Resolved:
    """An expression against the columns it works on."""

    expression: pl.Expr
    source: pa.Schema

    @property
    def reads(self) -> set[str]:
        """The columns it reads; all of them where it selects by type or pattern."""
        if self.expression.meta.has_multiple_outputs():
            return set(self.source.names)
        return set(self.expression.meta.root_names())

    @property
    def is_plain(self) -> bool:
        """Say whether it only picks columns, under their own names."""
        return bool(self.expression.meta.is_column_selection())

    @property
    def names(self) -> list[str]:
        """The columns it makes."""
        name = self.expression.meta.output_name(raise_if_undetermined=False)
        return self.schema.names if name is None else [name]

    @cached_property
    def schema(self) -> pa.Schema:
        """The stored form of the columns it makes.

        Raises:
            InvalidInputError: what is wrong, in one line.
        """
        missing = [n for n in self.expression.meta.root_names() if n not in self.source.names]
        if missing:
            raise InvalidInputError(
                "; ".join(unknown_column(name, self.source.names) for name in missing)
            )
        name = self.expression.meta.output_name(raise_if_undetermined=False)
        plain = self.expression.meta.undo_aliases()
        if name is not None and plain.meta.is_column():  # most are, and need no query
            kind = self.source.field(plain.meta.output_name()).type
            return arrow_schema([(name, polars_type(kind))])
        frame = pl.DataFrame(schema=polars_schema(self.source)).lazy()
        query = frame.select(self.expression)
        try:
            # Some types are only looked at when the work is done; no row is there to be read.
            has_function = "python_udf" in str(self.expression)
            made = query.collect_schema() if has_function else query.collect().schema
        except pl.exceptions.PolarsError as error:
            raise InvalidInputError(f"{self.expression!s}: {one_line(error)}") from error
        return arrow_schema(made.items())

    def beyond_its_row(self) -> bool:
        """Say whether a row's value depends on other rows, or the number of rows changes.

        Polars moves a filter below an expression only where every row stands for itself.
        """
        if self.expression.meta.is_column_selection(allow_aliasing=True):
            return False
        schema = {**polars_schema(self.source), _PROBE: pl.Boolean()}
        query = pl.DataFrame(schema=schema).lazy().select(pl.col(_PROBE), self.expression)
        steps = [line.strip() for line in query.filter(pl.col(_PROBE)).explain().splitlines()]
        return steps[0].startswith("FILTER") and any(step.startswith("SELECT") for step in steps)

    def keeps(self, column: str) -> bool:
        """Say whether it passes a column on as it is."""
        own = self.is_plain and column in self.schema.names
        return own or bool(self.expression.meta.eq(pl.col(column)))

    def split(self) -> list[Resolved]:
        """Return one expression for each column where it only picks columns."""
        if not self.is_plain:
            return [self]
        return [Resolved(pl.col(name), self.source) for name in self.schema.names]


def one_line(error: Exception) -> str:
    """Return the first sentence of a Polars error."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def broadcast(expression: pl.Expr, name: str) -> pl.Expr:
    """Give an expression of constants as many rows as its frame has."""
    return pl.when(pl.int_range(pl.len()) >= 0).then(expression).alias(name)
