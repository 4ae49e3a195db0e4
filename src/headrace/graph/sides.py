"""``to``: how a function sends a message to a side stream instead of on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.graph.arguments import attempt, shown
from headrace.graph.ledger import name_mistake
from headrace.graph.types import to_schema

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
    """Send a message to a side stream: a function of ``map`` or ``flat_map`` returns this.

    The operator declares the side with ``sides=``, and its stream has it as ``.side(name)``.

    Args:
        side: its name.
        message: in any form that a message may have, with the columns of the side.

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
