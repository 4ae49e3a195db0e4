"""Joins: of two streams, of a stream with a table, and of tables; as methods of streams.

``Table`` is what ``table`` returns: the last row of each key. ``JoinTransforms`` and
``TableTransforms`` are the methods of a stream. What a join of two streams is: ``stream_joins``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Self, TypeVar

from headrace.durations import Duration, duration_ms
from headrace.graph.diagnostics import Keys, attempt, shown
from headrace.graph.introspection import renamed_arguments, user_site
from headrace.graph.operators import (
    COLUMNAR,
    Changes,
    JoinKept,
    JoinTable,
    JoinTables,
    KeepTable,
    Operator,
    StoreSpec,
)
from headrace.graph.shared_stores import (
    JOIN_WAYS,
    BroadcastSpec,
    as_broadcast,
    join_columns,
    taken_columns,
)
from headrace.graph.stateless_transforms import StreamBase
from headrace.graph.stream_joins import (
    FULL,
    INNER,
    LATE_SIDES,
    LEFT,
    RIGHT,
    BoundedInterval,
    JoinInterval,
    JoinStreams,
    SameWindow,
)
from headrace.graph.windows import Tumbling, Window

WAYS = (INNER, LEFT, RIGHT, FULL)
LATE_WAYS = ("drop", "side_output")


def _join_interval(
    wrong: list[str],
    within: Duration | None,
    before: Duration | None,
    after: Duration | None,
    window: Window | None,
    allowed_lateness: Duration,
) -> JoinInterval:
    """Return how near rows have to be, in ms; what is wrong is noted."""
    given = [within, before, after, window]
    if given == [None] * 4:
        wrong.append(
            "join of two streams keeps rows for a time: say how far apart in event time rows "
            'of a pair may be, as within="10m", or before= and after=, or that they are in one '
            'window, as window=hr.tumbling("1h")'
        )
    if within is not None and (before is not None or after is not None):
        wrong.append("within= is for both directions: give it, or before= and after=")
    grace_ms = _span(wrong, allowed_lateness, "allowed_lateness", 0)
    if window is not None:
        if given[:3] != [None] * 3:
            wrong.append("window= says which rows are near: leave out within=, before=, after=")
        return _same_window(wrong, window, grace_ms)
    both = _span(wrong, within, "within", 0)
    before_ms = _span(wrong, before, "before", both)
    after_ms = _span(wrong, after, "after", both)
    return BoundedInterval(before_ms, after_ms, grace_ms=grace_ms)


def _span(wrong: list[str], value: Duration | None, what: str, otherwise: int) -> int:
    if value is None:
        return otherwise
    return attempt(wrong, lambda: duration_ms(value, what, least=0), 0)


def _same_window(wrong: list[str], window: object, grace_ms: int) -> JoinInterval:
    if not isinstance(window, Tumbling):
        wrong.append(f'window= of a join takes hr.tumbling("1h"); found {shown(window)}')
        return BoundedInterval(0, 0)
    wrong += window.mistakes
    if window != Tumbling(window.size_ms):
        wrong.append(
            "the window of a join has a size alone: give allowed_lateness= and late= to the join; "
            "it has no early results"
        )
    return SameWindow(window.size_ms, grace_ms=grace_ms)


def checked_ways(wrong: list[str], how: object, late: object, suffix: object) -> None:
    """Check what happens to rows, and of names that both sides have."""
    if how not in WAYS:
        wrong.append(f"join(how={how!r}); expected one of {WAYS}")
    if late not in LATE_WAYS:
        wrong.append(f"join(late={late!r}); expected one of {LATE_WAYS}")
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        wrong.append(f"suffix= is what a name ends in, such as '_right'; found {suffix!r}")


def joined_stores(name: str, reach: JoinInterval) -> tuple[StoreSpec, StoreSpec]:
    """Return the stores of both sides."""
    kept = reach.kept_ms((True, True))
    left, right = (
        StoreSpec(f"{name}.{side}", COLUMNAR, ttl_ms=kept_ms + 1)
        for side, kept_ms in zip((LEFT, RIGHT), kept, strict=True)
    )
    return left, right


def keys_mistake(name: str, keys: Keys, other: str, other_keys: Keys, method: str = "join") -> str:
    """Say what is wrong with the keys of two streams that meet; empty: nothing."""
    for stream, own in ((name, keys), (other, other_keys)):
        if not own:
            return (
                f"{method} brings rows with one key together, but stream {stream!r} is not "
                "partitioned by any: put partition_by(...) before it"
            )
    assert keys
    assert other_keys
    if len(keys) != len(other_keys):
        return (
            f"stream {name!r} is partitioned by {list(keys)}, but {other!r} by "
            f"{list(other_keys)}: partition both by as many columns, in the same order"
        )
    return ""


TABLE_WAYS = ("inner", "left", "full")
NOW, EVENT = "now", "event"
MOMENTS = (NOW, EVENT)
S = TypeVar("S", bound=StreamBase)


class Table(Generic[S]):
    """The latest row of each key; from ``table`` of a stream or of a ``Graph``.

    Args:
        rows: output of the operator that stores it, or of the one that emits its changes.
        is_kept: whether that operator stores it.
        history: how long row versions are kept, if at all.
    """

    def __init__(self, rows: S, *, is_kept: bool, history: Duration | None = None) -> None:
        self._rows, self._kept = rows, rows if is_kept else None
        self.history = history

    def __repr__(self) -> str:
        """Return what stores it, and its key."""
        return f"<table of {self._rows!r}>"

    def _repr_html_(self) -> str:
        """Return what it is made by, drawn, for notebooks."""
        return self._rows._repr_html_()

    @property
    def keys(self) -> Keys:
        """The columns of its key."""
        return self._rows.keys

    def kept(self) -> S:
        """Return the output of the operator that stores it, which is added when first needed."""
        if self._kept is None:
            self._kept = keep_table(self._rows, None, None)
        return self._kept

    def changes(self, name: str | None = None) -> S:
        """Return its changes as a stream: its columns, and ``is_deleted``.

        There is a row for each row that sets a key, and one with ``is_deleted`` and without values
        when an existing key is deleted. For a join of tables, there is a row for each key that
        changed in an epoch; the number of intermediate rows depends on epochs, the last row does
        not.

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
            other: of the same graph, with the same number of key columns, of the same types.
            how: ``inner``: keys that both have; ``left``: all keys of this one; ``full``: all keys
                of either. Missing values are null.
            columns: of the other one to add, or a dict from new name to column. Default: all
                but the key.
            suffix: added to names of the other table's columns that this one has too.
            name: of the operator.
        """
        site = user_site()
        mine = self.kept()
        wrong_other = table_mistake(mine, other)
        is_ours = _is_of(other, mine._diagnostics)  # noqa: SLF001 - its stream
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


def keep_table(rows: S, history: Duration | None, name: str | None) -> S:
    """Add the operator that keeps the last row of each key."""
    site, diagnostics = user_site(), rows._diagnostics  # noqa: SLF001 - its stream

    def make(chosen: str, wrong: list[str]) -> Operator:
        if not rows.keys:
            wrong.append('table keeps a row for each key: put partition_by("...") before it')
        history_ms = None
        if history is not None:
            history_ms = attempt(wrong, lambda: duration_ms(history, "history", least=0), None)
        diagnostics.claim_stores(wrong, chosen, [chosen])
        spec = StoreSpec(chosen, COLUMNAR)
        return KeepTable(chosen, (rows.name,), site, spec, history_ms=history_ms)

    return rows._add("table", name, make, rows.keys)  # noqa: SLF001 - its stream


def table_mistake(rows: StreamBase, other: object) -> str | None:
    """Say why something cannot be the table that a stream or table is joined with."""
    if not isinstance(other, Table):
        return f"join takes a table: give it .table(); found {shown(other)}"
    theirs = other.kept()
    if theirs._diagnostics is not rows._diagnostics:  # noqa: SLF001 - of the same family
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


def _is_of(table: object, diagnostics: object) -> bool:
    """Say whether something is a table of a graph."""
    return isinstance(table, Table) and table.kept()._diagnostics is diagnostics  # noqa: SLF001 - its stream


def join_with_table(
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
    site, diagnostics = user_site(), rows._diagnostics  # noqa: SLF001 - its stream
    mistake = table_mistake(rows, table)
    kept = table.kept().name if _is_of(table, diagnostics) else rows.name

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
                "within=, before=, after=, allowed_lateness= and late= are for two streams; a "
                "table is looked up by its key alone"
            )
        waiting = None
        if as_of == EVENT:
            diagnostics.claim_stores(wrong, chosen, [chosen])
            waiting = StoreSpec(chosen, COLUMNAR)
        taken = taken_columns(columns)
        inputs = (rows.name, kept)
        return JoinKept(chosen, inputs, site, how, taken, suffix, waiting=waiting)

    return rows._add("join", name, make, rows.keys)  # noqa: SLF001 - its stream


class JoinTransforms(StreamBase):
    """``join``, ``join_table``."""

    @renamed_arguments(grace="allowed_lateness")
    def join(  # noqa: PLR0913 - a join has so many options
        self,
        other: Self | Table[Self],
        *,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        window: Window | None = None,
        how: str = "inner",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        suffix: str | None = None,
        allowed_lateness: Duration = "0s",
        late: str = "drop",
        as_of: str = NOW,
        name: str | None = None,
    ) -> Self:
        """Make pairs of rows of two streams with the same key that are close in event time.

        Both are partitioned by the same number of columns, of the same types; names can differ.
        The result has the columns of this stream, the left one, then those of the other. A pair
        has the later event time of its rows, a row without a partner its own. Null in a key
        matches nothing.

        With a table: add columns of the table's row with the key of each message. The event time
        stays.

        Args:
            other: the right stream; or a table, from ``table``.
            within: how far apart rows of a pair can be, in both directions; both ends count.
            before: how much earlier the right row can be; alone, it is never later.
            after: how much later the right row can be; alone, it is never earlier.
            window: instead of these: rows of a pair are in the same window, such as
                ``hr.tumbling("1h")``.
            how: ``inner``: only pairs. ``left``, ``right``, ``full``: rows of that side, or of
                both, without a partner are emitted too, when no partner can arrive any more, with
                null in the columns of the other side.
            columns: of the other stream to add, or a dict from new name to column. Default: all
                but its key.
            suffix: added to names of the other stream's columns that this stream has too.
            allowed_lateness: how far behind the watermark of its own partition a row can be; a row
                further behind is late.
            late: ``drop``: late rows are counted. ``side_output``: they also go unchanged to the
                side outputs ``late_left`` and ``late_right`` of the result; read both.
            as_of: which row of a table: ``now``: the current one when the message is read; or
                ``event``: the one valid at the message's event time, for a table with
                ``history=``.
            name: of the operator; the rows of both sides are stored under it.
        """
        if isinstance(other, Table):
            spans = (within, before, after, window)
            is_plain = spans == (None,) * 4 and (allowed_lateness, late) == ("0s", "drop")
            return join_with_table(
                self,
                other,
                how=how,
                columns=columns,
                suffix=suffix,
                as_of=as_of,
                name=name,
                is_plain=is_plain,
            )
        site = user_site()
        given: object = other

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not isinstance(given, StreamBase):
                wrong.append(f"join takes a stream; found {shown(other)}")
                return JoinStreams(chosen, (self.name, self.name), site)
            if other._diagnostics is not self._diagnostics:  # noqa: SLF001 - of the same class
                wrong.append(f"stream {other.name!r} belongs to another graph")
            elif mistake := keys_mistake(self.name, self.keys, other.name, other.keys):
                wrong.append(mistake)
            if as_of != NOW:
                wrong.append("as_of= is for tables; give the other stream .table()")
            reach = _join_interval(wrong, within, before, after, window, allowed_lateness)
            checked_ways(wrong, how, late, suffix)
            stores = joined_stores(chosen, reach)
            self._diagnostics.claim_stores(wrong, chosen, [spec.name for spec in stores])
            taken = taken_columns(columns)
            inputs = (self.name, other.name)
            return JoinStreams(chosen, inputs, site, reach, how, late, taken, suffix, stores)

        made = self._add("join", name, make, self.keys)
        if late == LATE_WAYS[1]:
            sides, port = made._sides, made._port  # noqa: SLF001 - of the same class
            sides |= {side: port(side, site) for side in LATE_SIDES}
            if isinstance(given, StreamBase):
                sides[LATE_SIDES[1]].keys = other.keys
        return made

    def join_table(
        self,
        table: BroadcastSpec,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        how: str = "left",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Self:
        """Add columns of a broadcast store, looked up by the key of each message.

        Needs no ``partition_by``: each task has the whole table. Null matches nothing.

        Args:
            table: from ``hr.broadcast``.
            on: the columns with the key: in the order of the table's key, or a dict from column to
                key column. Default: columns with the same names.
            how: ``left`` keeps messages without a match, with nulls; ``inner`` drops them.
            columns: of the table to add, or a dict from new name to column. Default: all but
                the key.
            name: of the operator.
        """
        site = user_site()
        spec = as_broadcast(table)

        def make(chosen: str, wrong: list[str]) -> Operator:
            if spec is None:
                wrong.append(f"join_table takes hr.broadcast(...); found {shown(table)}")
                return JoinTable(chosen, (self.name,), site)
            self._diagnostics.claim_table(wrong, spec)
            if how not in JOIN_WAYS:
                wrong.append(f"join_table(how={how!r}); expected one of {JOIN_WAYS}")
            by = join_columns(wrong, spec, on)
            return JoinTable(chosen, (self.name,), site, spec, by, how, taken_columns(columns))

        return self._add("join_table", name, make, self.keys)


class TableTransforms(StreamBase):
    """``table``."""

    def table(self, *, history: Duration | None = None, name: str | None = None) -> Table[Self]:
        """Keep the last row of each key, to join streams and other tables with.

        The row that is read last counts. A row deletes its key if all columns are null, except the
        key and the event time; a row with null in its key is skipped. The table's inputs are read
        before any other, to the ends that they have when the job is created.

        Args:
            history: keep row versions by event time, for ``join(as_of="event")``, for rows of a
                stream up to this far behind the watermark.
            name: of the operator; its rows are stored under it.
        """
        return Table(keep_table(self, history, name), is_kept=True, history=history)
