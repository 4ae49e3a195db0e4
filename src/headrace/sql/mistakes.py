"""Where a mistake is that the planner finds, such as a function of a column of another type.

The planner knows operators and their statements. ``SqlSite``, the site of an operator that a query
became, finds the part of the text that does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
from sqlglot import exp

from headrace.errors import InvalidInputError
from headrace.graph.expressions import Resolved
from headrace.graph.operators import Site
from headrace.queries.text import Place, SqlText, place_of
from headrace.records.schema import type_text


@dataclass(frozen=True)
class SqlSite(Site):
    """The line of a statement, which knows its text; a copy elsewhere is a plain site."""

    source: SqlText = field(default_factory=lambda: SqlText(""), compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the text, which nobody needs who runs the job."""
        return Site, (self.file, self.line)

    def mistake(self, operator: str, text: str, columns: pa.Schema | None) -> str:
        """Return what is wrong with an operator, at its place in the text if that can be found."""
        found = self._of_aggregate(operator, text) or self._of_expression(text, columns)
        found = found or self._of_name(text)
        if found is None:
            return super().mistake(operator, text, columns)
        place, message = found
        return self.source.mistake(message, place).message.replace("\n", "\n   ")

    def _shown(self, place: Place) -> tuple[Place, str]:
        """Return a place with the brackets that belong to it, and its text."""
        text, end = self.source.text, place.end
        depth = text.count("(", *place) - text.count(")", *place)
        while depth > 0 and end < len(text):
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        return Place(place.begin, end), " ".join(text[place.begin : end].split())

    def _notes(self) -> Iterator[tuple[str, pl.Expr, Place, bool]]:
        """Yield what trees became, from this statement on, inner ones first.

        Key, expression, place, and whether it is all of a condition.
        """
        for key, made, tree in self.source.compiled:
            if self._is_behind(place := place_of(tree)):
                yield key, made, place, isinstance(tree.parent, exp.Where | exp.Having)

    def _is_behind(self, place: Place) -> bool:
        return self.source.file != self.file or self.source.line(place) >= self.line

    def _of_aggregate(self, operator: str, text: str) -> tuple[Place, str] | None:
        name, _, reason = text.partition(": ")
        for key, _, found, _ in self._notes():
            if key == f"{operator}.{name}":
                place, shown = self._shown(found)
                behind = re.sub(r"^\w+\(.*?\)", "", reason)
                return place, f"{shown}{behind}" if behind != reason else f"{shown}: {reason}"
        return None

    def _of_expression(self, text: str, columns: pa.Schema | None) -> tuple[Place, str] | None:
        """Return the smallest part of the failing expression that fails by itself."""
        best, whole = (0, False), None
        for key, made, found, is_condition in self._notes():
            text_of_made = str(made)
            if key or columns is None or text_of_made not in text:
                continue
            roots = made.meta.root_names()
            if not roots or not set(roots) <= set(columns.names):
                continue
            place, shown = self._shown(found)
            try:
                _ = Resolved(made, columns).schema
            except InvalidInputError as error:
                reason = error.message.removeprefix(f"{text_of_made}: ")
                reason = re.sub(r" for series with name `.*?`", "", reason)
                types = [f"{name} is {type_text(columns.field(name).type)}" for name in roots]
                return place, f"{shown}: {reason}; {', '.join(dict.fromkeys(types))}"
            if (rank := (len(text_of_made), is_condition)) > best:
                best, whole = rank, (place, text.replace(text_of_made, shown))
        return whole

    def _of_name(self, text: str) -> tuple[Place, str] | None:
        """Return the first place, from this statement on, of a name that the text quotes."""
        begin = 0
        if self.source.file == self.file:
            lines = self.source.text.splitlines(keepends=True)
            begin = sum(map(len, lines[: max(0, self.line - 1)]))
        for name in re.findall(r"'(\w+)'", text):
            found = re.compile(rf"\b{re.escape(name)}\b").search(self.source.text, begin)
            if found is not None:
                return Place(*found.span()), text
        return None
