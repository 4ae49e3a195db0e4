"""Queries that pick rows of one table by comparisons of its columns with literals.

Most queries of an app's tables are such, and Arrow answers them in a tenth of the time that DuckDB
takes to bind and plan one. ``lookup_of`` takes a query only where both give the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.sql.past_rows import MOMENT

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")
"""As moments are mostly written; others, with zones or more digits, are for DuckDB to read."""

_Compare = Callable[[Any, Any], Any]
_COMPARED: dict[type, _Compare] = {
    exp.EQ: pc.equal, exp.GT: pc.greater, exp.GTE: pc.greater_equal, exp.LT: pc.less,
    exp.LTE: pc.less_equal,
}  # fmt: skip
_TURNED: dict[_Compare, _Compare] = {
    pc.equal: pc.equal, pc.greater: pc.less, pc.less: pc.greater,
    pc.greater_equal: pc.less_equal, pc.less_equal: pc.greater_equal,
}  # fmt: skip


@dataclass(frozen=True)
class Lookup:
    """Rows that pass all comparisons, the first ones, and of them some columns, by name."""

    columns: tuple[str, ...]
    comparisons: tuple[tuple[str, _Compare, pa.Scalar | pa.Array], ...]
    limit: int | None

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table that pass, in their order."""
        passed = [compare(table.column(name), value) for name, compare, value in self.comparisons]
        found = table.filter(reduce(pc.and_, passed)) if passed else table
        return found.select(self.columns).slice(0, self.limit)


class _OtherQueryError(Exception):
    """DuckDB has to answer it."""


def lookup_of(tree: exp.Query, columns: pa.Schema) -> Lookup | None:
    """Return a query as one that Arrow answers; ``None``: it is another.

    Args:
        tree: the query, checked.
        columns: of the one table that it reads.
    """
    parts = {name for name, part in tree.args.items() if part}
    if not isinstance(tree, exp.Select) or not parts <= {"expressions", "from_", "where", "limit"}:
        return None
    table, where = tree.args["from_"].this, tree.args.get("where")
    alias = table.args.get("alias")
    is_plain = {name for name, part in table.args.items() if part} <= {"this", "alias"}
    if not is_plain or (alias is not None and alias.args.get("columns")):
        return None
    names = {table.alias_or_name.lower(), ""}
    try:
        wanted = [_name(one, columns, names) for one in tree.expressions]
        is_all = len(wanted) == 1 and wanted[0] is None
        shown = columns.names if is_all else [one for one in wanted if one is not None]
        whole = is_all or len(set(shown)) == len(wanted)
        if not whole or not all(_is_simple(columns.field(name).type) for name in shown):
            return None
        limit = _limit(tree.args.get("limit"))
        found = [] if where is None else list(_comparisons(where.this, columns, names))
    except _OtherQueryError:
        return None
    return Lookup(tuple(shown), tuple(found), limit)


def _limit(node: Any) -> int | None:
    if node is None:
        return None
    count = (
        node.expression
        if {name for name, part in node.args.items() if part} == {"expression"}
        else None
    )
    if not isinstance(count, exp.Literal) or not count.is_int:
        raise _OtherQueryError
    return int(count.this)


def _is_simple(kind: pa.DataType) -> bool:
    """Say whether values of a type pass DuckDB unchanged."""
    is_number = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)
    is_other = pa.types.is_string(kind) or pa.types.is_boolean(kind) or kind == MOMENT
    return bool(is_number or is_other)


def _name(node: Any, columns: pa.Schema, tables: set[str]) -> str | None:
    """Return the column that a node is; ``None``: a plain star."""
    if isinstance(node, exp.Star) and not any(node.args.values()):
        return None
    if not isinstance(node, exp.Column) or node.table.lower() not in tables or node.db:
        raise _OtherQueryError
    lowered = [one.lower() for one in columns.names]
    if node.name not in columns.names or lowered.count(node.name.lower()) != 1:
        raise _OtherQueryError
    return str(node.name)


def _comparisons(
    node: Any, columns: pa.Schema, tables: set[str]
) -> Iterator[tuple[str, _Compare, Any]]:
    """Yield the comparisons that all have to hold."""
    match node:
        case exp.Paren():
            yield from _comparisons(node.this, columns, tables)
        case exp.And():
            yield from _comparisons(node.left, columns, tables)
            yield from _comparisons(node.right, columns, tables)
        case exp.Between() if not node.args.get("symmetric"):
            for compare, bound in ((pc.greater_equal, "low"), (pc.less_equal, "high")):
                yield _compared(node.this, compare, [node.args[bound]], columns, tables)
        case exp.In() if node.expressions:
            yield _compared(node.this, pc.is_in, node.expressions, columns, tables)
        case _ if type(node) in _COMPARED:
            column, compare, literal = node.left, _COMPARED[type(node)], node.right
            if isinstance(literal, exp.Column):
                column, compare, literal = literal, _TURNED[compare], column
            yield _compared(column, compare, [literal], columns, tables)
        case _:
            raise _OtherQueryError


def _compared(
    node: Any, compare: _Compare, literals: Sequence[Any], columns: pa.Schema, tables: set[str]
) -> tuple[str, _Compare, Any]:
    name = _name(node, columns, tables)
    if name is None:
        raise _OtherQueryError
    kind = columns.field(name).type
    values = [_value(one, kind) for one in literals]
    try:
        array = pa.array(values, kind)
    except (pa.ArrowInvalid, OverflowError) as error:  # a number that the column cannot have
        raise _OtherQueryError from error
    return name, compare, array if compare is pc.is_in else array[0]


def _value(node: Any, kind: pa.DataType) -> Any:
    """Return a literal as a value of a type; only where DuckDB takes it for the same one."""
    if pa.types.is_signed_integer(kind):
        plain = node.this if isinstance(node, exp.Neg) else node
        if isinstance(plain, exp.Literal) and not plain.is_string and plain.is_int:
            return int(plain.this) * (1 if plain is node else -1)
    elif pa.types.is_boolean(kind) and isinstance(node, exp.Boolean):
        return bool(node.this)
    elif isinstance(node, exp.Literal) and node.is_string:
        if pa.types.is_string(kind):
            return str(node.this)
        if kind == MOMENT and _MOMENT.fullmatch(str(node.this)):
            try:
                return datetime.fromisoformat(node.this)
            except ValueError:
                pass
    raise _OtherQueryError
