"""Tables of a warehouse as ``Graph.output_table`` names them: data in the job's plan.

Where the folder is and how rows become files is bound at deployment, by ``headrace.warehouse``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from headrace.errors import InternalError, InvalidInputError
from headrace.files import Bytes
from headrace.graph.aggregates import unknown_column
from headrace.graph.durations import Duration, duration_ms, duration_text
from headrace.graph.sinks import Receiver, Sink, SinkSite

ADD = "add"
LATE = (ADD, "drop", "dead_letter", "fail")
FORMS = ("parquet", "delta")
PARTITION = "ds"
LATE_ROW = "__late"
"""A column beside those of the table, on the way to ``prepare``: which rows are late."""
DAY_MS = 86_400_000


@dataclass(frozen=True)
class DailyTable(Sink):
    """A table with a partition for each day; made by ``Graph.output_table``.

    Args:
        name: of the table, and of its folder.
        time: the column whose day in UTC counts; ``None``: the event time's.
        sort_by: columns that rows of a file are sorted by; empty: the time.
        late: what becomes of a row whose day was complete when it came.
        grace: how far the watermark is past a day when the day is complete.
        retention: how many days are kept, from the newest on; ``None``: all.
        form: ``parquet`` or ``delta``.
        behind_ms: how far the column is behind the event time of rows, set when planned.
    """

    name: str
    time: str | None = None
    sort_by: tuple[str, ...] = ()
    late: str = ADD
    grace: Duration = "0s"
    retention: Duration | None = None
    form: str = "parquet"
    behind_ms: int = 0

    @property
    def label(self) -> str:
        """The table's name."""
        return self.name

    @property
    def identity(self) -> str:
        """The table and its form."""
        return f"table {self.name} of the warehouse, {self.form} by day"

    @property
    def promise(self) -> str:
        """What readers can rely on."""
        late = {
            ADD: "are added to it",
            "drop": "are dropped",
            "dead_letter": "become dead letters",
            "fail": "fail the job",
        }[self.late]
        after = "" if not self.grace_ms else f" and {duration_text(self.grace_ms)}"
        if self.form == "delta":
            return (
                "exactly-once: an epoch is one version; a day is complete, with a file _SUCCESS, "
                f"when the watermark has passed its end{after}; rows after that {late}"
            )
        return (
            f"exactly-once: an epoch is there whole or not at all, and once; read {self.name}/*/"
            f"*.parquet; a day is complete, with a file _SUCCESS, when the watermark has passed its"
            f" end{after}; rows after that {late}"
        )

    @property
    def suffix(self) -> str:
        """What names of prepared files end with."""
        return "days"

    @property
    def follows_time(self) -> bool:
        """Days become complete by the watermark, with rows or without."""
        return True

    @property
    def grace_ms(self) -> int:
        """The grace, ms."""
        return duration_ms(self.grace, "grace", least=0)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that rows of a day are sorted by."""
        return self.sort_by or ((self.time,) if self.time else ())

    def ends_ms(self, day: int) -> int:
        """Return the watermark at which a day, counted from 1970, is complete."""
        return (day + 1) * DAY_MS + self.grace_ms + self.behind_ms

    def bound(self, time: str | None, behind_ms: int) -> Self:
        """Take the event-time column where the user named none."""
        if self.time is not None:
            return self
        return dataclasses.replace(self, time=time, behind_ms=behind_ms)

    def mistakes(self) -> list[str]:
        """Return what cannot be."""
        wrong = []
        if self.late not in LATE:
            wrong.append(f"late is {self.late!r}; expected one of {', '.join(LATE)}")
        if self.form not in FORMS:
            wrong.append(f"format is {self.form!r}; expected one of {', '.join(FORMS)}")
        for name, least in (("grace", 0), ("retention", DAY_MS)):
            value = getattr(self, name)
            if value is None:
                continue
            try:
                duration_ms(value, name, least=least)
            except InvalidInputError as error:
                wrong.append(error.message)
        return wrong

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return what is wrong with the columns that it goes by."""
        if self.time is None:
            return ["its rows have no event-time column here; give g.output_table(..., time=...)"]
        wrong = [
            f"table {self.name!r}: {unknown_column(column, schema.names)}"
            for column in dict.fromkeys((self.time, *self.sort_by))
            if column not in schema.names
        ]
        if wrong:
            return wrong
        kind = schema.field(self.time).type
        if not (pa.types.is_timestamp(kind) or kind == pa.int64()):
            wrong.append(
                f"column {self.time!r} is {kind}; expected a timestamp, or int64 milliseconds"
            )
        taken = [name for name in schema.names if name.lower() == PARTITION]  # as SQL sees names
        wrong += [
            f"column {name!r} has the name of the partition by day; rename it with map"
            for name in taken
        ]
        if self.form == "delta":
            wrong += _no_delta(schema)
        nested = [name for name in self.sort_by if pa.types.is_nested(schema.field(name).type)]
        if nested:
            wrong.append(f"columns {nested} are lists or structs, which have no order to sort by")
        return wrong

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Refuse: it was not deployed."""
        raise InternalError(f"table {self.name!r} is not bound to a warehouse")

    def open(self, site: SinkSite) -> Receiver:
        """Refuse: it was not deployed."""
        raise InternalError(f"table {self.name!r} is not bound to a warehouse")


def _no_delta(schema: pa.Schema) -> list[str]:
    """Return the columns that Delta has no type for."""
    tests = (pa.types.is_unsigned_integer, pa.types.is_duration, pa.types.is_float16)
    return [
        f"column {field.name!r} is {field.type}, which Delta has no type for; cast it with map"
        for field in schema
        if any(test(field.type) for test in tests)
    ]
