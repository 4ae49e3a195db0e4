"""Sinks: receivers of outputs outside Headrace, such as folders, databases and daily tables.

``Sink`` is data in the job's plan; ``Receiver`` is the driver's side, which takes each committed
epoch once. ``DailyTable`` is the sink of ``Graph.output_table``: a partition for each day.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa

from headrace import plugins
from headrace.clock import Clock
from headrace.config import Settings
from headrace.durations import Duration, duration_ms, duration_text
from headrace.errors import HeadraceError, InternalError, InvalidInputError, UnavailableError
from headrace.files import Bytes, Files
from headrace.graph.aggregates import unknown_column

NO_TIME = -(1 << 62)
"""The watermark of those who do not know any; that of the end of the inputs is as far ahead."""


class ReceiverAwayError(UnavailableError):
    """The receiver of a sink does not answer. The committed epoch waits, and the job retries."""

    code = "HR208"
    move = "bring the receiver back; committed rows are passed on then"


@dataclass(frozen=True)
class SinkSite:
    """The sender of a receiver, and its environment.

    Args:
        job: its name.
        operator: the ``send_to``; with the job, it permanently identifies the sender.
        schema: of the rows.
        clock: time and names.
        files: the file system.
        generation: of the sending driver; each has a higher one than all before it. A driver can
            freeze in ``commit`` and wake when the next one has committed later epochs. A receiver
            that stores the highest generation seen, in the step that makes rows visible, can
            refuse the older driver. 0: a command sends, not a driver.
        origin: identifies the job as long as it exists; generations are comparable within one
            origin.
    """

    job: str
    operator: str
    schema: pa.Schema
    clock: Clock
    files: Files
    generation: int = 0
    origin: str = ""


@dataclass(frozen=True)
class Prepared:
    """A verified file that ``prepare`` made; it does not change until the commit has returned.

    Args:
        path: of the file.
        rows: how many it contains.
    """

    path: Path
    rows: int


@dataclass(frozen=True)
class SinkEpoch:
    """What one epoch sends to one sink: at least one file, unless the sink follows time.

    Args:
        lineage: of the epoch; epochs of the same job, operator and lineage are comparable.
        epoch: its number; within a lineage, numbers only grow.
        files: in a fixed order, which keeps the rows of one key in order.
        watermark: of the sink's input after the epoch, ms; for sinks that follow time.
    """

    lineage: str
    epoch: int
    files: tuple[Prepared, ...]
    watermark: int = NO_TIME

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)


class Receiver(ABC):
    """The driver's side of a sink: opened at the job's start, for one thread."""

    @abstractmethod
    def commit(self, epoch: SinkEpoch) -> None:
        """Make an epoch visible, completely and once, however often this is called.

        Raises:
            NotOwnerError: a driver of a newer generation sends now; nothing was changed.
            ReceiverAwayError: it does not answer; nothing of the epoch, or all of it, is there.
                The driver reports this, and calls again.
            InvalidInputError: it refuses the rows; the user must fix it, and the next driver calls
                again.
        """

    def share_out(self, epoch: SinkEpoch) -> bool:
        """Return whether slots may pass on the files of an epoch, each a share of its own.

        Called before they do; which epochs that is may depend on nothing but the epoch. ``commit``
        of the same epoch then passes on what no slot has.

        Raises:
            NotOwnerError: a driver of a newer generation sends now.
            ReceiverAwayError: it does not answer.
        """
        del epoch
        return False

    def held(self, files: Sequence[Prepared]) -> pa.Table:
        """Return its rows of the keys in prepared files; for sinks with ``reports_rows``.

        Called while the job sends nothing, for a merge function that chooses between these and the
        rows of a backfill.

        Raises:
            ReceiverAwayError: it does not answer.
            InvalidInputError: its rows cannot be returned.
        """
        raise InternalError("the receiver does not return what it has")

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Close what is open; a later commit opens it again."""


class Sink(ABC):
    """A receiver that ``send_to`` takes; subclass it for others.

    Its parts travel to the slots in the job's plan, so keep passwords in the environment.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """A short name; the operator's name is derived from it."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Where rows go and how, as text; it must not change while a job has state."""

    @property
    @abstractmethod
    def promise(self) -> str:
        """The guarantee for readers of the receiver; ``explain`` shows it."""

    @property
    @abstractmethod
    def suffix(self) -> str:
        """The end of the names of prepared files, such as ``parquet``."""

    @property
    def follows_time(self) -> bool:
        """Return whether the receiver gets every epoch and its watermark, also without rows."""
        return False

    @property
    def replaces_by(self) -> tuple[str, ...]:
        """Columns by which a row replaces an earlier one; none: each is a new row."""
        return ()

    @property
    def reports_rows(self) -> bool:
        """Return whether its receiver can return the rows of given keys; see ``Receiver.held``."""
        former = getattr(self, "tells_rows", None)
        if former is None:
            return False
        warnings.warn(
            f"{type(self).__name__}.tells_rows is reports_rows now; the old name works for one "
            "more release",
            DeprecationWarning,
            stacklevel=2,
        )
        return bool(former)

    def beneath(self) -> Self:
        """Return the sink for the results of a backfill, after those of the live job.

        A row that exists for a key stays. Returns this sink if each row is a new one.

        Raises:
            InvalidInputError: it cannot keep existing rows.
        """
        return self

    def bound(self, time: str | None, behind_ms: int) -> Self:
        """Return the sink with what planning found out about its rows.

        Args:
            time: the column that contains their event time, if there is one.
            behind_ms: how far that column is behind the rows' event time, because it can be the
                start of a window.
        """
        del time, behind_ms
        return self

    def deployed(self, settings: Settings) -> Sink:
        """Return the sink with its part of a run's settings; called when the job is deployed."""
        del settings
        return self

    def mistakes(self) -> list[str]:
        """Return the mistakes, one sentence each; called when the graph is built."""
        return []

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return the mistakes: columns that it cannot take. Called when the graph is planned."""
        return []

    @abstractmethod
    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return the content of one file with all rows of a slot's epoch, in their order.

        Runs in the slots; it must not touch anything outside.

        Raises:
            InvalidInputError: a row cannot be sent; nothing of the epoch counts.
        """

    @property
    def sends_at_once(self) -> bool:
        """Return whether slots send rows while an epoch runs, by ``send``, at least once."""
        return False

    def send(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
        """Send all rows of a slot's epoch, for a sink that ``sends_at_once``.

        Runs in the slots, in the place of ``prepare``; again, if the epoch is run again.

        Raises:
            InvalidInputError: a row cannot be sent; nothing of the epoch counts.
            UnavailableError: the receiver does not answer; the epoch is run again.
        """
        raise InternalError("the sink does not send at once")

    def open_share(self, site: SinkSite, share: int) -> Receiver:
        """Return what takes one share of each epoch, for a sink whose receivers ``share_out``.

        Runs in the slots, and for the driver where they did not pass one on. Its ``commit`` gets
        epochs of one file.

        Args:
            site: of the driver.
            share: its number, from 0.

        Raises:
            NotOwnerError: a driver of a newer generation sends now.
            ReceiverAwayError: it does not answer.
        """
        raise InternalError("the sink has no shares")

    @abstractmethod
    def open(self, site: SinkSite) -> Receiver:
        """Return the driver's side, after checking that the receiver can take the rows.

        Raises:
            InvalidInputError: it cannot take the rows; says what was found and expected.
            ReceiverAwayError: it does not answer.
        """


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
        late: what happens to a row whose day was complete when it came.
        allowed_lateness: how far the watermark must be past a day for the day to be complete.
        retention: how many days are kept, from the newest on; ``None``: all.
        form: ``parquet`` or ``delta``.
        behind_ms: how far the column is behind the event time of rows, set when planned.
    """

    name: str
    time: str | None = None
    sort_by: tuple[str, ...] = ()
    late: str = ADD
    allowed_lateness: Duration = "0s"
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
        """The guarantee for readers."""
        late = {
            ADD: "are added to it",
            "drop": "are dropped",
            "dead_letter": "become dead letters",
            "fail": "fail the job",
        }[self.late]
        after = "" if not self.grace_ms else f" and {duration_text(self.grace_ms)}"
        return (
            f"exactly-once: {self.commits}; a day is complete, with a file _SUCCESS, when the "
            f"watermark has passed its end{after}; rows after that {late}"
        )

    @property
    def commits(self) -> str:
        """How readers see an epoch, in words; known where the table is bound to its warehouse."""
        return "an epoch is there whole or not at all"

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
        return duration_ms(self.allowed_lateness, "allowed_lateness", least=0)

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

    def deployed(self, settings: Settings) -> Sink:
        """Return the sink that writes into the warehouse of a run."""
        return installed_warehouse().table_sink(self, settings)

    def mistakes(self) -> list[str]:
        """Return the mistakes."""
        wrong = []
        if self.late not in LATE:
            wrong.append(f"late is {self.late!r}; expected one of {', '.join(LATE)}")
        if self.form not in FORMS:
            wrong.append(f"format is {self.form!r}; expected one of {', '.join(FORMS)}")
        for name, least in (("allowed_lateness", 0), ("retention", DAY_MS)):
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


class StoredDay(Protocol):
    """A day of a stored table."""

    @property
    def day(self) -> str:
        """Such as ``2013-01-31``."""

    @property
    def is_complete(self) -> bool:
        """Whether the watermark has passed it."""


class StoredTable(Protocol):
    """One snapshot of a table, as those see it who read it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def time(self) -> str:
        """The column that determines the day."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns, without the partition column."""

    @property
    def version(self) -> int:
        """The number of the snapshot; each change has a higher one."""

    @property
    def days(self) -> Sequence[StoredDay]:
        """Its days, in order."""

    is_delta: bool

    @property
    def is_remote(self) -> bool:
        """Say whether it is in an object storage; its files are then copies on this host."""

    def files(self, days: str | None = None) -> list[str]:
        """Return the files with the rows of days."""

    def places(self, days: str | None = None) -> list[str]:
        """Return the same without fetching them: paths that ``headrace.files`` reads."""

    def batches(self, days: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of days, file by file, the oldest day first."""


class Warehouse(Protocol):
    """What keeps tables by day: a plug-in."""

    def table_sink(self, table: DailyTable, settings: Settings) -> Sink:
        """Return the sink that writes a table."""

    def named_table(self, warehouse: Path, name: str) -> StoredTable:
        """Return a table of a folder by its name."""

    def readable_tables(
        self, warehouse: Path
    ) -> tuple[Sequence[StoredTable], dict[str, HeadraceError]]:
        """Return the readable tables in a folder, and why the others cannot be read."""


def installed_warehouse() -> Warehouse:
    """Return the warehouse, which is loaded when a job or a reader first uses a table.

    Raises:
        InvalidInputError: it is not installed.
    """
    found: Warehouse = plugins.load(plugins.TABLES, "warehouse")
    return found
