"""The contract of sinks: receivers of outputs outside Headrace, such as folders and databases.

A ``Sink`` is plain frozen data that a job declares and that travels in its plan. What an epoch
sends to it goes two steps:

1. ``prepare``, in the slots: rows become bytes, which are written durably into the job's
   storage, where no reader of the receiver looks. The manifest of the epoch names these files.
2. ``commit``, in the driver, once that manifest is committed: the ``Receiver`` makes all files of
   the epoch visible. It is called again, by this driver or the next, until it has returned
   once; epoch N returns before N + 1 is committed. So it must be idempotent under
   (job, lineage, epoch, operator), and it must tell whether an epoch is in the receiver by
   what is in the receiver.

``prepare`` is where rows are refused: a committed epoch cannot be taken back, so what
``commit`` cannot do it must be able to do later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from headrace.clock import Clock
from headrace.errors import InternalError, UnavailableError
from headrace.files import Bytes, Files

NO_TIME = -(1 << 62)
"""The watermark of those who do not know any; that of the end of the inputs is as far ahead."""


class ReceiverAwayError(UnavailableError):
    """The receiver of a sink does not answer. The committed epoch waits: a running job goes on."""

    code = "HR208"
    move = "bring the receiver back; what is committed is handed on then"


@dataclass(frozen=True)
class SinkSite:
    """Who sends to a receiver, and what it needs.

    Args:
        job: its name.
        operator: the ``send_to``; with the job it names the sender for good.
        schema: of the rows.
        clock: time and names.
        files: the file system.
    """

    job: str
    operator: str
    schema: pa.Schema
    clock: Clock
    files: Files


@dataclass(frozen=True)
class Prepared:
    """A file that ``prepare`` made, verified; it stays as it is until the commit has returned.

    Args:
        path: where it lies.
        rows: how many it holds.
    """

    path: Path
    rows: int


@dataclass(frozen=True)
class SinkEpoch:
    """All that one epoch sends to one sink; at least one file, but for sinks that follow time.

    Args:
        lineage: of the epoch: together with job and operator it says which epochs are comparable.
        epoch: its number; within a lineage they only grow.
        files: in a fixed order, in which the rows of one key are in theirs.
        watermark: of what reaches the sink, after the epoch, ms; told where the sink follows time.
    """

    lineage: str
    epoch: int
    files: tuple[Prepared, ...]
    watermark: int = NO_TIME

    @property
    def rows(self) -> int:
        """How many rows they hold together."""
        return sum(file.rows for file in self.files)


class Receiver(ABC):
    """The driver's side of a sink: opened at the job's start, for one thread."""

    @abstractmethod
    def commit(self, epoch: SinkEpoch) -> None:
        """Make an epoch visible, whole and once, however often this is called.

        Raises:
            ReceiverAwayError: it does not answer; nothing of the epoch, or all of it, is there.
                The driver tells so, and calls again.
            InvalidInputError: it refuses the rows; the user has to put it in order, and the
                next driver calls again.
        """

    def held(self, files: Sequence[Prepared]) -> pa.Table:
        """Return the rows that it has of the keys of prepared ones; of sinks that ``tells_rows``.

        Asked while the job sends nothing, for a merge function to choose between these and rows
        over old data.

        Raises:
            ReceiverAwayError: it does not answer.
            InvalidInputError: what it has cannot be told.
        """
        raise InternalError("the receiver does not tell what it has")

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what is open; a commit after it opens anew."""


class Sink(ABC):
    """A receiver that ``send_to`` takes; subclass it for others.

    Its parts travel to the slots in the job's plan, so a password belongs into the environment.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """A short name, which the operator's is derived from."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Where rows go and how, in words: it must not change under a job that has state."""

    @property
    @abstractmethod
    def promise(self) -> str:
        """What readers of the receiver can rely on; ``explain`` shows it."""

    @property
    @abstractmethod
    def suffix(self) -> str:
        """What the names of prepared files end with, such as ``parquet``."""

    @property
    def follows_time(self) -> bool:
        """Say whether the receiver is told of every epoch and its watermark, also without rows."""
        return False

    @property
    def replaces_by(self) -> tuple[str, ...]:
        """Columns by which a row takes the place of an earlier one; none: each is a new row."""
        return ()

    @property
    def tells_rows(self) -> bool:
        """Say whether its receiver can tell what it has of some keys, see ``Receiver.held``."""
        return False

    def beneath(self) -> Self:
        """Return the sink as it takes results over old data, after those of the live job.

        What it holds of a key stays. The same sink where each row is a new one.

        Raises:
            InvalidInputError: it cannot tell.
        """
        return self

    def bound(self, time: str | None, behind_ms: int) -> Self:
        """Return the sink with what planning has found of its rows.

        Args:
            time: the column that holds their event time, where one does.
            behind_ms: how far that column is behind the event time that rows count by: it may be
                the start of a window.
        """
        del time, behind_ms
        return self

    def mistakes(self) -> list[str]:
        """Return what cannot be, one sentence each; asked when the graph is built."""
        return []

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return what of these columns it cannot take; asked when the graph is planned."""
        return []

    @abstractmethod
    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return the content of one file with all rows of a slot's epoch, in their order.

        Runs in the slots; it touches nothing outside.

        Raises:
            InvalidInputError: a row cannot be received; nothing of the epoch counts.
        """

    @abstractmethod
    def open(self, site: SinkSite) -> Receiver:
        """Return the driver's side, once it is sure that the receiver can take the rows.

        Raises:
            InvalidInputError: it is not as it must be; tells what was found and expected.
            ReceiverAwayError: it does not answer.
        """
