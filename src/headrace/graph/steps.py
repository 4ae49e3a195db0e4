"""``Steps``: what all methods of a stream share, which add one operator to the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa

from headrace.graph.arguments import Keys, with_on_error
from headrace.graph.ledger import Ledger
from headrace.graph.message_classes import with_takes
from headrace.graph.operators import (
    FAIL,
    FlatMapMessages,
    MapMessages,
    Operator,
    Port,
    Process,
    Site,
)
from headrace.graph.sides import checked_sides

# State is kept under the names of these operators. A derived one begins with the input or the
# stateful operator before it, so that what is put in between renames no state.
_STATEFUL = ("aggregate", "table", "window", "process", "deduplicate", "in_order", "join", "monoid")
BY = "by_"


class Steps:
    """What leaves one operator.

    Args:
        ledger: of the graph.
        name: of the operator.
        keys: columns that it is partitioned by, if it is.
        anchor: what the names of stateful operators after it begin with.
    """

    def __init__(self, ledger: Ledger, name: str, keys: Keys, anchor: str) -> None:
        self._ledger = ledger
        self.name = name
        self.keys = keys
        self._anchor = anchor
        self._sides: dict[str, Self] = {}

    def _add(
        self,
        kind: str,
        name: str | None,
        make: Callable[[str, list[str]], Operator],
        keys: Keys,
        on_error: str = FAIL,
        sides: Any = None,
    ) -> Self:
        wrong: list[str] = []
        holds_state = kind in _STATEFUL or kind.startswith(BY)
        before = self._anchor if holds_state else self.name
        chosen = self._ledger.name(wrong, name, f"{before}.{kind}")
        anchor = chosen if holds_state else self._anchor
        operator = with_on_error(wrong, with_takes(wrong, make(chosen, wrong)), on_error)
        declared = checked_sides(wrong, sides)
        if isinstance(operator, MapMessages | FlatMapMessages | Process):
            operator = replace(operator, sides=tuple(declared.items()))
        elif sides is not None:
            wrong.append("sides= is for functions: an expression makes one message of each")
        self._ledger.add(operator, wrong)
        made = type(self)(self._ledger, chosen, keys, anchor)
        sides_of, port = made._sides, made._port  # noqa: SLF001 - of the same class
        sides_of |= {side: port(side, operator.site, own) for side, own in declared.items()}
        return made

    def _port(self, port: str, site: Site, columns: pa.Schema | None = None) -> Self:
        """Add a stream that this one's operator has beside its main one."""
        wrong: list[str] = []
        chosen = self._ledger.name(wrong, None, f"{self.name}.{port}")
        self._ledger.add(Port(chosen, (self.name,), site, port=port, returns=columns), wrong)
        return type(self)(self._ledger, chosen, self.keys, f"{self._anchor}.{port}")
