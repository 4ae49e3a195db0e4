"""Joins of SQL apps: the condition is read as keys, bounds of event time, and what is left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.durations import duration_text
from headrace.errors import InvalidInputError
from headrace.graph.operators import Site
from headrace.graph.windows import Tumbling, Window
from headrace.queries.text import SqlText, near, place_of
from headrace.sql.expressions import Compiler
from headrace.sql.functions import Functions
from headrace.sql.join_conditions import Condition
from headrace.sql.relations import (
    EVENT,
    FULL,
    INNER,
    LEFT,
    NOW,
    RIGHT,
    Joining,
    Relation,
    Scope,
    TableJoining,
)
from headrace.sql.table_joins import TableJoinCompiler


@dataclass(frozen=True)
class JoinCompiler:
    """Checks and compiles a join of what is left of it with a table or a query.

    Args:
        source: the text.
        name: under which its state is stored.
        site: of its statement.
        grace_ms: how far behind the watermark rows of streams may be.
        functions: of the user, by name.
    """

    source: SqlText
    name: str
    site: Site
    grace_ms: int = 0
    functions: Functions = field(default_factory=dict)

    def __call__(
        self,
        join: exp.Join,
        left: tuple[Relation, Window | None, Scope],
        right: tuple[str, Relation, Window | None],
    ) -> tuple[Joining | TableJoining, Window | None, Scope]:
        """Return the join, its window if both sides have one, and what names mean behind it.

        Raises:
            InvalidInputError: it cannot be computed; shows where.
        """
        rows, window, scope = left
        alias, other, other_window = right
        if alias in scope.tables:
            raise self._mistake(join.this, f"{alias!r} is there twice: give one a name with AS")
        how, is_as_of = self._kind(join)
        names = _free_names(alias, other.columns, rows.columns)
        scope = Scope(self.source, {**scope.tables, alias: names}, scope.shared)
        using = [one.name for one in join.args.get("using") or []]
        of_tables = bool(rows.key and other.key)
        on = self._condition(join, scope, alias, using, INNER if of_tables else how)
        if using:
            own = {name: scope.named(name)[0] for name in using}
            scope = replace(scope, shared={**scope.shared, **own})
        found = Condition(rows, other, scope, alias, on)
        if of_tables and not is_as_of:
            if window is not None or other_window is not None:
                raise self._mistake(join.this, "a join of tables has no window")
            made_of_tables = TableJoinCompiler(self.source, self.name, self.site)
            return made_of_tables(join, rows, other, found, how)
        if rows.key:
            raise self._mistake(
                join.this, "a table with a PRIMARY KEY is the right side: FROM stream JOIN table"
            )
        if other.key:
            if set(other.columns) == set(other.key):
                raise self._mistake(join.this, f"{alias!r} has no column beside its PRIMARY KEY")
            if other_window is not None:
                raise self._mistake(join.this, "a table with a PRIMARY KEY has no window")
            made = self._with_table(join, rows, other, found, how, is_as_of=is_as_of)
            return made, window, scope
        if is_as_of:
            raise self._mistake(
                join.this, "ASOF JOIN looks up a table: declare it with a PRIMARY KEY"
            )
        made = self._of_streams(join, rows, other, found, how, (window, other_window))
        return made, window, scope

    def _mistake(self, node: Any, message: str) -> InvalidInputError:
        return self.source.mistake(message, place_of(node))

    def _kind(self, join: exp.Join) -> tuple[str, bool]:
        method, side, kind = (
            str(join.args.get(part) or "").upper() for part in ("method", "side", "kind")
        )
        if method not in ("", "ASOF") or kind not in ("", "INNER", "OUTER"):
            raise self._mistake(
                join,
                f"{method or kind} JOIN is not known; expected JOIN, LEFT JOIN, RIGHT JOIN, "
                "FULL JOIN or ASOF JOIN",
            )
        return side.lower() or INNER, method == "ASOF"

    def _condition(
        self, join: exp.Join, scope: Scope, alias: str, using: Sequence[str], how: str
    ) -> list[Any]:
        """Return the parts of the condition that are joined by ``AND``."""
        if using:
            if how in (RIGHT, FULL):
                raise self._mistake(join, f"USING is not known for {how.upper()} JOIN: use ON")
            before = replace(scope, tables={n: t for n, t in scope.tables.items() if n != alias})
            made = []
            for one in join.args["using"]:
                mine = before.resolved(exp.column(one.copy()))
                theirs = scope.resolved(exp.column(one.copy(), table=alias))
                if mine.name not in before.named(one.name):
                    raise self._mistake(
                        one,
                        f"no column {one.name!r} on the left; "
                        f"{near(one.name, [n for t in before.tables.values() for n in t])}",
                    )
                made.append(exp.EQ(this=mine, expression=theirs))
            return made
        on = join.args.get("on")
        if on is None:
            raise self._mistake(join.this, "a join needs a condition: ON a.key = b.key")
        return list(
            scope.resolved(on).flatten() if isinstance(on, exp.And) else [scope.resolved(on)]
        )

    def _keys(
        self, join: exp.Join, rows: Relation, found: Condition, how: str
    ) -> tuple[list[pl.Expr], list[str]]:
        """Return the key columns of the left side that are computed, and the names of all."""
        compiler = Compiler(
            self.source, {name: pl.col(name) for name in rows.columns}, functions=self.functions
        )
        made, names = [], []
        for number, (mine, _) in enumerate(found.keys):
            if isinstance(mine, exp.Column) and not mine.table and how in (INNER, LEFT):
                compiler(mine)
                names.append(mine.name)
            else:
                names.append(f"{self.name}.key{number}")
                made.append(compiler(mine).alias(names[-1]))
        if len(set(names)) < len(names):
            raise self._mistake(join, "a column is compared with two others: compare one in WHERE")
        return made, names

    def _rest(
        self,
        rows: Relation,
        found: Condition,
        rest: Sequence[Any],
        how: str,
        of_key: Mapping[str, pl.Expr] | None = None,
    ) -> pl.Expr | None:
        """Compile what neither keys nor bounds say; a row without a partner cannot obey it."""
        if not rest:
            return None
        if how != INNER:
            raise self._mistake(
                rest[0],
                f"{how.upper()} JOIN is known with equalities of both sides and bounds of event "
                "time; filter one side in a query of its own",
            )
        columns = {name: pl.col(name) for name in (*rows.columns, *found.names.values())}
        compiler = Compiler(self.source, columns | dict(of_key or {}), functions=self.functions)
        parts = [compiler(one) for one in rest]
        return pl.all_horizontal(parts) if len(parts) > 1 else parts[0]

    def _of_streams(
        self,
        join: exp.Join,
        rows: Relation,
        other: Relation,
        found: Condition,
        how: str,
        windows: tuple[Window | None, Window | None],
    ) -> Joining:
        window, other_window = windows
        if (window is None) is not (other_window is None) or window != other_window:
            raise self._mistake(
                join.this, "give both sides of the join the same window, or none and bounds of time"
            )
        if window is not None and not isinstance(window, Tumbling):
            raise self._mistake(join.this, "a join is known for windows such as [5 minutes] only")
        before = after = 0
        if isinstance(window, Tumbling):
            rest = [*found.rest, *found.timed]
            before = after = window.size_ms - 1
        else:
            bounds = found.bounds
            if bounds.least is None or bounds.most is None:
                raise self._mistake(join.this, found.unbounded())
            if bounds.least > bounds.most:
                span = duration_text(bounds.least - bounds.most)
                raise self._mistake(join, f"no two rows are this near: the bounds miss by {span}")
            before, after = max(0, -bounds.least), max(0, bounds.most)
            is_exact = bounds.is_exact and bounds.least <= 0 <= bounds.most
            rest = found.rest if is_exact else [*found.rest, *found.timed]
        if not found.keys:
            found.take_equal_times()
        if not found.keys:
            raise self._mistake(join.this, "a join needs a key: ON a.key = b.key")
        made, names = self._keys(join, rows, found, how)
        compiler = Compiler(
            self.source, {n: pl.col(o) for o, n in found.names.items()}, functions=self.functions
        )
        keys = [f"{self.name}.key{number}" for number in range(len(found.keys))]
        computed = [compiler(tree).alias(k) for (_, tree), k in zip(found.keys, keys, strict=True)]
        columns = [pl.col(old).alias(new) for old, new in found.names.items()]
        times = {n: (low - after, high) for n, (low, high) in rows.times.items()}
        theirs = {found.names[n]: (low - before, high) for n, (low, high) in other.times.items()}
        return Joining(
            name=self.name,
            site=self.site,
            left=rows,
            right=other,
            left_made=tuple(made),
            left_keys=tuple(names),
            right_made=(*columns, *computed),
            right_keys=tuple(keys),
            added={name: name for name in found.names.values()},
            how=how,
            before_ms=before,
            after_ms=after,
            window=window,
            grace_ms=self.grace_ms,
            where=self._rest(rows, found, rest, how),
            after=tuple(map(pl.col, (*rows.columns, *found.names.values()))),
            columns=(*rows.columns, *found.names.values()),
            times=(times if how in (INNER, LEFT) else {})
            | (theirs if how in (INNER, RIGHT) else {}),
            is_total=rows.is_total and other.is_total,
            is_changing=rows.is_changing or other.is_changing,
        )

    def _with_table(
        self,
        join: exp.Join,
        rows: Relation,
        table: Relation,
        found: Condition,
        how: str,
        *,
        is_as_of: bool,
    ) -> Joining:
        if how not in (INNER, LEFT):
            raise self._mistake(join, f"a stream and a table have no {how.upper()} JOIN")
        rest = [*found.rest, *found.timed]
        if is_as_of:
            order = next((one for one in found.timed if found.is_as_of(one)), None)
            if order is None:
                raise self._mistake(
                    join.this,
                    "ASOF JOIN needs the event times of both: ON a.key = b.key AND a.at >= b.at",
                )
            rest.remove(order)
        of_key: dict[str, Any] = {}
        for mine, theirs in found.keys:
            name = found.old(theirs) or ""
            if name in table.key and name not in of_key:
                of_key[name] = (mine, theirs)
            else:
                rest.append(exp.EQ(this=mine, expression=theirs))
        missing = [name for name in table.key if name not in of_key]
        if missing:
            raise self._mistake(
                join.this,
                f"a join with a table compares all of its PRIMARY KEY; {missing[0]!r} is missing",
            )
        found.keys[:] = [of_key[name] for name in table.key]
        made, names = self._keys(join, rows, found, how)
        added = {new: old for old, new in found.names.items() if old not in table.key}
        # The table's row has its key from the left side. A row that is there has a column beside
        # its key: one without deletes the key.
        own = dict(zip(table.key, names, strict=True))
        columns = {found.names[old]: pl.col(name) for old, name in own.items()}
        where = self._rest(rows, found, rest, how, columns)
        is_there = pl.any_horizontal([pl.col(name).is_not_null() for name in added])
        of_table = [
            pl.col(new)
            if old not in own
            else pl.col(own[old]).alias(new)
            if how == INNER
            else pl.when(is_there).then(pl.col(own[old])).alias(new)
            for old, new in found.names.items()
        ]
        return Joining(
            name=self.name,
            site=self.site,
            left=rows,
            right=table,
            left_made=tuple(made),
            left_keys=tuple(names),
            right_made=(),
            right_keys=table.key,
            added=added,
            how=how,
            as_of=EVENT if is_as_of else NOW,
            where=where,
            after=(*map(pl.col, rows.columns), *of_table),
            columns=(*rows.columns, *found.names.values()),
            times=rows.times,
            is_total=rows.is_total,
            is_changing=rows.is_changing,
        )


def _free_names(alias: str, columns: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Return what columns of a table are called beside those that there are."""
    made: dict[str, str] = {}
    for column in columns:
        name = column
        while name in taken or name in made.values() or (name != column and name in columns):
            name = f"{alias}.{name}"
        made[column] = name
    return made
