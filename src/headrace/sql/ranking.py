"""Rankings in SQL apps: ``topk``, and ``ORDER BY ... LIMIT`` of each window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from headrace.graph import agg
from headrace.graph.rankings import Order
from headrace.graph.windows import BOUNDS, Hopping, Session, Sliding, Tumbling, Window, tumbling
from headrace.queries.text import SqlText, near, place_of
from headrace.sql.expressions import Compiler, has_aggregate, is_aggregate, text_of
from headrace.sql.relations import Limiting, Scope, Selection, Span, TopK

TOP_K = 10
"""How many rows ``topk`` keeps where neither the query nor the app says it."""

RANKED, TOP = "_score", "_top"
HIDDEN = "_order"
"""What names of columns begin with by which rows are ordered, and which are not selected."""

Items = Sequence[tuple[str, Any]]


def order_of(
    source: SqlText, select: exp.Select, items: Items, scope: Scope
) -> tuple[int, tuple[Order, ...], list[tuple[str, Any]]]:
    """Return how many rows a query keeps, their order, and what it orders by beside its columns.

    Raises:
        InvalidInputError: it does not say both, or not plainly; shows where.
    """
    order, limit = select.args.get("order"), select.args.get("limit")
    if order is None:
        raise source.mistake(
            "LIMIT needs ORDER BY, which says what the first rows are", place_of(limit)
        )
    if limit is None:
        raise source.mistake(
            "rows of a stream have no end to sort them at: ORDER BY needs LIMIT, and a window",
            place_of(order),
        )
    number = limit.expression
    if not isinstance(number, exp.Literal) or not number.this.isdigit() or int(number.this) < 1:
        raise source.mistake("LIMIT takes a whole number of at least 1", place_of(limit))
    made, hidden = [], list[tuple[str, Any]]()
    aliases = dict(items)
    for one in order.expressions:
        tree = one.this
        if isinstance(tree, exp.Literal) and not tree.is_string:
            if not 1 <= int(tree.this) <= len(items):
                raise source.mistake(f"there is no column {tree.this}", place_of(one))
            name = items[int(tree.this) - 1][0]
        elif isinstance(tree, exp.Column) and not tree.table and tree.name in aliases:
            name = tree.name
        else:
            for column in tree.find_all(exp.Column):
                if len(column.parts) == 1 and not scope.named(column.name):
                    known = {*aliases, *(name for own in scope.tables.values() for name in own)}
                    raise source.mistake(
                        f"no column {column.name!r}; {near(column.name, known)}", place_of(column)
                    )
            tree = scope.resolved(tree, aliases)
            shown = [n for n, node in items if text_of(node) == text_of(tree)]
            name = shown[0] if shown else f"{HIDDEN}{len(hidden)}"
            if not shown:
                hidden.append((name, tree))
        made.append(Order(name, bool(one.args.get("desc")), bool(one.args.get("nulls_first"))))
    return int(number.this), tuple(made), hidden


def first_rows(
    rows: Selection, window: Window, order: tuple[Order, ...], count: int, shown: Sequence[str]
) -> Limiting:
    """Return the first rows of each window: ``shown`` are the columns that stay.

    Results of a window have the event time of its last moment, so those of one window are together
    in a window of 1 ms.
    """
    is_grouped = rows.window is not None
    columns = (*shown, *(bound for bound in BOUNDS if bound not in shown))
    return Limiting(
        name=f"{rows.name}.first" if is_grouped else rows.name,
        site=rows.site,
        origin=rows,
        kept=rows.columns,
        order=order,
        count=count,
        window=tumbling("1ms") if is_grouped else window,
        columns=columns,
        times={name: span for name, span in rows.times.items() if name in columns}
        if is_grouped
        else bound_times(window),
        is_total=True,
    )


def top_k(
    select: exp.Select,
    window: Window,
    plain: Compiler,
    items: Sequence[tuple[str, Any]],
    ranked: tuple[str, Any],
    common: Selection,
    count: int,
) -> Selection:
    """Rank what is selected before ``topk(score)`` by the highest score that it had.

    The last plain column is what is ranked; those before it are the key that it is ranked
    within.
    """
    source = plain.source
    name, call = ranked
    place = place_of(call)
    others = [(n, node) for n, node in items if node is not call]
    if not others or any(has_aggregate(node) for _, node in others):
        raise source.mistake(
            "topk stands alone with the columns of the key and what is ranked: "
            "SELECT category, event, topk(score) AS score",
            place,
        )
    if not isinstance(window, Tumbling):
        raise source.mistake("topk is known for windows such as [5 minutes] only", place)
    for part in ("having", "group", "distinct"):
        if select.args.get(part) is not None:
            raise source.mistake(
                f"{part.upper()} is not known together with topk, which says what is ranked",
                place,
            )
    if not 1 <= len(call.expressions) <= 2:
        raise source.mistake("topk takes a column, and how many rows to keep", place)
    if len(call.expressions) > 1:
        count = plain.constant(call.expressions[1], "the number of rows")
        if not isinstance(count, int) or count < 1:
            raise source.mistake("topk keeps at least one row", place)
    before = [plain(node).alias(column) for column, node in others]
    before.append(plain(call.expressions[0]).alias(RANKED))
    *keys, item = [column for column, _ in others]
    ordered = dict.fromkeys([*(column for column, _ in items), *BOUNDS])
    return replace(
        common,
        before=tuple(before),
        keys=(*keys, item),
        window=window,
        aggregates={RANKED: agg.max(RANKED)},
        columns=tuple(ordered),
        top_k=TopK(tuple(keys), item, name, count),
        times=bound_times(window),
    )


def is_topk(node: Any) -> bool:
    """Say whether an expression is ``topk``."""
    return is_aggregate(node) and isinstance(node, exp.Anonymous)


def bound_times(window: Window) -> dict[str, Span]:
    """Return how the bounds of a window follow the event time of its result, its last moment."""
    start, end = BOUNDS
    if isinstance(window, Tumbling | Hopping | Sliding):
        begin = 1 - window.size_ms
        return {start: (begin, begin), end: (1, 1)}
    return {end: (1, 1)} if isinstance(window, Session) else {}
