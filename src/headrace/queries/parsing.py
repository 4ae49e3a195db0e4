"""SQL that users write, as sqlglot's trees: in DuckDB's dialect, with mistakes at their place."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token

from headrace.queries.text import Place, SqlText

_is_unlogged: ContextVar[bool] = ContextVar("headrace_is_unlogged", default=False)
logging.getLogger("sqlglot").addFilter(lambda _: not _is_unlogged.get())


@contextmanager
def unlogged() -> Iterator[None]:
    """Have sqlglot log nothing: its warnings have the text of queries, which may hold secrets."""
    token = _is_unlogged.set(True)
    try:
        yield
    finally:
        _is_unlogged.reset(token)


def parse_words(source: SqlText, words: Sequence[Token] | None = None) -> Any:
    """Return the tree of one statement or expression.

    Raises:
        InvalidInputError: it is none; shows where.
    """
    try:
        known = list(tokens_of(source) if words is None else words)
        with unlogged():
            tree, *others = DuckDB().parser().parse(known, source.text) or [None]
    except ParseError as error:
        found = error.errors[0]
        at = _at(source, int(found["line"]), int(found["col"]), str(found["highlight"] or ""))
        text = str(found["description"]).rstrip(".").lower()
        raise source.mistake(f"this is no SQL that is known here: {text}", at) from error
    except IndexError as error:  # sqlglot looks behind the last word, as of SHOW ALL
        end = len(source.text)
        raise source.mistake("this is no SQL that is known here", Place(0, max(1, end))) from error
    if tree is None or others:
        end = len(source.text)
        raise source.mistake("expected one expression", Place(0, max(1, end)))
    return tree


def _at(source: SqlText, line: int, column: int, text: str) -> Place:
    starts = [0]
    for row in source.text.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    end = starts[min(line, len(starts)) - 1] + column
    begin = max(0, end - max(1, len(text)))
    return Place(begin, max(end, begin + 1))


def tokens_of(source: SqlText) -> list[Token]:
    """Return the words of a text.

    Raises:
        InvalidInputError: a quote or a comment has no end.
    """
    try:
        return DuckDB().tokenize(source.text)
    except TokenError as error:
        end = len(source.text.rstrip())
        raise source.mistake(
            "the text cannot be split into words: a quote or a comment has no end",
            Place(max(0, end - 1), end),
        ) from error
