"""The text of an app or query, places in it, and mistakes that show them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.errors import InvalidInputError


class Place(NamedTuple):
    """A piece of the text, by the offsets of its first character and of the one behind it."""

    begin: int
    end: int


@dataclass(frozen=True)
class SqlText:
    """The text of an app, and the name of its file, for messages.

    ``compiled`` has what parsed expressions were compiled to, inner ones first. By it, ``mistakes``
    locates an expression that does not fit the columns of a stream.
    """

    text: str
    file: str = "query"
    compiled: list[tuple[str, Any, Any]] = field(default_factory=list, compare=False, repr=False)

    def mistake(self, message: str, place: Place) -> InvalidInputError:
        """Return an error that shows a place in the text."""
        before = self.text[: place.begin]
        line = before.count("\n") + 1
        start = before.rfind("\n") + 1
        end = self.text.find("\n", place.begin)
        shown = self.text[start : len(self.text) if end < 0 else end]
        column = place.begin - start
        width = max(1, min(place.end, start + len(shown)) - place.begin)
        mark = "".join("\t" if letter == "\t" else " " for letter in shown[:column]) + "^" * width
        return InvalidInputError(f"{self.file}:{line}:{column + 1}: {message}\n  {shown}\n  {mark}")

    def line(self, place: Place) -> int:
        """Return the number of the line where a place begins, from 1 on."""
        return self.text.count("\n", 0, place.begin) + 1


@dataclass(frozen=True)
class Named:
    """A name in the text."""

    text: str
    place: Place


def place_of(node: Any) -> Place:
    """Return where a part of a query is in the text."""
    found = [n.meta for n in node.walk() if "start" in n.meta]
    if not found:
        parent = node.parent
        return Place(0, 1) if parent is None else place_of(parent)
    begin = min(int(meta["start"]) for meta in found)
    return Place(begin, max(int(meta["end"]) for meta in found) + 1)


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest of some names."""
    names = sorted(known)
    found = difflib.get_close_matches(name.lower(), names, 1)
    if found:
        return f"did you mean {found[0]!r}?"
    listed = ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:12])}, ..."
    return f"expected {listed}" if names else "there is none"
