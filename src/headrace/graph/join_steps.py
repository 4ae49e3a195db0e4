"""Methods of a stream that add columns of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from headrace.graph.arguments import (
    shown,
)
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


class JoinSteps(Steps):
    """``join_table``."""

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
