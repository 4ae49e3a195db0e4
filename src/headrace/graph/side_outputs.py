"""Streams beside the main one: branches of ``split``, by name, and sides that ``to`` sends to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from headrace.graph.diagnostics import attempt, name_mistake, shown
from headrace.graph.types import to_schema

DEFAULT = "default"
"""The branch of rows that no other one takes."""

S = TypeVar("S")


class Branches(Mapping[str, S]):
    """The streams of ``split``, as ``branches["name"]``.

    ``branches["default"]`` has the rows that none of the conditions held for; where nobody asks
    for it they are dropped, and counted as ``unmatched``.

    Args:
        named: the branches with a condition.
        make_default: makes the stream of the others.
        report: takes the mistake of a name that is none, and returns a stream to continue with.
    """

    def __init__(
        self,
        named: Mapping[str, S],
        make_default: Callable[[], S],
        report: Callable[[str], S],
    ) -> None:
        self._streams = dict(named)
        self._make_default, self._report = make_default, report

    def __getitem__(self, name: str) -> S:
        """Return the stream of a branch."""
        if name == DEFAULT and name not in self._streams:
            self._streams[name] = self._make_default()
        if name not in self._streams:
            known = list(dict.fromkeys([*self._streams, DEFAULT]))
            return self._report(f"no branch {name!r}; its branches are {known}")
        return self._streams[name]

    def __contains__(self, name: object) -> bool:
        """Say whether there is such a branch."""
        return name == DEFAULT or name in self._streams

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the branches that were asked for, or have a condition."""
        return iter(self._streams)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._streams)


MAIN = ""
"""Stands for the side of what is sent on."""


class To:
    """A message on its way to a side; made by ``to``."""

    __slots__ = ("message", "side")

    def __init__(self, side: str, message: Any) -> None:
        self.side, self.message = side, message

    def __repr__(self) -> str:
        """Return what the user wrote."""
        return f"hr.to({self.side!r}, {self.message!r})"


def to(side: str, message: Any) -> Any:
    """Emit a message to a side output: return this from a function of ``map`` or ``flat_map``.

    The operator declares the side output with ``sides=``; read it with ``.side(name)`` of its
    stream.

    Args:
        side: its name.
        message: in any form of a message, with the columns of the side output.

    Example:
        >>> import headrace as hr
        >>> def parse(line):
        ...     user, _, page = line.text.partition(" ")
        ...     if not page:
        ...         return hr.to("broken", {"text": line.text})
        ...     return {"user": user, "page": page}
        >>> @hr.job("clicks")
        ... def clicks(g: hr.Graph) -> None:
        ...     lines = g.input("lines", schema={"text": str})
        ...     columns = {"user": str, "page": str}
        ...     parsed = lines.map(parse, returns=columns, sides={"broken": {"text": str}})
        ...     parsed.send_to(g.output("clicks"))
        ...     parsed.side("broken").send_to(g.output("broken"))
        >>> [operator.name for operator in clicks.build().operators][:3]
        ['lines', 'lines.map', 'lines.map.broken']
    """
    return To(side, message)


def checked_sides(wrong: list[str], sides: Any) -> dict[str, pa.Schema]:
    """Check the sides that an operator declares, and return the columns of each."""
    if sides is None:
        return {}
    if not isinstance(sides, Mapping):
        wrong.append(f'sides= takes a dict such as {{"late": Late}}; found {shown(sides)}')
        return {}
    found: dict[str, pa.Schema] = {}
    for name, columns in sides.items():
        own: list[str] = []
        schema = attempt(own, partial(to_schema, columns), pa.schema([]))
        if (mistake := name_mistake(name, "a side")) is not None:
            own.append(mistake)
        wrong += [f"side {name!r}: {text}" for text in own]
        if not own and not len(schema):
            wrong.append(f"side {name!r} has no columns; give it a record class or a dict")
        found[str(name)] = schema
    return found
