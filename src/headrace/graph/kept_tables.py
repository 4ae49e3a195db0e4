"""``Table``: what ``table`` returns, to be joined with streams and other tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from headrace.graph.arguments import Keys, attempt, shown
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.operators import COLUMNAR, Operator, StoreSpec
from headrace.graph.sites import user_site
from headrace.graph.steps import Steps
from headrace.graph.table_operators import Changes, JoinKept, JoinTables, KeepTable
from headrace.graph.tables import JOIN_WAYS, taken_columns

TABLE_WAYS = ("inner", "left", "full")
NOW, EVENT = "now", "event"
MOMENTS = (NOW, EVENT)
S = TypeVar("S", bound=Steps)


class Table(Generic[S]):
    """The latest row of each key; from ``table`` of a stream or of a ``Graph``.

    Args:
        rows: what leaves the operator that keeps it, or one that sends its changes.
        is_kept: whether that operator keeps it.
        history: how long versions are kept, if they are.
    """

    def __init__(self, rows: S, *, is_kept: bool, history: Duration | None = None) -> None:
        self._rows, self._kept = rows, rows if is_kept else None
        self.history = history

    @property
    def keys(self) -> Keys:
        """The columns of its key."""
        return self._rows.keys

    def kept(self) -> S:
        """Return what leaves the operator that keeps it, which is added when first needed."""
        if self._kept is None:
            self._kept = keep(self._rows, None, None)
        return self._kept

    def changes(self, name: str | None = None) -> S:
        """Return its changes as a stream: its columns, and ``is_deleted``.

        A row for each row that sets a key, and one with ``is_deleted`` and without values where a
        key that was there is deleted. Of a join of tables: a row for each key that changed in an
        epoch; how many come in between depends on epochs, the last one does not.

        Args:
            name: of the operator.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if self.history is not None:
                wrong.append("changes() is for tables without history=")
            return Changes(chosen, (self._rows.name,), site)

        return self._rows._add("changes", name, make, self._rows.keys)  # noqa: SLF001 - its stream

    def join(
        self,
        other: Table[S],
        how: str = "inner",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        suffix: str | None = None,
        name: str | None = None,
    ) -> Table[S]:
        """Join with another table of the same key; the result is a table.

        Args:
            other: of the same graph, with as many key columns of the same types.
            how: ``inner``: keys that both have; ``left``: all of this one; ``full``: all of
                either. What the other side has not is null.
            columns: of the other one to add, or a dict from new name to column. Default: all
                but the key.
            suffix: what is put after the names of columns of the other one that this one has.
            name: of the operator.
        """
        site = user_site()
        mine = self.kept()
        wrong_other = table_mistake(mine, other)
        is_ours = _is_of(other, mine._ledger)  # noqa: SLF001 - its stream
        theirs = other.kept().name if is_ours else mine.name

        def make(chosen: str, wrong: list[str]) -> Operator:
            if how not in TABLE_WAYS:
                wrong.append(f"join(how={how!r}); expected one of {TABLE_WAYS}")
            if wrong_other is not None:
                wrong.append(wrong_other)
            elif self.history is not None or other.history is not None:
                wrong.append("tables with history= are joined with streams only; leave it out")
            taken = taken_columns(columns)
            return JoinTables(chosen, (mine.name, theirs), site, how, taken, suffix)

        joined = mine._add("join", name, make, mine.keys)  # noqa: SLF001 - its stream
        return Table(joined, is_kept=False)


def keep(rows: S, history: Duration | None, name: str | None) -> S:
    """Add the operator that keeps the last row of each key."""
    site, ledger = user_site(), rows._ledger  # noqa: SLF001 - its stream

    def make(chosen: str, wrong: list[str]) -> Operator:
        if not rows.keys:
            wrong.append('table keeps a row for each key: put partition_by("...") before it')
        history_ms = None
        if history is not None:
            history_ms = attempt(wrong, lambda: duration_ms(history, "history", least=0), None)
        ledger.claim_stores(wrong, chosen, [chosen])
        spec = StoreSpec(chosen, COLUMNAR)
        return KeepTable(chosen, (rows.name,), site, spec, history_ms=history_ms)

    return rows._add("table", name, make, rows.keys)  # noqa: SLF001 - its stream


def table_mistake(rows: Steps, other: object) -> str | None:
    """Say why something cannot be the table that a stream or table is joined with."""
    if not isinstance(other, Table):
        return f"join takes a table: give it .table(); found {shown(other)}"
    theirs = other.kept()
    if theirs._ledger is not rows._ledger:  # noqa: SLF001 - of the same family
        return f"table {theirs.name!r} belongs to another graph"
    if theirs.name == rows.name:
        return f"table {theirs.name!r} is joined with itself"
    if not rows.keys or not theirs.keys:
        return 'a join with a table looks up its key: put partition_by("...") before both'
    if len(theirs.keys) != len(rows.keys):
        return (
            f"{rows.name!r} is partitioned by {list(rows.keys)}, but table {theirs.name!r} has the "
            f"key {list(theirs.keys)}: partition both by as many columns, in the same order"
        )
    return None


def _is_of(table: object, ledger: object) -> bool:
    """Say whether something is a table of a graph."""
    return isinstance(table, Table) and table.kept()._ledger is ledger  # noqa: SLF001 - its stream


def join_kept(
    rows: S,
    table: Table[S],
    *,
    how: str,
    columns: Sequence[str] | Mapping[str, str] | None,
    suffix: str | None,
    as_of: str,
    name: str | None,
    is_plain: bool,
) -> S:
    """Add columns of the row of a table that has the key of each message; see ``Stream.join``.

    Args:
        rows: of the stream.
        table: of the same key.
        how: ``inner`` or ``left``.
        columns: of the table to add.
        suffix: of names that are there twice.
        as_of: ``now`` or ``event``.
        name: of the operator.
        is_plain: whether nothing was given that is for two streams only.
    """
    site, ledger = user_site(), rows._ledger  # noqa: SLF001 - its stream
    mistake = table_mistake(rows, table)
    kept = table.kept().name if _is_of(table, ledger) else rows.name

    def make(chosen: str, wrong: list[str]) -> Operator:
        if how not in JOIN_WAYS:
            wrong.append(f"join(how={how!r}) with a table; expected one of {JOIN_WAYS}")
        if as_of not in MOMENTS:
            wrong.append(f"join(as_of={as_of!r}); expected one of {MOMENTS}")
        if mistake is not None:
            wrong.append(mistake)
        elif as_of == EVENT and table.history is None:
            wrong.append(
                'join(as_of="event") needs the versions of the table: give it history="..."'
            )
        elif as_of == NOW and table.history is not None:
            wrong.append('a table with history= is joined with as_of="event"')
        if not is_plain:
            wrong.append(
                "within=, before=, after=, grace= and late= are for two streams; a table is looked "
                "up by its key alone"
            )
        waiting = None
        if as_of == EVENT:
            ledger.claim_stores(wrong, chosen, [chosen])
            waiting = StoreSpec(chosen, COLUMNAR)
        taken = taken_columns(columns)
        inputs = (rows.name, kept)
        return JoinKept(chosen, inputs, site, how, taken, suffix, waiting=waiting)

    return rows._add("join", name, make, rows.keys)  # noqa: SLF001 - its stream
