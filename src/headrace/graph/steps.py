"""``Steps``: what all methods of a stream share, which add one operator to the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from headrace.graph.arguments import Keys, with_on_error
from headrace.graph.ledger import Ledger
from headrace.graph.operators import FAIL, Operator

# State is kept under the names of these operators. A derived one begins with the input or the
# stateful operator before it, so that what is put in between renames no state.
_STATEFUL = ("aggregate", "window", "process")
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

    def _add(
        self,
        kind: str,
        name: str | None,
        make: Callable[[str, list[str]], Operator],
        keys: Keys,
        on_error: str = FAIL,
    ) -> Self:
        wrong: list[str] = []
        holds_state = kind in _STATEFUL or kind.startswith(BY)
        before = self._anchor if holds_state else self.name
        chosen = self._ledger.name(wrong, name, f"{before}.{kind}")
        anchor = chosen if holds_state else self._anchor
        operator = with_on_error(wrong, make(chosen, wrong), on_error)
        self._ledger.add(operator, wrong)
        return type(self)(self._ledger, chosen, keys, anchor)
