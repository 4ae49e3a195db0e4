"""Operators that part streams and bring them together: ``merge``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from headrace.graph.arguments import Keys, shown
from headrace.graph.operators import Merge, Operator
from headrace.graph.sites import user_site
from headrace.graph.steps import Steps


class RouteSteps(Steps):
    """The methods of a stream that say where rows go."""

    def merge(self, *others: Self, name: str | None = None) -> Self:
        """Read several streams with the same columns as one.

        Args:
            *others: streams of the same graph, partitioned in the same way as this one.
            name: of the operator.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not others:
                wrong.append("merge takes at least one other stream")
            names = [self.name]
            for other in others:
                mistake = self._merge_mistake(other, names)
                if mistake is None:
                    names.append(other.name)
                else:
                    wrong.append(mistake)
            return Merge(chosen, tuple(names), site)

        return self._add("merge", name, make, self.keys)

    def _merge_mistake(self, other: object, names: Sequence[str]) -> str | None:
        if not isinstance(other, Steps):
            return f"merge takes streams; found {shown(other)}"
        if other._ledger is not self._ledger:  # noqa: SLF001 - of the same class
            return f"stream {other.name!r} belongs to another graph"
        if other.name in names:
            return f"stream {other.name!r} is merged with itself"
        if other.keys != self.keys:
            return (
                f"stream {self.name!r} is {_keyed(self.keys)}, but {other.name!r} is "
                f"{_keyed(other.keys)}; partition both by the same columns"
            )
        return None


def _keyed(keys: Keys) -> str:
    return "not partitioned" if keys is None else f"partitioned by {list(keys)}"
