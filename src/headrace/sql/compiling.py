"""What makes an expression of a tree: the contract between the compiler and its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import polars as pl

from headrace.errors import InvalidInputError
from headrace.queries.text import SqlText


class Compiling(Protocol):
    """The compiler of one query, as functions see it."""

    source: SqlText
    columns: Mapping[str, pl.Expr]

    def __call__(self, node: Any) -> pl.Expr:
        """Return the expression of a tree."""

    def all(self, nodes: Iterable[Any]) -> list[pl.Expr]:
        """Return the expressions of several trees."""

    def mistake(self, node: Any, message: str) -> InvalidInputError:
        """Return an error that shows a tree's place."""

    def constant(self, node: Any, what: str) -> Any:
        """Return the value of a literal."""

    def of_elements(self, columns: Mapping[str, pl.Expr]) -> Compiling:
        """Return what compiles the body of a function of elements, with their names."""


Compiled = Callable[[Any, Any], pl.Expr]
"""Of a compiler and a tree."""


def binary(apply: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Compiled:
    """Return what compiles a tree of two parts."""
    return lambda compiler, node: apply(compiler(node.this), compiler(node.expression))


def unary(apply: Callable[[pl.Expr], pl.Expr]) -> Compiled:
    """Return what compiles a tree of one part."""
    return lambda compiler, node: apply(compiler(node.this))
