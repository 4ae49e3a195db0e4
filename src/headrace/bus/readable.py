"""The contract of a readable log: what a job needs of the streams that it reads.

A log has partitions, and in each of them rows by offset: a range of offsets is read again and again
with the same rows. Streams of the bus are such logs, and so is what a ``LogConnector`` opens at an
address elsewhere, such as a topic of Kafka. ``headrace.testing.log_contract`` is the contract as a
test suite. Everything here is safe to call from many threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headrace import plugins
from headrace.bus.spec import Appended, AppendedUpTo, OffsetBatch, StreamSpec
from headrace.errors import InvalidInputError, UnavailableError
from headrace.redaction import without_login

NEVER = 2**63 - 1
FOLLOW_CHECK_S = 0.2
FAIL, EARLIEST, LATEST = EXPIRED_POLICIES = ("fail", "earliest", "latest")
"""What a job does whose next rows are gone: fail, or continue with the oldest or at the end."""

Taker = Callable[[int, bytes, InvalidInputError], None]
"""Takes a row that cannot be read: its offset, its bytes, and why."""


class LogAwayError(UnavailableError):
    """The server of a log does not answer. The epoch is dropped, and the job tries again."""

    code = "HR212"
    move = "bring it back; the job continues where it was"


class ReadableLog(ABC):
    """A partitioned log of rows that is read by offset.

    ``identity`` is unique: a log that is removed and created again under the same name has another
    one, so that offsets are only compared within one log. It is empty if unknown. ``expired`` says
    what a job does when its next rows are gone: one of ``EXPIRED_POLICIES``.
    """

    spec: StreamSpec
    identity: str
    expired: str = FAIL

    @abstractmethod
    def begins(self) -> list[int]:
        """Return the first readable offset of each partition."""

    @abstractmethod
    def ends(self) -> list[int]:
        """Return the next offset of each partition."""

    @abstractmethod
    def read(
        self,
        partition: int,
        start: int,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[OffsetBatch]:
        """Yield the rows of [start, stop) in order, in batches as they were appended.

        In a compacted stream, batches can lack offsets, or be empty; together they cover the
        range.

        The batches can be views of mapped files; they stay valid after later appends and after
        ``close``.

        Args:
            partition: from 0.
            start: first offset wanted.
            stop: offset to stop before; ``None``: the end at the time of the call.
            columns: names of the columns to read, in this order; ``None``: all.
            max_rows: ends after this many rows.
            max_bytes: ends after about this many bytes of the wanted columns, and at least
                one row.

        Raises:
            OffsetGoneError: offsets that were removed, before the call or while reading.
            InvalidInputError: offsets that are not in the partition, or unknown columns.
            CorruptDataError: damaged bytes, named by file and position.
        """

    @abstractmethod
    def offset_at(self, partition: int, time_ms: int) -> int:
        """Return the offset to start from to read all rows from an event time on.

        This is the first row at or after ``time_ms`` in the first append that has one; later
        appends can contain earlier rows again. The partition's end if there is none.
        """

    @abstractmethod
    def time_range(self, partition: int) -> tuple[int, int] | None:
        """Return the lowest and highest event time in ms; ``None`` if there is none."""

    @abstractmethod
    def wait(self, ends: Sequence[int], timeout_s: float) -> list[int]:
        """Return the ends as soon as one of them is beyond the given one, or at the timeout.

        For partitions that were added since, the wait is from their beginning.
        """

    def wait_unless(
        self, ends: Sequence[int], timeout_s: float, is_over: Callable[[], bool]
    ) -> list[int]:
        """Wait as ``wait`` does; also return when ``wake`` is called and ``is_over`` is true.

        A stream that cannot be woken waits as usual.
        """
        return self.wait(ends, 0.0 if is_over() else timeout_s)

    @property
    def is_polled(self) -> bool:
        """Whether appends of other processes are looked for, and each look has a price."""
        return False

    def wake(self) -> None:  # noqa: B027 - a stream need not be able to
        """Let all calls of ``wait_unless`` check ``is_over`` again."""

    def follow(
        self,
        partition: int,
        start: int,
        *,
        stopped: Callable[[], bool],
        columns: Sequence[str] | None = None,
    ) -> Iterator[OffsetBatch]:
        """Yield rows from ``start`` on as they arrive, without end.

        Args:
            partition: from 0.
            start: first offset wanted.
            stopped: called after each batch and at least five times a second; true ends it.
            columns: as for ``read``.
        """
        while not stopped():
            for found in self.read(partition, start, columns=columns):
                start = found.next_offset
                yield found
                if stopped():
                    return
            known = [NEVER] * self.spec.partitions
            known[partition] = start
            self.wait(known, FOLLOW_CHECK_S)


class DelegatedLog(ReadableLog):
    """A log that is read as another one is: ``_log``, which a subclass sets."""

    _log: ReadableLog

    def begins(self) -> list[int]:
        """Return the first readable offset of each partition."""
        return self._log.begins()

    def ends(self) -> list[int]:
        """Return the next offset of each partition."""
        return self._log.ends()

    def read(
        self,
        partition: int,
        start: int,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[OffsetBatch]:
        """Yield the rows of [start, stop) in order."""
        return self._log.read(
            partition, start, stop, columns=columns, max_rows=max_rows, max_bytes=max_bytes
        )

    def offset_at(self, partition: int, time_ms: int) -> int:
        """Return the offset to start from to read all rows from a time on."""
        return self._log.offset_at(partition, time_ms)

    def time_range(self, partition: int) -> tuple[int, int] | None:
        """Return the lowest and highest event time, if the log knows."""
        return self._log.time_range(partition)

    def wait(self, ends: Sequence[int], timeout_s: float) -> list[int]:
        """Return the ends as soon as one of them is beyond the given one, or at the timeout."""
        return self._log.wait(ends, timeout_s)

    def wait_unless(
        self, ends: Sequence[int], timeout_s: float, is_over: Callable[[], bool]
    ) -> list[int]:
        """Wait as ``wait`` does; also return when ``wake`` is called and ``is_over`` is true."""
        return self._log.wait_unless(ends, timeout_s, is_over)

    @property
    def is_polled(self) -> bool:
        """Whether each look for appends of other processes has a price."""
        return self._log.is_polled

    def wake(self) -> None:
        """Let all calls of ``wait_unless`` check ``is_over`` again."""
        self._log.wake()


class ExternalLog(ReadableLog):
    """A log outside the bus: rows can be unreadable, and its tools see how far it is read."""

    @abstractmethod
    def refusing(self, take: Taker) -> ExternalLog:
        """Return the same log, which passes rows that cannot be read to a function.

        Without it, they are an error of ``read``.
        """

    def note(self, reader: str, offsets: Sequence[int]) -> None:
        """Show how far a reader is, wherever the log's own tools look; nothing depends on it.

        Args:
            reader: its name, such as a job's.
            offsets: the next one of each partition.
        """


class AppendStamp(NamedTuple):
    """Who appends: a producer, empty for none, its sequence, and the generation of its driver."""

    producer: str = ""
    sequence: int = -1
    generation: int = 0


class CarrierLog(ReadableLog):
    """A log elsewhere that has the rows of an internal stream, several of them at an offset."""

    @abstractmethod
    def publish(self, partition: int, frames: Sequence[bytes], stamp: AppendStamp) -> Appended:
        """Append frames (``headrace.records.frame``), unless the sequence is not above the last.

        Offsets of the answer are -1 within ``together``.

        Raises:
            NotOwnerError: a driver of a newer generation has appended.
            LogAwayError: no server answers; some frames may be there: append again.
        """

    @abstractmethod
    def together(self) -> AbstractContextManager[None]:
        """Make what is published in a block visible at its end, or sooner if it is much."""

    @abstractmethod
    def trim(self, partition: int, before_offset: int) -> int:
        """Remove rows below an offset, but for those that say how far the partition is."""

    @abstractmethod
    def up_to(self, producer: str, sequence: int) -> list[AppendedUpTo]:
        """Return the end of each partition as of a sequence of a producer; see ``Stream.as_of``."""

    @abstractmethod
    def close(self) -> None:
        """Release what is open; the log can be used again."""


class LogConnector(Protocol):
    """Opens the logs at addresses of one scheme: a plug-in of the group ``headrace.logs``.

    An address names one log, with options as its query, and contains no secret: it says
    where to find one.
    """

    def mistakes(self, address: str) -> list[str]:
        """Return the mistakes of an address, one sentence each, without a request to a server."""
        ...

    def name(self, address: str) -> str:
        """Return what the log is called."""
        ...

    def matching(self, address: str) -> dict[str, str]:
        """Return name and address of each log that matches now, in order of names.

        Args:
            address: with a pattern in the place of a name.

        Raises:
            InvalidInputError: the server refuses.
            LogAwayError: the server does not answer.
        """
        ...

    def said(self, address: str) -> str:
        """Return a description of the log; the same for all addresses that lead to it."""
        ...

    def spec(self, name: str, address: str, schema: pa.Schema | None) -> StreamSpec:
        """Return the log as a stream, as it is now.

        Args:
            name: of the stream.
            address: of the log.
            schema: the columns that the graph gives.

        Raises:
            InvalidInputError: there is no such log, or it has other columns.
            LogAwayError: the server does not answer.
        """
        ...

    def open(self, spec: StreamSpec, address: str) -> ExternalLog:
        """Return the log, without a request to a server until it is read."""
        ...

    def sink(self, address: str) -> Any:
        """Return the ``Sink`` that writes to the log."""
        ...


class CarryingConnector(LogConnector, Protocol):
    """A connector whose logs can also carry the rows of internal streams."""

    def carrier_mistakes(self, address: str) -> list[str]:
        """Return the mistakes of an address of a log that is to carry a stream."""
        ...

    def make_carrier(self, spec: StreamSpec, address: str) -> str:
        """Make the log, unless it is there and empty; returns its identity.

        Raises:
            InvalidInputError: it has rows, or cannot carry the stream.
            LogAwayError: the server does not answer.
        """
        ...

    def carry(self, spec: StreamSpec, address: str, identity: str) -> CarrierLog:
        """Return the log, without a request to a server until it is used.

        Args:
            spec: of the stream.
            address: of the log.
            identity: of the log, and behind a slash that of the stream.
        """
        ...

    def drop_carrier(self, address: str, identity: str) -> None:
        """Remove the log with all rows, unless it is gone or another one by now.

        Raises:
            LogAwayError: the server does not answer.
        """
        ...


def is_address(text: str) -> bool:
    """Say whether the name of a stream is an address of a log elsewhere."""
    return "://" in text


def connector_of(address: str) -> LogConnector:
    """Return the plug-in for the scheme of an address.

    Raises:
        InvalidInputError: no package gives it.
    """
    found: LogConnector = plugins.load(plugins.LOGS, address.partition("://")[0])
    return found


def carrier_of(address: str) -> CarryingConnector:
    """Return the plug-in whose log at an address can carry an internal stream.

    Raises:
        InvalidInputError: no package gives it, or its logs cannot.
    """
    found: Any = connector_of(address)
    if not hasattr(found, "carry"):
        raise InvalidInputError(
            f"the log at {without_login(address)} can be read and written, but cannot carry what "
            "is between two parts of a job; give another address"
        )
    carrying: CarryingConnector = found
    return carrying


def is_same_place(address: str, other: str) -> bool:
    """Say whether two addresses, empty for the bus itself, lead to the same log."""
    if address == other or not (address and other):
        return address == other
    first, second = connector_of(address), connector_of(other)
    return first.said(address) == second.said(other)
