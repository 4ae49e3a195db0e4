"""What a query of an SQL app reads: rows with named columns, and what names in it mean.

``Relation`` is the base of what is read and made; ``queries`` makes the others of queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from headrace.graph.operators import Site
from headrace.sql.statements import InputTable, SqlText, near, place_of

Span = tuple[int, int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Relation:
    """Rows with columns in an order.

    ``times`` has the columns that follow the event time of their row: by how many milliseconds
    they are ahead of it, at least and at most. ``is_total``: rows are results of aggregates.
    """

    columns: tuple[str, ...]
    times: Mapping[str, Span] = field(default_factory=dict)
    is_total: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Reading(Relation):
    """The rows of an input table."""

    table: InputTable
    site: Site


@dataclass(frozen=True)
class Scope:
    """What names of columns mean in a query.

    ``tables`` has for each table its columns, and what these are called in the rows.
    """

    source: SqlText
    tables: Mapping[str, Mapping[str, str]]

    def named(self, name: str) -> list[str]:
        """Return what a column without a table can mean, in the order of the tables."""
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
            return _column(head, found, inner)

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


def _column(head: Any, name: str, inner: list[Any]) -> exp.Column:
    """Return a column of the rows, or the field of one that is a struct."""
    own = exp.Identifier(this=name, quoted=True)
    own.meta.update(head.meta)
    if not inner:
        return exp.Column(this=own)
    return exp.Column(this=inner[-1].copy(), table=own)
