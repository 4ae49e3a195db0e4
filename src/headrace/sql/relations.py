"""Relations, which queries of an SQL app are compiled to, and what names of columns mean.

A relation is data: ``queries`` and ``joins`` make them, ``app`` builds the stream of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.graph.aggregates import Aggregate
from headrace.graph.operators import Site
from headrace.graph.rankings import Order
from headrace.graph.windows import Window
from headrace.queries.text import SqlText, near, place_of
from headrace.sql.statements import SIDE_OUTPUT, InputTable

Span = tuple[int, int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Relation:
    """Rows with columns in an order.

    ``times`` has the columns that follow the event time of their row: by how many milliseconds
    they are ahead of it, at least and at most. ``is_total``: rows are results of aggregates.
    ``is_changing``: later rows take the place of earlier ones; with a ``key``, those that have the
    same. ``has_deletes``: the stream of it has a column ``is_deleted`` beside these; a row with it
    has nothing but its key, and takes the earlier one away.
    """

    columns: tuple[str, ...]
    times: Mapping[str, Span] = field(default_factory=dict)
    is_total: bool = False
    is_changing: bool = False
    key: tuple[str, ...] = ()
    has_deletes: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Reading(Relation):
    """The rows of an input table."""

    table: InputTable
    site: Site


INNER, LEFT, RIGHT, FULL = "inner", "left", "right", "full"
NOW, EVENT = "now", "event"


@dataclass(frozen=True, eq=False, kw_only=True)
class Joining(Relation):
    """A join of two relations by their keys.

    ``left_made`` are columns of the key that are computed for it, ``right_made`` all columns of the
    right side that it needs, and ``added`` those that are joined to the left. ``window`` or the
    bounds say how near rows of streams are; ``as_of`` which row of a table it is. ``where`` is the
    rest of the condition, and ``after`` makes the columns of the result.
    """

    name: str
    site: Site
    left: Relation
    right: Relation
    left_made: tuple[pl.Expr, ...]
    left_keys: tuple[str, ...]
    right_made: tuple[pl.Expr, ...]
    right_keys: tuple[str, ...]
    added: Mapping[str, str]
    how: str
    before_ms: int = 0
    after_ms: int = 0
    window: Window | None = None
    grace_ms: int = 0
    as_of: str | None = None
    where: pl.Expr | None = None
    after: tuple[pl.Expr, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class TableJoining(Relation):
    """A join of two tables by all of their keys; its rows are how the result changes.

    ``added`` are columns of the right side that are joined to ``kept``, those of the left one. Of
    these ``made`` makes the columns of the result.
    """

    name: str
    site: Site
    left: Relation
    right: Relation
    right_keys: tuple[str, ...]
    kept: tuple[str, ...]
    added: Mapping[str, str]
    how: str
    made: Mapping[str, pl.Expr]


@dataclass(frozen=True)
class TopK:
    """``topk``: the key to rank within, the column to rank, that of its score, and how many."""

    keys: tuple[str, ...]
    item: str
    name: str
    count: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Selection(Relation):
    """A ``SELECT``: ``before`` are the columns that are grouped, ``after`` those of the result.

    Without ``window``, aggregates are running totals; without these, rows are made one by one, or
    of each element of the array that the column ``unnested`` is. State is stored under ``name``.
    """

    name: str
    site: Site
    origin: Relation
    where: pl.Expr | None = None
    before: tuple[pl.Expr, ...] = ()
    keys: tuple[str, ...] = ()
    window: Window | None = None
    every_ms: int | None = None
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    having: pl.Expr | None = None
    after: tuple[pl.Expr, ...] = ()
    unnested: str | None = None
    top_k: TopK | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Merging(Relation):
    """``UNION ALL``: the rows of all parts, with the names of columns that each has here."""

    name: str
    site: Site
    parts: tuple[tuple[Relation, tuple[str, ...]], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Limiting(Relation):
    """``ORDER BY ... LIMIT``: the first rows of each window, in their order.

    ``kept`` are columns of the origin, by some of which it is ordered; ``columns`` are some of
    these, and the bounds of the window that are not among them.
    """

    name: str
    site: Site
    origin: Relation
    kept: tuple[str, ...]
    order: tuple[Order, ...]
    count: int
    window: Window


LATE_COLUMN = "_late."
"""What the columns begin with that late rows had before the query."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Late(Relation):
    """The rows that came too late for a window, as they were before the query."""

    of: Selection


def late_of(rows: Relation) -> Late | None:
    """Return the late rows of a query, if it has them go to a stream of their own."""
    if not isinstance(rows, Selection) or rows.window is None or rows.window.late != SIDE_OUTPUT:
        return None
    return Late(columns=rows.origin.columns, of=rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class Served(Relation):
    """The rows of a table whose state is on a server, which only queries over tables read."""

    of: Selection
    address: str


@dataclass(frozen=True)
class Scope:
    """What names of columns mean in a query.

    ``tables`` has for each table its columns, and what these are called in the rows; ``shared``
    has the columns that ``USING`` makes one of two.
    """

    source: SqlText
    tables: Mapping[str, Mapping[str, str]]
    shared: Mapping[str, str] = field(default_factory=dict)

    def named(self, name: str) -> list[str]:
        """Return what a column without a table can mean, in the order of the tables."""
        if name in self.shared:
            return [self.shared[name]]
        exact = [names[name] for names in self.tables.values() if name in names]
        if exact:
            return list(dict.fromkeys(exact))
        folded = [
            own
            for names in self.tables.values()
            for known, own in names.items()
            if known.lower() == name.lower()
        ]
        return list(dict.fromkeys(folded))

    def resolved(self, tree: Any, aliases: Mapping[str, Any] | None = None) -> Any:
        """Return a tree whose columns have the names that they have in the rows.

        Args:
            tree: of an expression.
            aliases: names of results, which may be used where no column has them.

        Raises:
            InvalidInputError: a column is of no table, or may be of several.
        """
        if tree.find(exp.Select) is not None:
            return tree  # the compiler shows that it cannot be here

        def own(node: Any) -> Any:
            if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
                return node
            head, *inner = node.parts
            if len(node.parts) > 1 and head.name in self.tables:
                head, *inner = inner
                found = self._of(node, node.parts[0].name, head.name)
            else:
                shown = self.named(head.name)
                if len(shown) > 1 and head.name not in (aliases or {}):
                    of = [name for name, names in self.tables.items() if head.name in names]
                    raise self.source.mistake(
                        f"column {head.name!r} is in {' and '.join(map(repr, of))}: write "
                        f"{of[0]}.{head.name}",
                        place_of(node),
                    )
                if not shown and inner:
                    known = {*self.tables, *(c for names in self.tables.values() for c in names)}
                    raise self.source.mistake(
                        f"no table {head.name!r} here; {near(head.name, known)}", place_of(node)
                    )
                found = shown[0] if len(shown) == 1 else head.name
            return _column(node, head, found, inner)

        return tree.transform(own)

    def _of(self, node: Any, table: str, column: str) -> str:
        names = self.tables[table]
        folded = {known.lower(): own for known, own in names.items()}
        found = names.get(column) or folded.get(column.lower())
        if found is None:
            raise self.source.mistake(
                f"no column {column!r} in {table!r}; {near(column, names)}", place_of(node)
            )
        return found


def _column(node: Any, head: Any, name: str, inner: list[Any]) -> Any:
    """Return a column of the rows, or the field of one that is a struct."""
    own = exp.Identifier(this=name, quoted=True)
    own.meta.update(head.meta)
    if starts := [part.meta["start"] for part in node.parts if "start" in part.meta]:
        own.meta["start"] = min(starts)
    if not inner:
        return exp.Column(this=own)
    found: Any = exp.Column(this=inner[0].copy(), table=own)
    for part in inner[1:]:
        found = exp.StructExtract(this=found, expression=exp.Literal.string(part.name))
    return found
