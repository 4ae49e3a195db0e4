"""The first rows of each key: ``QUALIFY ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) <= 10``.

A query that filters the numbers of a subquery with ``WHERE`` means the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.errors import InvalidInputError
from headrace.graph.builder import Stream
from headrace.graph.operators import Site
from headrace.graph.rankings import FirstRows, Order
from headrace.graph.windows import BOUNDS, Window
from headrace.queries.text import SqlText, place_of
from headrace.sql.expressions import Compiler, has_aggregate, text_of
from headrace.sql.functions import Functions
from headrace.sql.relations import Relation

BEST, NUMBER = "_best", "_number"
AT = "at"
"""The column of totals that says when they were so."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranking(Relation):
    """The first rows of each key, by window or so far; ``after`` makes columns of them.

    ``before`` are the key and all columns that ``best`` keeps. State is stored under ``name``.
    """

    name: str
    site: Site
    origin: Relation
    where: pl.Expr | None
    before: tuple[pl.Expr, ...]
    keys: tuple[str, ...]
    best: FirstRows
    window: Window | None
    every_ms: int | None
    heads: tuple[str, ...]
    after: tuple[pl.Expr, ...]


def with_qualify(select: Any) -> Any:
    """Return a query that filters the row numbers of its subquery as one with ``QUALIFY``.

    If it does no more than that and choose columns, it is the subquery itself.
    """
    origin = _origin(select)
    where = select.args.get("where")
    inner = origin.this if isinstance(origin, exp.Subquery) else None
    if where is None or not isinstance(inner, exp.Select) or inner.args.get("qualify"):
        return select
    made = {item.alias: item for item in inner.expressions if isinstance(item, exp.Alias)}
    numbers = {name: item.this for name, item in made.items() if isinstance(item.this, exp.Window)}
    parts = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    limit = next((one for one in parts if _is_limit(one.unnest(), numbers)), None)
    if limit is None:
        return select
    others = [one.copy() for one in parts if one is not limit]
    qualify = exp.Qualify(
        this=limit.unnest().transform(
            lambda node: numbers[node.name].copy() if isinstance(node, exp.Column) else node
        )
    )
    used = {part for part, found in select.args.items() if found}
    if not others and used <= {"expressions", "where", "from_", "from", "kind"}:
        items = _chosen(select, inner, made)
        if items is not None:
            whole = inner.copy()
            whole.set("expressions", items)
            whole.set("qualify", qualify)
            return whole
    outer = select.copy()
    outer.set("where", exp.Where(this=exp.and_(*others)) if others else None)
    _origin(outer).this.set("qualify", qualify)
    return outer


def _origin(select: Any) -> Any:
    found = select.args.get("from_") or select.args.get("from")
    return None if found is None else found.this


def _is_limit(node: Any, numbers: Mapping[str, Any]) -> bool:
    if not isinstance(node, exp.LTE | exp.LT | exp.EQ | exp.GTE | exp.GT):
        return False
    return any(
        isinstance(one, exp.Column) and one.name in numbers for one in (node.this, node.expression)
    )


def _chosen(select: Any, inner: Any, made: Mapping[str, Any]) -> list[Any] | None:
    """Return what a subquery selects, if the query around it chooses columns only."""
    found = []
    for item in select.expressions:
        if isinstance(item, exp.Star) and select.expressions == [item] and item == exp.Star():
            return [one.copy() for one in inner.expressions]
        tree = item.this if isinstance(item, exp.Alias) else item
        if not _is_plain(tree) or isinstance(tree.this, exp.Star):
            return None
        own = made[tree.name].this if tree.name in made else tree
        found.append(exp.alias_(own.copy(), item.alias_or_name, quoted=True))
    return found


def is_ranked(select: Any) -> bool:
    """Say whether a query numbers its rows."""
    if select.args.get("qualify") is not None:
        return True
    return any(item.find(exp.Window) is not None for item in select.expressions)


@dataclass(frozen=True)
class RankingCompiler:
    """Compiles a query that keeps the first rows of each key.

    Args:
        source: the text.
        functions: of the user, by name.
    """

    source: SqlText
    functions: Functions

    def __call__(
        self,
        select: Any,
        items: Sequence[tuple[str, Any]],
        plain: Compiler,
        common: Mapping[str, Any],
        when: Window | int | None,
    ) -> Ranking:
        """Return the relation.

        Args:
            select: the query, with the names that columns have in the rows.
            items: names and trees of what is selected.
            plain: compiles expressions of the rows that are read.
            common: name, site, origin and filter.
            when: the window; or how often what changed is sent, of all rows so far.

        Raises:
            InvalidInputError: it cannot be computed; shows where.
        """
        for part in ("group", "having", "distinct", "order", "limit"):
            if (found := select.args.get(part)) is not None:
                raise self._mistake(found, f"{part.upper()} has no row numbers: use a subquery")
        for _, node in items:
            if has_aggregate(node):
                raise self._mistake(node, "an aggregate has no row number: use a subquery")
        call, count = self._limit(select, dict(items))
        others = [
            node for _, tree in items for node in tree.find_all(exp.Window) if node is not call
        ]
        for node in others:
            if text_of(node) != text_of(call):
                raise self._mistake(node, "a query has one ROW_NUMBER()")
        keys = self._named(call.args.get("partition_by") or [], "_key")
        order = self._order(call)
        used = dict.fromkeys(
            column.name
            for _, tree in items
            for column in _with_number(tree).find_all(exp.Column)
            if column.name in plain.columns
        )
        before = {name: plain(tree).alias(name) for name, tree in keys}
        before |= {one.column: plain(tree).alias(one.column) for one, tree in order}
        before |= {name: pl.col(name) for name in used}
        kept = tuple(name for name in used if name not in dict(keys))
        kept = tuple(dict.fromkeys([*(one.column for one, _ in order), *kept]))
        best = FirstRows(kept, tuple(one for one, _ in order), count)
        window = when if isinstance(when, Window) else None
        every_ms = when if isinstance(when, int) else None
        heads = BOUNDS if window is not None else () if every_ms is None else (AT,)
        rows = pl.col(BEST).struct.field
        known = {name: pl.col(name) for name in heads}
        known |= {name: rows(name) for name in best.columns() if name not in BOUNDS or not heads}
        known |= {name: pl.col(name) for name, _ in keys}
        after = Compiler(self.source, known | {NUMBER: rows(NUMBER)}, functions=self.functions)
        made = {name: after(_with_number(tree)).alias(name) for name, tree in items}
        shown = {text_of(tree): name for name, tree in items}
        own = [shown.get(text_of(tree)) for _, tree in keys]
        if count > 1:
            own.append(shown.get(text_of(call)))
        if window is None and None in own:
            what = "the row number and all of PARTITION BY" if count > 1 else "all of PARTITION BY"
            raise self._mistake(
                call,
                f"without a window, later rows replace earlier ones by their key: select {what}",
            )
        for head in heads:
            made.setdefault(head, pl.col(head))
        return Ranking(
            **common,
            before=tuple(before.values()),
            keys=tuple(name for name, _ in keys),
            best=best,
            window=window,
            every_ms=every_ms,
            heads=heads,
            after=tuple(made.values()),
            columns=tuple(made),
            is_total=True,
            is_changing=window is None,
            key=() if window is not None else tuple(str(name) for name in own),
        )

    def _mistake(self, node: Any, message: str) -> InvalidInputError:
        return self.source.mistake(message, place_of(node))

    def _limit(self, select: Any, items: Mapping[str, Any]) -> tuple[Any, int]:
        """Return the call that numbers rows, and how many are kept."""
        how = "ROW_NUMBER() is known to keep the first rows: QUALIFY ROW_NUMBER() OVER (...) <= 10"
        qualify = select.args.get("qualify")
        if qualify is None:
            found = next(tree for tree in items.values() if tree.find(exp.Window))
            raise self._mistake(found, how)
        node = qualify.this.unnest()
        if not isinstance(node, exp.LTE | exp.LT | exp.EQ | exp.GTE | exp.GT):
            raise self._mistake(node, how)
        call, limit = node.this, node.expression
        kind: Any = type(node)
        if isinstance(call, exp.Literal):
            flipped = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.LT: exp.GT}
            call, limit, kind = limit, call, flipped.get(kind, kind)
        if isinstance(call, exp.Column):
            call = items.get(call.name, call)
        if not isinstance(call, exp.Window) or not isinstance(call.this, exp.RowNumber):
            raise self._mistake(node, how)
        if call.args.get("order") is None or call.args.get("spec") is not None:
            raise self._mistake(call, "ROW_NUMBER() needs ORDER BY in its OVER, and no frame")
        if not isinstance(limit, exp.Literal) or limit.is_string or not limit.this.isdigit():
            raise self._mistake(limit, "expected how many rows to keep, such as 10")
        count = int(limit.this) - (kind is exp.LT)
        if kind in (exp.GTE, exp.GT) or count < 1 or (kind is exp.EQ and count > 1):
            raise self._mistake(node, how)
        return call, count

    def _named(self, trees: Sequence[Any], begin: str) -> list[tuple[str, Any]]:
        """Return names of expressions: columns keep theirs."""
        found = [
            (tree.name if _is_plain(tree) else f"{begin}{number}", tree)
            for number, tree in enumerate(trees)
        ]
        return [(name, tree) for name, tree in dict(found).items() if name not in BOUNDS]

    def _order(self, call: Any) -> list[tuple[Order, Any]]:
        ordered = call.args["order"].expressions
        return [
            (
                Order(
                    one.this.name if _is_plain(one.this) else f"_by{number}",
                    bool(one.args.get("desc")),
                    bool(one.args.get("nulls_first")),
                ),
                one.this,
            )
            for number, one in enumerate(ordered)
        ]


def _is_plain(tree: Any) -> bool:
    return isinstance(tree, exp.Column) and not tree.table


def _with_number(tree: Any) -> Any:
    """Return a tree that reads the number of a row where it calls for it."""
    return tree.transform(lambda node: exp.column(NUMBER) if isinstance(node, exp.Window) else node)


def ranked(stream: Stream, query: Ranking) -> Stream:
    """Build the stream of the first rows."""
    if query.where is not None:
        stream = stream.filter(query.where)
    stream = stream.select(*query.before)
    stream = stream.partition_by(*query.keys) if query.keys else stream.gather()
    best = {BEST: query.best}
    if query.window is not None:
        stream = stream.window(query.window, best, name=query.name)
    else:
        every = None if query.every_ms is None else f"{query.every_ms}ms"
        stream = stream.aggregate(best, every=every, name=query.name)
    if query.best.k == 1:
        row, number = pl.col(BEST).list.first(), pl.lit(1, pl.Int64)
        fields = [row.struct.field(name) for name in query.best.columns()]
        made = pl.struct(*fields, number.alias(NUMBER)).alias(BEST)
        return stream.select(made, *query.keys, *query.heads).select(*query.after)
    fields = [pl.element().struct.field(name) for name in query.best.columns()]
    number = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
    best_rows = pl.col(BEST).list.eval(pl.struct(*fields, number.alias(NUMBER)))
    rows = stream.flat_map(best_rows.alias(BEST), *query.keys, *query.heads)
    return rows.select(*query.after)
