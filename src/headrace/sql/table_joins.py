"""Joins of two tables in SQL apps: of rows with the same key, which change as either table does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.errors import InvalidInputError
from headrace.graph.operators import IS_DELETED, Site
from headrace.queries.text import SqlText, place_of
from headrace.sql.join_conditions import Condition
from headrace.sql.relations import FULL, INNER, RIGHT, Relation, Scope, TableJoining


@dataclass(frozen=True)
class TableJoinCompiler:
    """Checks and compiles a join of two tables by all of their keys.

    Args:
        source: the text.
        name: under which its state is stored.
        site: of its statement.
    """

    source: SqlText
    name: str
    site: Site

    def __call__(
        self, join: exp.Join, rows: Relation, other: Relation, found: Condition, how: str
    ) -> tuple[TableJoining, None, Scope]:
        """Return the join, no window, and what names mean behind it.

        Raises:
            InvalidInputError: it cannot be computed; shows where.
        """
        if how == RIGHT:
            raise self._mistake(join, "tables have no RIGHT JOIN: write LEFT JOIN the other way")
        if how == FULL and not join.args.get("using"):
            raise self._mistake(
                join, "a FULL JOIN of tables needs USING (key), as either side may be missing"
            )
        keys = self._keys(join, rows, other, found)
        added = {new: old for old, new in found.names.items() if old not in other.key}
        kept = rows.columns
        if isinstance(rows, TableJoining):
            kept = tuple(dict.fromkeys([*rows.kept, *rows.added]))
        made, is_full = self._columns(rows), how == FULL
        if is_full:
            is_mine = _is_there([name for name in kept if name not in _own_key(rows)])
            made = {name: pl.when(is_mine).then(one) for name, one in made.items()}
        for old, new in found.names.items():
            made[new] = pl.col(new)
            if old in other.key:
                mine = _own_key(rows)[list(keys.values()).index(old)]
                of_both = pl.when(_is_there(list(added))).then(pl.col(mine))
                made[new] = pl.col(mine) if how == INNER else of_both
        key, shared = tuple(keys), found.scope.shared
        if is_full:
            key = tuple(f"_{self.name}.key{number}" for number in range(len(keys)))
            made |= {new: pl.col(old) for new, old in zip(key, _own_key(rows), strict=True)}
            names = dict(zip(keys, key, strict=True))
            shared = {name: names.get(own, own) for name, own in shared.items()}
        joined = TableJoining(
            name=self.name,
            site=self.site,
            left=rows,
            right=other,
            right_keys=tuple(keys.values()),
            kept=kept,
            added=added,
            how=how,
            made=made,
            columns=tuple(made),
            is_changing=True,
            has_deletes=True,
            key=key,
        )
        return joined, None, replace(found.scope, shared=shared)

    def _mistake(self, node: Any, message: str) -> InvalidInputError:
        return self.source.mistake(message, place_of(node))

    def _keys(
        self, join: exp.Join, rows: Relation, other: Relation, found: Condition
    ) -> dict[str, str]:
        """Return the column of the right key by that of the left one, in the order of the left."""
        found.take_equal_times()
        keys: dict[str, str] = {}
        for mine, theirs in found.keys:
            own, old = mine.name, found.old(theirs) or ""
            is_plain = isinstance(mine, exp.Column) and not mine.table
            if is_plain and own in rows.key and old in other.key and own not in keys:
                keys[own] = old
                continue
            raise self._mistake(
                mine,
                "a join of tables compares the columns of their PRIMARY KEYs, such as "
                f"{next(iter(rows.key)).lstrip('_')} and {next(iter(other.key))}",
            )
        if found.rest:
            raise self._mistake(
                found.rest[0], "a join of tables compares their PRIMARY KEYs only: use WHERE"
            )
        if set(keys) != set(rows.key) or set(keys.values()) != set(other.key):
            missing = [name for name in rows.key if name not in keys]
            missing += [name for name in other.key if name not in keys.values()]
            raise self._mistake(
                join.this,
                f"a join of tables compares all of both PRIMARY KEYs; {missing[0]!r} is missing",
            )
        if set(other.columns) == set(other.key):
            raise self._mistake(join.this, "the table has no column beside its PRIMARY KEY")
        return {name: keys[name] for name in rows.key}

    def _columns(self, rows: Relation) -> dict[str, pl.Expr]:
        """Return how the columns of the left side are made of those that are kept."""
        if isinstance(rows, TableJoining):
            return dict(rows.made)
        return {name: pl.col(name) for name in rows.columns}


def _own_key(rows: Relation) -> tuple[str, ...]:
    """Return the columns that the key of a table has where it is kept."""
    return _own_key(rows.left) if isinstance(rows, TableJoining) else rows.key


def _is_there(columns: list[str]) -> pl.Expr:
    """Say whether a side of the join has a row: one without any value deletes its key."""
    return pl.any_horizontal([pl.col(name).is_not_null() for name in columns])


def changed_rows(
    source: SqlText,
    select: exp.Select,
    of: Relation,
    where: pl.Expr | None,
    made: Mapping[str, tuple[Any, pl.Expr]],
) -> tuple[tuple[pl.Expr, ...], tuple[str, ...]]:
    """Return the columns of a query on rows that may be deleted, and its key.

    A row that does not fit ``WHERE`` is deleted, as it may have fitted before.

    Args:
        source: the text.
        select: the query.
        of: what it reads.
        where: its condition.
        made: trees and expressions of what it selects.

    Raises:
        InvalidInputError: not all of the key is selected; shows where.
    """
    if IS_DELETED in made:
        raise source.mistake(
            f"rows of a join of tables have a column {IS_DELETED!r}: name this one otherwise",
            place_of(made[IS_DELETED][0]),
        )
    key: dict[str, str] = {}
    for name, (tree, _) in made.items():
        if isinstance(tree, exp.Column) and not tree.table and tree.name in of.key:
            key.setdefault(tree.name, name)
    if missing := [name for name in of.key if name not in key]:
        what = "the column of USING" if missing[0].startswith("_") else repr(missing[0])
        raise source.mistake(
            "a row of a join of tables replaces the earlier one of its key: select all of the key; "
            f"{what} is missing",
            place_of(select.expressions[0]),
        )
    gone = pl.col(IS_DELETED)
    if where is not None:
        gone = gone | ~where.fill_null(value=False)
    columns = [
        one if name in key.values() else pl.when(~gone).then(one).alias(name)
        for name, (_, one) in made.items()
    ]
    return (*columns, gone.alias(IS_DELETED)), tuple(key[name] for name in of.key)
