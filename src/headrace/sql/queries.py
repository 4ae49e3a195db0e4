"""Queries of an SQL app, checked and compiled to relations; ``app`` builds the graph of them.

A query within another one, a ``WITH`` and a view are relations that others read: nothing is kept
between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.graph import agg
from headrace.graph.operators import Site
from headrace.graph.windows import (
    BOUNDS,
    Window,
    hopping,
    session,
    sliding,
    tumbling,
)
from headrace.queries.text import SqlText, near, place_of
from headrace.sql.aggregates import Aggregates
from headrace.sql.expressions import (
    Compiler,
    has_aggregate,
    text_of,
)
from headrace.sql.functions import Functions
from headrace.sql.joins import JoinCompiler
from headrace.sql.ranking import HIDDEN, TOP_K, bound_times, first_rows, is_topk, order_of, top_k
from headrace.sql.relations import (
    LATE_COLUMN,
    Joining,
    Merging,
    Relation,
    Scope,
    Selection,
    Served,
    Span,
)
from headrace.sql.row_numbers import AT, Ranking, RankingCompiler, is_ranked, with_qualify
from headrace.sql.statements import SIDE_OUTPUT, WINDOW, Emit, WindowText
from headrace.sql.table_joins import changed_rows

_REFUSED = {
    "laterals": "LATERAL",
    "offset": "OFFSET",
    "windows": "WINDOW",
    "sample": "USING SAMPLE",
    "pivots": "PIVOT",
    "cluster": "CLUSTER BY",
    "into": "INTO",
}


@dataclass(frozen=True)
class QueryCompiler:
    """Compiles one query of an app, and those within it.

    Args:
        source: the text.
        options: of the query.
        tables: what can be read, by name.
        name: of the query; names of stores begin with it.
        site: of its statement.
        keeps_bounds: whether rows that are made of totals have their windows, too.
        emit: when its results are sent.
        functions: of the user, by name.
        taken: names of queries within it; each is there once.
        is_named_before: whether its columns have the names of those of a query before it.
    """

    source: SqlText
    options: Mapping[str, Any]
    tables: Mapping[str, Relation]
    name: str
    site: Site
    keeps_bounds: bool
    emit: Emit | None = None
    functions: Functions = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    is_named_before: bool = False

    def __call__(self, tree: Any) -> Relation:
        """Return the relation of a query.

        Raises:
            InvalidInputError: it has a mistake; shows where.
        """
        key = next((key for key in ("with_", "with") if tree.args.get(key)), None)
        if key is not None:
            own, rest = self._with(tree.args[key]), tree.copy()
            rest.set(key, None)
            return own(rest)
        self._refuse(tree)
        if self.emit is not None and not isinstance(tree, exp.Select):
            raise self.source.mistake("EMIT is for one SELECT with aggregates", self.emit.place)
        if isinstance(tree, exp.Subquery) and tree.args.get("alias") is None:
            return self(tree.this)
        if isinstance(tree, exp.SetOperation):
            return self._merged(tree)
        if not isinstance(tree, exp.Select):
            raise self.source.mistake("expected SELECT ... FROM ...", place_of(tree))
        return self._selected(tree)

    def _refuse(self, tree: Any) -> None:
        of_select = {} if isinstance(tree, exp.Select) else {"order": "ORDER BY", "limit": "LIMIT"}
        for part, shown in {**_REFUSED, **of_select}.items():
            if found := tree.args.get(part):
                at = found[0] if isinstance(found, list) else found
                raise self.source.mistake(
                    f"{shown} is not known in a query of an app", place_of(at)
                )

    def _within(self, name: str, *, is_named_before: bool = False) -> QueryCompiler:
        """Return what compiles a query within this one."""
        own, number = f"{self.name}.{name}", 2
        while own in self.taken:
            own, number = f"{self.name}.{name}{number}", number + 1
        self.taken.add(own)
        options = {n: self.options[n] for n in self.options if n in ("topk", "allowed_lateness")}
        return replace(self, name=own, options=options, emit=None, is_named_before=is_named_before)

    def _with(self, found: exp.With) -> QueryCompiler:
        if found.args.get("recursive"):
            raise self.source.mistake("a query cannot read itself: no RECURSIVE", place_of(found))
        own = self
        for one in found.expressions:
            alias = one.args["alias"]
            if alias.args.get("columns"):
                raise self.source.mistake("name the columns in the SELECT of it", place_of(alias))
            relation = own._within(one.alias)(one.this)
            own = replace(own, tables={**own.tables, one.alias: relation})
        return own

    def _merged(self, tree: exp.SetOperation) -> Merging:
        """Compile the parts of a ``UNION ALL``: columns are those at the same place, or by name."""
        if not isinstance(tree, exp.Union) or tree.args.get("distinct"):
            raise self.source.mistake(
                "only UNION ALL is known; for each row once, read it with SELECT DISTINCT and a "
                "window",
                place_of(tree.expression),
            )
        is_named = bool(tree.args.get("by_name"))
        trees = [tree.expression]
        left: Any = tree.left
        while (
            isinstance(left, exp.Union)
            and not left.args.get("distinct")
            and bool(left.args.get("by_name")) == is_named
        ):
            trees.append(left.expression)
            left = left.left
        trees.append(left)
        parts: list[tuple[Any, Relation]] = []
        for one in reversed(trees):
            inner = self._within("part", is_named_before=bool(parts) and not is_named)
            parts.append((one, inner(one)))
        first = parts[0][1]
        columns = first.columns
        if is_named:
            columns = tuple(dict.fromkeys(name for _, part in parts for name in part.columns))
        made = []
        for one, part in parts:
            if not is_named and len(part.columns) != len(columns):
                raise self.source.mistake(
                    f"UNION ALL needs as many columns in each part: the first has "
                    f"{', '.join(columns)}, this one {', '.join(part.columns)}",
                    place_of(one),
                )
            made.append((part, part.columns if is_named else columns))
        times = [
            {
                new: part.times[old]
                for old, new in zip(part.columns, names, strict=True)
                if old in part.times
            }
            for part, names in made
        ]
        return Merging(
            name=self.name,
            site=self.site,
            parts=tuple(made),
            columns=columns,
            times={
                name: (min(one[name][0] for one in times), max(one[name][1] for one in times))
                for name in columns
                if all(name in one for one in times)
            },
            is_total=all(part.is_total for part, _ in made),
            is_changing=any(part.is_changing for part, _ in made),
        )

    def _read(self, select: exp.Select) -> tuple[Relation, Window | None, Scope, Any]:
        """Return what a query reads, its window, what names mean, and the tree of it."""
        found = select.args.get("from_") or select.args.get("from")
        tree = None if found is None else found.this
        if tree is None:
            raise self.source.mistake("the query reads nothing: add FROM table", place_of(select))
        name, relation = self._relation(tree)
        window = window_of(tree.args.get(WINDOW))
        scope = Scope(self.source, {name: {column: column for column in relation.columns}})
        for join in select.args.get("joins") or []:
            right = (*self._relation(join.this), window_of(join.this.args.get(WINDOW)))
            grace_ms = self.options.get("allowed_lateness", 0)
            own = self._within("join").name
            compiler = JoinCompiler(self.source, own, self.site, grace_ms, self.functions)
            relation, window, scope = compiler(join, (relation, window, scope), right)
        return relation, window, scope, tree

    def _relation(self, tree: Any) -> tuple[str, Relation]:
        """Return the name by which a table of ``FROM`` is known in the query, and its rows."""
        alias = tree.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise self.source.mistake("columns cannot be renamed here: use AS", place_of(alias))
        if isinstance(tree, exp.Subquery):
            self._refuse(tree)
            name = tree.alias or "query"
            return name, self._within(name.strip("_"))(tree.this)
        if not isinstance(tree, exp.Table):
            raise self.source.mistake("expected a table, or a query in brackets", place_of(tree))
        if tree.name not in self.tables:
            raise self.source.mistake(
                f"no table {tree.name!r}; {near(tree.name, self.tables)}", place_of(tree)
            )
        found = self.tables[tree.name]
        if isinstance(found, Served):
            raise self.source.mistake(
                f"table {tree.name!r} has its state on a server, and sends no rows; read what it "
                "is made of",
                place_of(tree),
            )
        return tree.alias_or_name, found

    def _selected(self, select: exp.Select) -> Relation:
        source = self.source
        select = with_qualify(select)
        relation, window, scope, read = self._read(select)
        items = list(self._projections(select, scope))
        select = select.copy()
        for part in ("where", "group", "having", "qualify"):
            if (tree := select.args.get(part)) is not None:
                select.set(part, scope.resolved(tree, dict(items)))
        plain = Compiler(
            source, {name: pl.col(name) for name in relation.columns}, functions=self.functions
        )
        where = select.args.get("where")
        if where is not None and has_aggregate(where):
            raise source.mistake("WHERE is before grouping: use HAVING", place_of(where.this))
        common = Selection(
            name=self.name,
            site=self.site,
            origin=relation,
            where=None if where is None else plain(where.this),
            columns=(),
            is_total=True,
        )
        grouping = [select.args.get(part) for part in ("distinct", "group", "having")]
        text = read.args.get(WINDOW)
        if is_ranked(select):
            self._refuse_changing(relation, read)
            return self._ranking(select, plain, items, common, text)
        is_plain = not any(has_aggregate(node) for _, node in items) and grouping == [None] * 3
        if select.args.get("order") or select.args.get("limit"):
            return self._limited(select, read, plain, items, scope, common, is_plain=is_plain)
        if is_plain:
            made = self._rows(select, plain, items, common)
            if text is not None and not _joins_in_window(relation):
                raise source.mistake(
                    "a window is for aggregates, such as count(*), or SELECT DISTINCT", text.place
                )
            if self.emit is not None:
                raise source.mistake("EMIT is for aggregates", self.emit.place)
            return made
        self._refuse_changing(relation, read)
        ranked = next(((n, node) for n, node in items if is_topk(node)), None)
        if text is None:
            if ranked is not None:
                raise source.mistake(
                    f"topk needs a window: write {read.alias_or_name} [5 minutes]", place_of(read)
                )
            return self._running(select, plain, items, common)
        if ranked is not None:
            if self.emit is not None:
                raise source.mistake("EMIT is not known together with topk", self.emit.place)
            options = {"allowed_lateness": self.options.get("allowed_lateness", 0)}
            window = self._window(text, options, None)
            count = self.options.get("topk", TOP_K)
            return top_k(select, window, plain, items, ranked, common, count)
        return self._groups(
            select, self._window(text, self.options, self.emit), plain, items, common
        )

    def _refuse_changing(self, relation: Relation, read: Any) -> None:
        if relation.is_changing:
            raise self.source.mistake(
                f"rows of {read.alias_or_name or 'the query'} replace earlier ones, and each would "
                "count; read what it is made of",
                place_of(read),
            )

    def _ranking(
        self,
        select: exp.Select,
        plain: Compiler,
        items: Sequence[tuple[str, Any]],
        common: Selection,
        text: WindowText | None,
    ) -> Ranking:
        """Compile the first rows of each key."""
        when: Window | int | None = None
        if text is None:
            when = self._every()
        else:
            if self.emit is not None:
                raise self.source.mistake(
                    "EMIT is not known together with ROW_NUMBER() and a window", self.emit.place
                )
            options = {"allowed_lateness": self.options.get("allowed_lateness", 0)}
            when = self._window(text, options, None)
        compiler = RankingCompiler(self.source, self.functions)
        own = {part: getattr(common, part) for part in ("name", "site", "origin", "where")}
        times = {} if not isinstance(when, Window) else bound_times(when)
        found = compiler(select, items, plain, own, when)
        bounds = [(name, exp.column(name)) for name in BOUNDS]
        return replace(found, times=_times_of([*items, *bounds], times))

    def _limited(
        self,
        select: exp.Select,
        read: Any,
        plain: Compiler,
        items: Sequence[tuple[str, Any]],
        scope: Scope,
        common: Selection,
        *,
        is_plain: bool,
    ) -> Relation:
        """Compile ``ORDER BY ... LIMIT``: the first rows of each window."""
        text: WindowText | None = read.args.get(WINDOW)
        count, order, hidden = order_of(self.source, select, items, scope)
        at = place_of(select.args["order"])
        if text is None or text.kind not in ("tumbling", "hopping"):
            raise self.source.mistake(
                "ORDER BY ... LIMIT has the first rows of each window: write "
                f"{read.alias_or_name or 'the table'} [5 minutes]",
                at,
            )
        options = {"late": "drop", "updates": "replace", **self.options}
        if self.emit is not None or (options["late"], options["updates"]) != ("drop", "replace"):
            raise self.source.mistake(
                "ORDER BY ... LIMIT is of windows that are sent once, without EMIT and the option "
                "late",
                at if self.emit is None else self.emit.place,
            )
        self._refuse_changing(common.origin, read)
        window = self._window(text, self.options, None)
        if is_plain:
            every = [*items, *hidden]
            made = tuple(plain(node).alias(name) for name, node in every)
            rows = replace(common, columns=tuple(name for name, _ in every), after=made)
            return first_rows(rows, window, order, count, [name for name, _ in items])
        if any(is_topk(node) for _, node in items):
            raise self.source.mistake("ORDER BY is not known together with topk", at)
        rows = self._groups(select, window, plain, [*items, *hidden], common)
        kept = [name for name in rows.columns if name not in dict(hidden)]
        return first_rows(rows, window, order, count, kept)

    def _window(self, text: WindowText, options: Mapping[str, Any], emit: Emit | None) -> Window:
        """Return a window with what is said of late and early results."""
        if emit is not None and emit.every_ms is not None and not emit.is_early:
            raise self.source.mistake(
                "EMIT EVERY is for totals without a window; write EMIT EARLY EVERY", emit.place
            )
        early = emit if emit is not None and emit.is_early else None
        if early is not None and text.kind == "sliding":
            raise self.source.mistake("a sliding window has no early results", early.place)
        found = window_of(text, options, early)
        assert found is not None
        if found.mistakes:
            place = text.place if early is None else early.place
            raise self.source.mistake(found.mistakes[0], place)
        return found

    def _projections(self, select: exp.Select, scope: Scope) -> Iterator[tuple[str, Any]]:
        """Yield the names and trees of what a query selects."""
        found: list[tuple[str, Any, Any]] = []
        for item in select.expressions:
            is_column = isinstance(item, exp.Column)
            if isinstance(item, exp.Star) or (is_column and isinstance(item.this, exp.Star)):
                table = item.table if is_column else ""
                if table and table not in scope.tables:
                    raise self.source.mistake(
                        f"no table {table!r} here; {near(table, scope.tables)}", place_of(item)
                    )
                for name, columns in scope.tables.items():
                    is_first = name == next(iter(scope.tables))
                    for column, own in columns.items():
                        if table in ("", name) and (
                            table or is_first or column not in scope.shared
                        ):
                            one = own if table else scope.shared.get(column, own)
                            found.append((column, exp.column(one, quoted=True), item))
            elif isinstance(item, exp.Alias):
                found.append((item.alias, scope.resolved(item.this), item))
            elif is_column:
                found.append((item.name, scope.resolved(item), item))
            elif self.is_named_before:
                found.append((f"_{len(found)}", scope.resolved(item), item))
            else:
                raise self.source.mistake(
                    "a computed column needs a name: ... AS name", place_of(item)
                )
        shown = [name for name, _, _ in found]
        for name, tree, item in found:
            if shown.count(name) > 1:
                raise self.source.mistake(f"column {name!r} is there twice", place_of(item))
            yield name, tree

    def _rows(
        self,
        select: exp.Select,
        plain: Compiler,
        items: Sequence[tuple[str, Any]],
        common: Selection,
    ) -> Selection:
        """Compile rows that are made one by one."""
        lists = [(name, node) for name, node in items if isinstance(node, exp.Explode)]
        for _, node in lists[1 - int(common.origin.has_deletes) :]:
            raise self.source.mistake(
                "rows of a join of tables have no UNNEST"
                if common.origin.has_deletes
                else "a SELECT has one UNNEST: put the other one in a query around it",
                place_of(node),
            )
        items = [(name, node.this if (name, node) in lists else node) for name, node in items]
        made = {name: plain(node).alias(name) for name, node in items}
        if common.origin.has_deletes:
            trees = {name: (node, made[name]) for name, node in items}
            after, key = changed_rows(self.source, select, common.origin, common.where, trees)
            return replace(
                common,
                where=None,
                after=after,
                columns=tuple(made),
                is_total=False,
                is_changing=True,
                key=key,
                has_deletes=True,
            )
        times = _times_of(items, common.origin.times)
        key = () if lists or common.where is not None else _key_of(items, common.origin.key)
        if self.keeps_bounds and common.origin.is_total:
            for bound in BOUNDS:
                if bound in common.origin.columns and bound not in made:
                    made[bound] = pl.col(bound)
                    times |= {b: t for b, t in common.origin.times.items() if b == bound}
        return replace(
            common,
            after=tuple(made.values()),
            columns=tuple(made),
            times=times,
            unnested=lists[0][0] if lists else None,
            is_total=common.origin.is_total and not common.origin.is_changing,
            is_changing=common.origin.is_changing,
            key=key,
        )

    def _group_trees(
        self, select: exp.Select, items: Sequence[tuple[str, Any]]
    ) -> list[tuple[str, Any]]:
        """Return the names and trees of the key: of GROUP BY, or all that is no aggregate."""
        source, group = self.source, select.args.get("group")
        if group is None or group.args.get("all"):
            own = [item for item in items if not item[0].startswith(HIDDEN)]
            own = [(name, node) for name, node in own if not has_aggregate(node)]
            return [(name, node) for name, node in own if not _is_bound(node)]
        aliases = dict(items)
        found: list[tuple[str, Any]] = []
        for node in group.expressions:
            tree = node
            if isinstance(node, exp.Literal) and not node.is_string:
                place = int(node.this)
                if not 1 <= place <= len(items):
                    raise source.mistake(f"there is no column {place}", place_of(node))
                name, tree = items[place - 1]
            elif isinstance(node, exp.Column) and not node.table and node.name in aliases:
                name = node.name
                tree = aliases[name]
            else:
                shown = [n for n, t in items if text_of(t) == text_of(node)]
                plain = node.name if isinstance(node, exp.Column) else f"_key{len(found)}"
                name = shown[0] if shown else plain
            if has_aggregate(tree):
                raise source.mistake("the key cannot be an aggregate", place_of(node))
            found.append((name, tree))
        if select.args.get("distinct") is not None:
            selected = {text_of(tree) for _, tree in items}
            for (_, tree), node in zip(found, group.expressions, strict=True):
                if text_of(tree) not in selected and not _is_bound(tree):
                    raise source.mistake(
                        "SELECT DISTINCT of groups is known where all of the key is selected",
                        place_of(node),
                    )
        return [(name, tree) for name, tree in found if not _is_bound(tree)]

    def _groups(
        self,
        select: exp.Select,
        window: Window,
        plain: Compiler,
        items: Sequence[tuple[str, Any]],
        common: Selection,
    ) -> Selection:
        """Compile aggregates for each key and window."""
        heads = (*BOUNDS, *window.flags)
        if window.late == SIDE_OUTPUT:
            origin = common.origin.columns
            kept = tuple(pl.col(name).alias(f"{LATE_COLUMN}{name}") for name in origin)
            common = replace(common, before=kept)
        made, found = self._grouped(select, plain, items, common, heads)
        for head in heads:
            made.setdefault(head, pl.col(head))
        bounds = [(name, exp.column(name)) for name in BOUNDS]
        return replace(
            found,
            window=window,
            after=tuple(made.values()),
            columns=tuple(made),
            times=_times_of([*items, *bounds], bound_times(window)),
            is_changing=window.is_updated
            or bool(window.early_ms or window.early_rows)
            or bool(window.early_idle_ms),
        )

    def _running(
        self,
        select: exp.Select,
        plain: Compiler,
        items: Sequence[tuple[str, Any]],
        common: Selection,
    ) -> Selection:
        """Compile totals of all rows so far: each row sends those of its key.

        Without an aggregate, the first row of a key is all there is to send.
        """
        source = self.source
        having = select.args.get("having")
        if having is not None:
            raise source.mistake(
                "HAVING needs a window: a total that is sent and no longer fits would stay",
                place_of(having.this),
            )
        every = self._every()
        has_totals = any(has_aggregate(node) for _, node in items)
        if self.emit is not None and not has_totals:
            raise source.mistake("EMIT is for aggregates", self.emit.place)
        heads = () if every is None else (AT,)
        made, found = self._grouped(select, plain, items, common, heads)
        for head in heads:
            made.setdefault(head, pl.col(head))
        hidden = [key for key in found.keys if key not in made]
        if has_totals and hidden:
            raise source.mistake(
                "totals without a window are a row for each key: select all that is in GROUP BY",
                place_of(select.args["group"]),
            )
        first = next(iter(found.aggregates))
        return replace(
            found,
            every_ms=every,
            having=None if has_totals else pl.col(first) == 1,
            after=tuple(made.values()),
            columns=tuple(made),
            is_changing=has_totals,
            key=found.keys if has_totals else (),
        )

    def _every(self) -> int | None:
        """Return how often results without a window are sent, if not with each row."""
        emit = self.emit
        if emit is None:
            return None
        if emit.is_early or emit.every_ms is None:
            raise self.source.mistake(
                "totals without a window have no end: write EMIT EVERY '1 minute', or a window "
                "such as [5 minutes]",
                emit.place,
            )
        return emit.every_ms

    def _grouped(
        self,
        select: exp.Select,
        plain: Compiler,
        items: Sequence[tuple[str, Any]],
        common: Selection,
        heads: Sequence[str],
    ) -> tuple[dict[str, pl.Expr], Selection]:
        """Return the columns of a result, and how rows are grouped and aggregated for it."""
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            raise self.source.mistake(
                "DISTINCT ON is not known: use first(...) or arg_max(...) of the other columns",
                place_of(distinct),
            )
        keys = self._group_trees(select, items)
        aggregates = Aggregates(plain, [name for name, _ in keys], self.name)
        known = {name: pl.col(name) for name in (*(name for name, _ in keys), *heads)}
        groups = {text_of(node): pl.col(name) for name, node in keys}
        after = Compiler(self.source, known, (), aggregates, plain.columns, groups, self.functions)
        made = {name: after(node).alias(name) for name, node in items}
        having = select.args.get("having")
        condition = None if having is None else after(having.this)
        if not aggregates.found:
            aggregates.add(agg.count())
        before = [plain(node).alias(name) for name, node in keys]
        before += [value.alias(name) for name, value in aggregates.arguments.items()]
        return made, replace(
            common,
            before=(*before, *common.before),
            keys=tuple(name for name, _ in keys),
            aggregates=aggregates.found,
            having=condition,
        )


def window_of(
    text: WindowText | None, options: Mapping[str, Any] | None = None, early: Emit | None = None
) -> Window | None:
    """Return the window that is behind a table, if there is one."""
    if text is None:
        return None
    given: dict[str, Any] = dict(options or {})
    given.pop("topk", None)
    if "allowed_lateness" in given:
        given["allowed_lateness"] = in_ms(given["allowed_lateness"])
    size = in_ms(text.size_ms)
    if text.kind == "sliding":
        return sliding(size, **given)
    if early is not None:
        given["early"] = None if early.every_ms is None else in_ms(early.every_ms)
        given["early_idle"] = None if early.idle_ms is None else in_ms(early.idle_ms)
        given["early_rows"] = early.rows
    if text.kind == "hopping":
        return hopping(size, every=in_ms(text.step_ms or 0), **given)
    return session(size, **given) if text.kind == "session" else tumbling(size, **given)


def in_ms(duration: int) -> str:
    """Return a number of milliseconds as a duration."""
    return f"{duration}ms"


def _joins_in_window(relation: Relation) -> bool:
    """Say whether a window says which rows of a join are near."""
    while isinstance(relation, Joining):
        if relation.window is not None:
            return True
        relation = relation.left
    return False


def _is_bound(node: Any) -> bool:
    return isinstance(node, exp.Column) and node.name in BOUNDS


def _key_of(items: Sequence[tuple[str, Any]], key: Sequence[str]) -> tuple[str, ...]:
    """Return the key of a table behind a query that only selects columns of it, among them all.

    What it computes would be there for a row without values, too, which deletes its key.
    """
    names = {t.name: name for name, t in items if isinstance(t, exp.Column) and not t.table}
    if len(names) < len(items) or not set(key) <= set(names):
        return ()
    return tuple(names[name] for name in key)


def _times_of(items: Sequence[tuple[str, Any]], times: Mapping[str, Span]) -> dict[str, Span]:
    """Return the times of columns that are passed on as they are."""
    plain = [(n, node) for n, node in items if isinstance(node, exp.Column) and not node.table]
    return {name: times[node.name] for name, node in plain if node.name in times}
