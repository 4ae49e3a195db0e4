"""The condition of a join in an SQL app, read as keys, bounds of event time, and what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from headrace.sql.moments import UNITS
from headrace.sql.relations import LEFT, RIGHT, Relation, Scope


@dataclass
class Bounds:
    """How much later the right row of a pair may be, in milliseconds, at least and at most.

    ``is_exact``: these say all; otherwise conditions on the columns remain.
    """

    least: int | None = None
    most: int | None = None
    is_exact: bool = True

    def at_least(self, value: int) -> None:
        """Take a bound from below."""
        self.least = value if self.least is None else max(value, self.least)

    def at_most(self, value: int) -> None:
        """Take a bound from above."""
        self.most = value if self.most is None else min(value, self.most)


class Condition:
    """The parts of a join's condition, sorted.

    ``keys`` are pairs of expressions of either side, ``timed`` the parts that say how near rows
    are in event time, which ``bounds`` sums up, ``rest`` all others.
    """

    def __init__(
        self,
        rows: Relation,
        other: Relation,
        scope: Scope,
        alias: str,
        parts: Sequence[Any],
    ) -> None:
        self._rows, self.scope, self.names = rows, scope, scope.tables[alias]
        self._times = {self.names[name]: span for name, span in other.times.items()}
        self.keys: list[tuple[Any, Any]] = []
        self._equal_times: list[tuple[Any, Any]] = []
        self.timed: list[Any] = []
        self.rest: list[Any] = []
        self.bounds = Bounds()
        for part in parts:
            self._take(part.unnest())

    def old(self, tree: Any) -> str | None:
        """Return the name in the right table of a plain column."""
        olds = {new: old for old, new in self.names.items()}
        return olds.get(tree.name) if isinstance(tree, exp.Column) and not tree.table else None

    def take_equal_times(self) -> None:
        """Compare by event times where there is no other key."""
        self.keys += self._equal_times

    def is_as_of(self, part: Any) -> bool:
        """Say whether a part is that the row of the table is not later than that of the stream."""
        if not isinstance(part, exp.GTE | exp.LTE):
            return False
        one, other = (part.this, part.expression)
        if isinstance(part, exp.LTE):
            one, other = other, one
        mine, theirs = _offset(one), _offset(other)
        return (
            mine is not None
            and theirs is not None
            and (mine[1], theirs[1]) == (0, 0)
            and self._rows.times.get(mine[0]) == (0, 0)
            and self._times.get(theirs[0]) == (0, 0)
        )

    def unbounded(self) -> str:
        """Say how rows can be near."""
        shown = {
            own: f"{table}.{name}"
            for table, names in self.scope.tables.items()
            for name, own in names.items()
        }
        mine, theirs = (
            next(map(shown.get, times), None) for times in (self._rows.times, self._times)
        )
        how = "or give both sides the same window, such as [5 minutes]"
        if mine is None or theirs is None:
            side = "left" if mine is None else "right"
            return (
                "rows of a join must be near in event time, and the "
                f"{side} side has no column with it: select it there, {how}"
            )
        return (
            f"rows of a join must be near in event time: add AND {theirs} BETWEEN {mine} - "
            f"INTERVAL 10 MINUTES AND {mine} + INTERVAL 10 MINUTES, {how}"
        )

    def _side(self, tree: Any) -> str | None:
        """Return the side that all columns of an expression are of."""
        found = {column.table or column.name for column in tree.find_all(exp.Column)}
        if found and found <= set(self._rows.columns):
            return LEFT
        return RIGHT if found and found <= set(self.names.values()) else None

    def _take(self, part: Any) -> None:
        bounds = list(self._bounds_of(part))
        if bounds:
            for column, value, is_least in bounds:
                self._bound(column, value, is_least=is_least)
            self.timed.append(part)
        if isinstance(part, exp.EQ):
            sides = self._side(part.this), self._side(part.expression)
            pair = (part.this, part.expression)
            if sides == (RIGHT, LEFT):
                pair, sides = (part.expression, part.this), (LEFT, RIGHT)
            if sides == (LEFT, RIGHT):
                (self._equal_times if bounds else self.keys).append(pair)
                return
        if not bounds:
            self.rest.append(part)

    def _bound(self, columns: tuple[str, str], value: int, *, is_least: bool) -> None:
        """Take a bound of how much a column of the right side is more than one of the left."""
        mine, theirs = self._rows.times[columns[0]], self._times[columns[1]]
        if is_least:
            self.bounds.at_least(value - theirs[1] + mine[0])
        else:
            self.bounds.at_most(value - theirs[0] + mine[1])
        self.bounds.is_exact &= mine[0] == mine[1] and theirs[0] == theirs[1]

    def _bounds_of(self, part: Any) -> Iterator[tuple[tuple[str, str], int, bool]]:
        """Yield the columns, a bound, and whether it is the least, that a comparison is."""
        if isinstance(part, exp.Between):
            yield from self._compared(part.this, part.args["low"], exp.GTE)
            yield from self._compared(part.this, part.args["high"], exp.LTE)
        elif isinstance(part, exp.EQ):
            yield from self._compared(part.this, part.expression, exp.GTE)
            yield from self._compared(part.this, part.expression, exp.LTE)
        elif isinstance(part, exp.GTE | exp.GT | exp.LTE | exp.LT):
            yield from self._compared(part.this, part.expression, type(part))

    def _compared(
        self, one: Any, other: Any, kind: type
    ) -> Iterator[tuple[tuple[str, str], int, bool]]:
        first, second = _offset(one), _offset(other)
        if first is None or second is None:
            return
        is_more = kind in (exp.GTE, exp.GT)
        if first[0] in self._rows.times and second[0] in self._times:
            first, second, is_more = second, first, not is_more
        if first[0] not in self._times or second[0] not in self._rows.times:
            return
        strict = 1 if kind in (exp.GT, exp.LT) else 0
        value = second[1] - first[1] + (strict if is_more else -strict)
        yield (second[0], first[0]), value, is_more


def _offset(tree: Any) -> tuple[str, int] | None:
    """Return a column and what is added to it, in milliseconds; ``None``: it is something else."""
    tree = tree.unnest()
    if isinstance(tree, exp.Column):
        return None if tree.table else (tree.name, 0)
    if not isinstance(tree, exp.Add | exp.Sub):
        return None
    column, by = _offset(tree.this), tree.expression.unnest()
    if column is None:
        return None
    if isinstance(by, exp.Interval):
        unit = UNITS.get(str(by.args.get("unit") or "").upper())
        if unit is None or not isinstance(by.this, exp.Literal):
            return None
        value = round(float(by.this.this) * unit) / 1000
    elif isinstance(by, exp.Literal) and not by.is_string:
        value = float(by.this)
    else:
        return None
    if value != round(value):
        return None
    return column[0], column[1] + (round(value) if isinstance(tree, exp.Add) else -round(value))
