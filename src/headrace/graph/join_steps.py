"""Methods of a stream that add columns of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from headrace.graph.arguments import (
    shown,
)
from headrace.graph.durations import Duration
from headrace.graph.joins import (
    LATE_SIDES,
    LATE_WAYS,
    JoinStreams,
    Spans,
    checked_ways,
    joined_stores,
    keys_mistake,
)
from headrace.graph.kept_tables import NOW, Table, join_kept
from headrace.graph.operators import (
    JoinTable,
    Operator,
)
from headrace.graph.sites import user_site
from headrace.graph.steps import Steps
from headrace.graph.tables import (
    JOIN_WAYS,
    BroadcastSpec,
    as_broadcast,
    join_columns,
    taken_columns,
)
from headrace.graph.windows import Window


class JoinSteps(Steps):
    """``join``, ``join_table``."""

    def join(  # noqa: PLR0913 - what a join may be told
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
        grace: Duration = "0s",
        late: str = "drop",
        as_of: str = NOW,
        name: str | None = None,
    ) -> Self:
        """Make pairs of rows of two streams that have one key and are near in event time.

        Both are partitioned by as many columns of the same types, whose names may differ. The
        result has the columns of this stream, the left one, then those of the other. The event
        time of a pair is the later one of its rows, that of a row without a partner its own. Null
        in a key matches nothing.

        With a table: add columns of its row that has the key of each message. The event time stays.

        Args:
            other: the right stream; or a table, from ``table``.
            within: how far apart rows of a pair may be, either way; both ends count.
            before: how much earlier the right row may be; alone, it is never later.
            after: how much later the right row may be; alone, it is never earlier.
            window: in place of these: rows of a pair are in one window, as ``hr.tumbling("1h")``.
            how: ``inner``: only pairs. ``left``, ``right``, ``full``: rows of that side, or of
                both, that no partner came for are sent, too, once none can come any more; the
                columns of the other side are null in them.
            columns: of the other stream to add, or a dict from new name to column. Default: all
                but its key.
            suffix: what is put after the names of columns of the other stream that this one has.
            grace: how far behind the watermark of its own partition a row may be and still take
                part; one further behind is late.
            late: ``drop``: late rows are counted. ``side_output``: they are also sent to the
                sides ``late_left`` and ``late_right`` of the result, as they came; read both.
            as_of: which row of a table: ``now``: the one there is when the message is read; or
                ``event``: the one that held at its own event time, of a table with ``history=``.
            name: of the operator; the rows of both sides are kept by it.
        """
        if isinstance(other, Table):
            spans = (within, before, after, window)
            is_plain = spans == (None,) * 4 and (grace, late) == ("0s", "drop")
            return join_kept(
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
            if not isinstance(given, Steps):
                wrong.append(f"join takes a stream; found {shown(other)}")
                return JoinStreams(chosen, (self.name, self.name), site)
            if other._ledger is not self._ledger:  # noqa: SLF001 - of the same class
                wrong.append(f"stream {other.name!r} belongs to another graph")
            elif mistake := keys_mistake(self.name, self.keys, other.name, other.keys):
                wrong.append(mistake)
            if as_of != NOW:
                wrong.append("as_of= is for tables; give the other stream .table()")
            reach = Spans(within, before, after, window, grace).checked(wrong)
            checked_ways(wrong, how, late, suffix)
            stores = joined_stores(chosen, reach)
            self._ledger.claim_stores(wrong, chosen, [spec.name for spec in stores])
            taken = taken_columns(columns)
            inputs = (self.name, other.name)
            return JoinStreams(chosen, inputs, site, reach, how, late, taken, suffix, stores)

        made = self._add("join", name, make, self.keys)
        if late == LATE_WAYS[1]:
            sides, port = made._sides, made._port  # noqa: SLF001 - of the same class
            sides |= {side: port(side, site) for side in LATE_SIDES}
            if isinstance(given, Steps):
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
            on: the columns with the key: in the order of the table's key, or a dict from
                column to key column. Default: columns of the same names.
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
            self._ledger.claim_table(wrong, spec)
            if how not in JOIN_WAYS:
                wrong.append(f"join_table(how={how!r}); expected one of {JOIN_WAYS}")
            by = join_columns(wrong, spec, on)
            return JoinTable(chosen, (self.name,), site, spec, by, how, taken_columns(columns))

        return self._add("join_table", name, make, self.keys)
