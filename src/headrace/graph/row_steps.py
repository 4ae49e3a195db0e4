"""Operators that work on each row by itself: ``map``, ``flat_map``, ``filter``, ``map_batches``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import polars as pl

from headrace.graph.arguments import (
    attempt,
    checked_function,
    is_function,
    returned,
    shown,
)
from headrace.graph.operators import (
    FAIL,
    Explode,
    Filter,
    FilterMessages,
    FlatMapMessages,
    MapBatches,
    MapMessages,
    Operator,
    Select,
)
from headrace.graph.signatures import name_of, returns_nothing
from headrace.graph.sites import user_site
from headrace.graph.steps import Steps
from headrace.graph.types import to_schema


class RowSteps(Steps):
    """The methods of a stream that make rows of rows, one by one."""

    def map(
        self,
        *what: Callable[[Any], Any] | pl.Expr | str,
        returns: Any = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        sides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make one message of each message.

        Args:
            *what: one function from a message to a message; or Polars expressions and names
                of columns, each of which makes one column of the result.
            returns: columns of a function's result: a schema, a dict of names and types, or a
                record class; by default the function's return annotation.
            uses: the columns a function reads; its message has only these. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a message it raises on.
            sides: columns of each side that the function may send to with ``hr.to``, by name.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if len(what) == 1 and is_function(what[0]):
                function: Any = what[0]
                schema = returned(wrong, "map", function, returns)
                columns = checked_function(wrong, "map", function, uses)
                return MapMessages(chosen, (self.name,), site, function, schema, columns)
            _check_untold(wrong, returns, uses)
            good = _expressions(wrong, "map", what)
            return Select(chosen, (self.name,), site, good, tuple(map(str, good)))

        return self._add("map", name, make, self.keys, on_error, sides)

    def flat_map(
        self,
        *what: Callable[[Any], Any] | pl.Expr | str,
        returns: Any = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        sides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make any number of messages of each message.

        Args:
            *what: one function from a message to an iterable of messages; or a Polars expression
                of a list, of which each element is a row, and more expressions and names of
                columns that these rows have.
            returns: columns of a message of the result; default: ``T`` of the return
                annotation ``Iterable[T]``.
            uses: the columns the function reads. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a message it raises on.
            sides: columns of each side that the function may send to with ``hr.to``, by name.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if len(what) > 1 or isinstance(what[0] if what else None, pl.Expr):
                _check_untold(wrong, returns, uses)
                good = _expressions(wrong, "flat_map", what)
                return Explode(chosen, (self.name,), site, good, tuple(map(str, good)))
            function: Any = what[0] if what else None
            columns = checked_function(wrong, "flat_map", function, uses)
            schema = returned(wrong, "flat_map", function, returns, many=True)
            return FlatMapMessages(chosen, (self.name,), site, function, schema, columns)

        return self._add("flat_map", name, make, self.keys, on_error, sides)

    def filter(
        self,
        condition: Callable[[Any], Any] | pl.Expr,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Keep the messages for which a condition is true.

        Args:
            condition: a function of a message, or a Polars expression; null drops.
            uses: the columns a function reads. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a message it raises on.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if isinstance(condition, pl.Expr):
                if uses is not None:
                    wrong.append("uses= is for functions; an expression tells its own columns")
                return Filter(chosen, (self.name,), site, condition, str(condition))
            columns = checked_function(wrong, "filter", condition, uses)
            if returns_nothing(condition):
                wrong.append(f"function {name_of(condition)} never returns a value: add a return")
            return FilterMessages(chosen, (self.name,), site, condition, columns)

        return self._add("filter", name, make, self.keys, on_error)

    def map_batches(
        self,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        returns: Any = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Make a Polars frame of each Polars frame, row for row.

        How rows are cut into frames is not defined: use it for work on rows, not over them.

        Args:
            function: from a frame to a frame of as many rows in the same order.
            returns: columns of the result.
            uses: the columns the function reads; its frame has only these. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a message it raises on.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            columns = checked_function(wrong, "map_batches", function, uses)
            schema = None
            if returns is None:
                wrong.append("map_batches needs returns=, the columns of its result")
            else:
                schema = attempt(wrong, lambda: to_schema(returns), None)
            return MapBatches(chosen, (self.name,), site, function, schema, columns)

        return self._add("map_batches", name, make, self.keys, on_error)


def _check_untold(wrong: list[str], returns: Any, uses: Any) -> None:
    if returns is not None or uses is not None:
        wrong.append("returns= and uses= are for functions; expressions tell their own")


def _expressions(wrong: list[str], what: str, given: Sequence[Any]) -> tuple[pl.Expr, ...]:
    """Return what was given as expressions, names of columns too."""
    expressions = [pl.col(part) if isinstance(part, str) else part for part in given]
    bad = [part for part in expressions if not isinstance(part, pl.Expr)]
    if bad or not expressions:
        found = ", ".join(shown(part) for part in bad) or "nothing"
        wrong.append(f"{what} takes one function, or expressions and columns; found {found}")
    return tuple(part for part in expressions if isinstance(part, pl.Expr))
