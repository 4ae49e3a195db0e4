"""``Walk``: what the rules of all operators share while columns are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import unknown_column
from headrace.graph.operators import (
    JobGraph,
    MapBatches,
    Operator,
)
from headrace.plan.expressions import Resolved
from headrace.plan.flows import Flow
from headrace.plan.stages import StreamInfo
from headrace.plan.tables import TableBinder, TableFile


@dataclass
class Walk:
    """What is known so far, by operator, and the mistakes.

    ``operators`` are those of the graph with expressions split and aggregates bound.
    """

    graph: JobGraph
    streams: Mapping[str, StreamInfo]
    files: Mapping[str, TableFile] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)
    operators: dict[str, Operator] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    @cached_property
    def tables(self) -> TableBinder:
        """The broadcast stores."""
        return TableBinder(self.streams, self.files, self.report)

    def report(self, operator: Operator, text: str) -> None:
        """Take a mistake, with the operator and the user's line."""
        where = f" ({operator.site})" if str(operator.site) else ""
        self.mistakes.append(f"operator {operator.name!r}{where}: {text}")

    def can_be_message(self, operator: Operator, columns: Sequence[str], schema: pa.Schema) -> bool:
        """Report columns that a function cannot read, unless there are none."""
        missing = [name for name in columns if name not in schema.names]
        for name in missing:
            self.report(operator, f"uses: {unknown_column(name, schema.names)}")
        bad = [name for name in columns if not name.isidentifier()]
        needs_names = operator.takes is not dict and not isinstance(operator, MapBatches)
        if bad and not missing and needs_names:
            text = f"columns {bad} cannot be attributes of a message; rename them with map first"
            self.report(operator, text)
            return False
        return not missing

    def resolve(self, operator: Operator, resolved: Resolved, method: str) -> bool:
        """Report an expression that has no type here, or looks beyond its row."""
        try:
            _ = resolved.schema
        except InvalidInputError as error:
            self.report(operator, error.message)
            return False
        if resolved.beyond_its_row():
            text = (
                f"{resolved.expression!s} looks beyond its row, but rows come in batches of any "
                f"size: {method} takes expressions of one row; use aggregate or window"
            )
            self.report(operator, text)
            return False
        return True

    def condition(self, operator: Operator, before: Flow, expression: pl.Expr, method: str) -> bool:
        """Report an expression that is not one truth value for each row."""
        resolved = Resolved(expression, before.schema)
        if not self.resolve(operator, resolved, method):
            return False
        kinds = [column.type for column in resolved.schema]
        if kinds != [pa.bool_()]:
            found = ", ".join(map(str, kinds))
            text = f"{method} needs one true or false; {expression!s} gives {found}"
            self.report(operator, text)
            return False
        return True

    def need_key(self, operator: Operator, before: Flow, needed: bool) -> bool:
        """Report a key that was lost on the way, where one is needed."""
        if needed and before.lost is not None:
            text = (
                f"needs the key {list(before.keys)}, but operator {before.lost!r} drops or changes "
                "a column of it; keep it, or partition_by again"
            )
            self.report(operator, text)
            return False
        return True
