"""Operators that part streams or bring them together: ``split``, ``side``, ``merge``, ``union``.

How the streams they make are held is in ``branches``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import polars as pl

from headrace.graph.arguments import (
    Keys,
    attempt,
    checked_function,
    checked_uses,
    is_function,
    shown,
)
from headrace.graph.branches import DEFAULT, Branches
from headrace.graph.message_classes import taken_class
from headrace.graph.operators import FAIL, Branch, Merge, Operator, Split, Union
from headrace.graph.signatures import name_of, returns_nothing
from headrace.graph.sites import user_names, user_site
from headrace.graph.steps import Steps


class RouteSteps(Steps):
    """The methods of a stream that say where rows go."""

    def split(
        self,
        *,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        **branches: Callable[[Any], Any] | pl.Expr,
    ) -> Branches[Self]:
        """Send each row to the first branch whose condition is true for it.

        Conditions are asked in the order given, and only of rows that no branch before took.
        Rows that none takes are in the branch ``default``; where nobody reads that, they are
        dropped, and counted as ``unmatched``.

        Args:
            uses: the columns that functions read; their messages have only these. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a row on which a condition raises.
            **branches: by name, a function of a message or a Polars expression; null is not true.

        Returns:
            The streams: ``branches["name"]``, each with the columns of this one.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not branches:
                wrong.append("split has no branches; add one such as cheap=hr.col('price') < 10")
            if DEFAULT in branches:
                wrong.append(f"branch {DEFAULT!r} has the rows that no other takes: rename it")
            made = tuple(_branch(wrong, *branch) for branch in branches.items())
            if uses is not None and not any(branch.function for branch in made):
                wrong.append("uses= is for functions; expressions tell their own columns")
            return Split(chosen, (self.name,), site, made, checked_uses(wrong, uses))

        whole = self._add("split", name, make, self.keys, on_error)
        port = whole._port  # noqa: SLF001 - of the same class
        named = {branch: port(branch, site) for branch in branches}

        unknown = partial(self._mistaken, whole.name)
        return Branches(named, lambda: port(DEFAULT, user_site()), unknown)

    def side(self, name: str) -> Self:
        """Return the stream of what the operator before sends to one of its sides.

        Args:
            name: declared by ``sides=`` of ``map``, ``flat_map`` or ``process``; ``late`` of a
                window with ``late="side_output"``: late records as they came.
        """
        if name in self._sides:
            return self._sides[name]
        sides = list(self._sides) or "none"
        text = f"has no side {name!r}; it declares {sides}: add it to sides={{...}}"
        return self._mistaken(self.name, text)

    def _mistaken(self, operator: str, text: str) -> Self:
        """Take a mistake about an operator, and go on with this stream."""
        self._ledger.report(f"operator {operator!r}", user_site(), text)
        return self

    def merge(self, *others: Self, name: str | None = None) -> Self:
        """Read several streams with the same columns as one.

        Args:
            *others: streams of the same graph, partitioned in the same way as this one.
            name: of the operator.
        """
        return self._one_of("merge", Merge, others, name)

    def union(self, *others: Self, name: str | None = None) -> Self:
        """Read several streams with different columns as one that has all of them.

        Columns are told by name. A column that a stream has not is null in its rows. Types may
        differ where one of them, or a wider one, holds all values of both: integers of different
        width, ``int32`` and ``float64``.

        Args:
            *others: streams of the same graph, partitioned in the same way as this one.
            name: of the operator.
        """
        return self._one_of("union", Union, others, name)

    def _one_of(
        self, kind: str, operator: type[Merge], others: Sequence[object], name: str | None
    ) -> Self:
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not others:
                wrong.append(f"{kind} takes at least one other stream")
            names = [self.name]
            for other in others:
                mistake = self._merge_mistake(kind, other, names)
                if mistake is None:
                    names.append(getattr(other, "name", ""))
                else:
                    wrong.append(mistake)
            return operator(chosen, tuple(names), site)

        return self._add(kind, name, make, self.keys)

    def _merge_mistake(self, kind: str, other: object, names: Sequence[str]) -> str | None:
        if not isinstance(other, Steps):
            return f"{kind} takes streams; found {shown(other)}"
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


def _branch(wrong: list[str], name: str, condition: object) -> Branch:
    if isinstance(condition, pl.Expr):
        return Branch(name, condition, text=str(condition))
    if not is_function(condition):
        wrong.append(f"branch {name!r} takes an expression or a function; found {shown(condition)}")
        return Branch(name)
    function: Any = condition
    names = user_names()
    own: list[str] = []
    checked_function(own, "split", function, None)
    if returns_nothing(function):
        own.append(f"function {name_of(function)} never returns a value: add a return")
    takes = attempt(own, lambda: taken_class(function, names), None)
    wrong += [f"branch {name!r}: {text}" for text in own]
    return Branch(name, function=function, text=f"with {name_of(function)}", takes=takes)
