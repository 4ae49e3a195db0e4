"""Conditions on the columns of rows, as ``--where`` takes them: expressions of SQL apps."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from headrace.queries.parsing import parse_words
from headrace.queries.text import SqlText
from headrace.sql.expressions import Compiler


def condition(text: str, columns: Sequence[str], what: str) -> pl.Expr:
    """Return a condition in SQL as an expression.

    Args:
        text: of the condition.
        columns: of the rows.
        what: names it in messages.

    Raises:
        InvalidInputError: it is none, or names a column that is not there; shows where.
    """
    source = SqlText(text, what)
    return Compiler(source, {name: pl.col(name) for name in columns})(parse_words(source))
