"""What a job's kept tables are made of: the frozen operators behind ``table`` and its joins."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.graph.operators import Operator, StoreSpec

IS_DELETED = "is_deleted"
"""The column of a table's changes that says that the key is no more."""

Columns = tuple[tuple[str, str], ...] | None
"""A new name and a column of the table for each one that a join adds; ``None``: all but the key."""


@dataclass(frozen=True)
class KeepTable(Operator):
    """``table``: the last row of each key of a stream, in a store.

    ``keys`` are its key, and ``values`` the columns that are null together in a row that deletes
    it; found by the planner. Behind a join of tables, rows say so themselves. With ``history_ms``
    the versions of so long are kept, by event time.
    """

    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))
    keys: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    history_ms: int | None = None


@dataclass(frozen=True)
class Changes(Operator):
    """``changes``: the rows of a table as they change, with ``is_deleted``."""


@dataclass(frozen=True)
class JoinKept(Operator):
    """``join`` of a stream, its first input, with a table of the same key, its second.

    ``by`` are the columns of the stream with the key, found by the planner. With a ``waiting``
    store, rows wait there until event time has passed them, and take the version of the table
    that held at their own.
    """

    how: str = "inner"
    columns: Columns = None
    suffix: str | None = None
    by: tuple[str, ...] = ()
    waiting: StoreSpec | None = None


@dataclass(frozen=True)
class JoinTables(Operator):
    """``join`` of two tables of the same key: what changes of their joined rows.

    The key has the names ``by`` of the first one's, found by the planner.
    """

    how: str = "inner"
    columns: Columns = None
    suffix: str | None = None
    by: tuple[str, ...] = ()


def kept_stores(operator: Operator) -> tuple[StoreSpec, ...]:
    """Return the stores that a table, or a join with one, has."""
    match operator:
        case KeepTable():
            return (operator.store,)
        case JoinKept() if operator.waiting is not None:
            return (operator.waiting,)
    return ()
