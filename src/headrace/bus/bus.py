"""The contract of a bus: streams that many processes append to and read from.

How a stream is read is the contract of a ``ReadableLog``, see ``readable``. Everything here is safe
to call from many threads. ``headrace.testing.bus_contract`` is the contract as a test suite;
``log`` is what the file bus and the memory bus share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.bus.readable import ReadableLog, is_same_place
from headrace.bus.spec import (
    Appended,
    AppendedUpTo,
    Compacted,
    Fence,
    Producer,
    Stored,
    StreamSpec,
    check_name,
    stream_taken,
    unknown_stream,
)
from headrace.bus.stream_stores import StreamSettings
from headrace.closeable import Closeable
from headrace.config import EARLIEST, LATEST, StartPosition
from headrace.errors import InvalidInputError
from headrace.records.keys import encode_columns, key_groups
from headrace.records.schema import normalise
from headrace.redaction import without_login


class Stream(ReadableLog):
    """A log that can be appended to, changed, and read."""

    created: StreamSpec
    address: str = ""
    """Of the log elsewhere that has the rows; empty: the bus has them, or what stands for it."""
    said: str = ""
    """What stands for it, in words; empty: it is itself."""

    @abstractmethod
    def append(
        self,
        partition: int,
        batch: pa.RecordBatch | pa.Table,
        *,
        producer: Producer | None = None,
        sequence: int | None = None,
        fence: Fence | None = None,
    ) -> Appended:
        """Append a batch in one step: all rows become visible, or none.

        An empty batch does nothing and returns the current end.

        Args:
            partition: from 0.
            batch: columns of the stream, in any order, cast if nothing is lost.
            producer: makes the append idempotent, together with ``sequence``.
            sequence: rises with each append of a producer to a partition, with gaps; an append
                whose sequence is not above the last is a duplicate and appends nothing.
            fence: of the job, if a job does this.

        Raises:
            NotOwnerError: a newer generation of the job was announced; never try again.
            InvalidInputError: the batch does not fit, is too large, or an event time is
                null or out of range; nothing was appended.
            UnavailableError: the disk failed, or another appender holds the partition; try again
                with the same sequence.
        """

    @abstractmethod
    def append_file(
        self,
        partition: int,
        path: Path,
        ranges: Sequence[tuple[int, int]] | None = None,
        *,
        producer: Producer | None = None,
        sequence: int | None = None,
        fence: Fence | None = None,
    ) -> Appended:
        """Append frames that are already on disk, in one step, without encoding them again.

        Args:
            partition: from 0.
            path: a durable file of frames (``headrace.records.frame``) in the schema of the
                stream. It must never change again, because the bus can adopt it.
            ranges: positions of complete frames, (begin, end) each; ``None``: the whole file.
            producer: as for ``append``.
            sequence: as for ``append``.
            fence: as for ``append``.

        Raises:
            NotOwnerError: as for ``append``.
            InvalidInputError: a range that does not consist of complete frames of the file.
            CorruptDataError: a frame header, or an event-time column, is damaged.
            UnavailableError: as for ``append``.
        """

    @property
    @abstractmethod
    def settings(self) -> StreamSettings:
        """The current settings of the stream, whichever process changed them."""

    @abstractmethod
    def configure(self, *, fence: Fence | None = None, **changes: Any) -> StreamSettings:
        """Change settings of the stream, durably and in one step.

        ``partitions`` can rise and fall if the stream has no key columns: ``spec`` has the number
        of partitions, which never falls, and ``settings`` the number that gets new rows. Appenders
        of all processes follow from their next append on.

        Args:
            fence: of the job, if a job does this.
            **changes: fields of ``StreamSettings``.

        Raises:
            NotOwnerError: as for ``append``.
            InvalidInputError: an unknown name, or an invalid value.
        """

    @abstractmethod
    def evolve(
        self,
        schema: pa.Schema,
        defaults: Mapping[str, Any] | None = None,
        *,
        fence: Fence | None = None,
    ) -> StreamSpec:
        """Add columns to the stream, or widen some, durably and in one step.

        Nothing is rewritten: rows that were appended before, and rows that are appended without an
        added column, have its default. A type can become one that holds all of its values, such as
        int64 for int32, except for key columns and the event time. Readers of columns by name are
        not affected; all processes follow with their next call.

        Args:
            schema: all existing columns, in any order, and those to add.
            defaults: values of older rows in added columns: a number, text or boolean; null by
                default.
            fence: of the job, if a job does this.

        Returns:
            The new specification of the stream.

        Raises:
            NotOwnerError: as for ``append``.
            InvalidInputError: a column is left out, or its type changed to one that does not hold
                its values; says what to do instead.
        """

    @abstractmethod
    def trim(
        self, partition: int, before_offset: int | None = None, *, fence: Fence | None = None
    ) -> int:
        """Remove the oldest rows of a partition, in whole segments.

        ``begins`` moves in one step; files are removed after it. Reads below raise
        ``OffsetGoneError``. Batches that were read stay valid.

        Args:
            partition: from 0.
            before_offset: nothing from here on is removed; ``None``: remove what the stream's
                settings do not keep, as appenders do when they begin a segment.
            fence: of the job, if a job does this.

        Returns:
            The new beginning of the partition.

        Raises:
            NotOwnerError: as for ``append``.
            UnavailableError: as for ``append``; try again.
        """

    @abstractmethod
    def compact(self, partition: int) -> Compacted:
        """Keep only the last row of each key, in one step; also in the newest segment.

        Appenders do this automatically, except for the newest segment, when there is as much new
        data as compacted data. Offsets do not change: readers skip those of removed rows. A row
        whose values are all null deletes its key, and is itself removed ``keep_deletes_ms`` after
        a compaction first finds it. Rows after a reader's hold are kept, and rows younger than
        ``compact_after_ms``. Batches that were read stay valid.

        Args:
            partition: from 0.

        Raises:
            InvalidInputError: the stream was not created with ``compact``.
            CompactionStoppedError: another process compacts or trims the partition; try again
                later.
            UnavailableError: the disk failed; nothing has changed.
        """

    @abstractmethod
    def compacted(self) -> list[int]:
        """Return the offset up to which each partition is compacted; its beginning if it is not."""

    @abstractmethod
    def stored(self) -> list[Stored]:
        """Return the rows and bytes of each partition."""

    @abstractmethod
    def hold(self, reader: str, offsets: Sequence[int], *, fence: Fence | None = None) -> None:
        """Protect rows from an offset of each partition on from compaction, durably.

        Does nothing in a stream that is not compacted. After it returns, ranges from there on are
        the same whenever they are read, until the reader holds a later offset, releases the
        stream, or is silent for ``StreamSettings.hold_ms``.

        Args:
            reader: a unique name, such as a job's.
            offsets: its position in each partition.
            fence: of the job, if the reader is a job.

        Raises:
            NotOwnerError: as for ``append``; the reader's hold does not change.
        """

    @abstractmethod
    def release(self, reader: str, *, fence: Fence | None = None) -> None:
        """Release a reader's hold, if there is one.

        Raises:
            NotOwnerError: as for ``hold``.
        """

    @abstractmethod
    def holds(self) -> dict[str, tuple[int, ...]]:
        """Return the offsets that readers hold, by their names."""

    def together(self) -> AbstractContextManager[None]:
        """Let a block's appends be visible at its end, where that is cheaper than one by one."""
        return nullcontext()

    def as_of(self, producer: Producer, sequence: int) -> list[AppendedUpTo]:
        """Return the end of each partition as of a sequence of a producer.

        Up to there are all rows, of any producer, that were appended before this producer's first
        append above the sequence. Of streams that take no appends, it is their end.
        """
        del producer, sequence
        return [AppendedUpTo(end, -1) for end in self.ends()]

    def append_rows(
        self,
        batch: pa.RecordBatch | pa.Table,
        *,
        producer: Producer | None = None,
        sequence: int | None = None,
        fence: Fence | None = None,
    ) -> dict[int, Appended]:
        """Append each row to the partition of its key, in the order of the batch.

        Without key columns the whole batch goes to one partition: that of the sequence where
        there is one, else the next in turn. One step for each partition, not for all: a
        caller that fails in the middle appends again with the same sequence.

        Returns:
            The result of each partition that got rows.
        """
        rows = self._fitted(batch)
        if not rows.num_rows:
            return {}
        return {
            partition: self.append(
                partition, part, producer=producer, sequence=sequence, fence=fence
            )
            for partition, part in self._routed(rows, producer, sequence)
        }

    def _routed(
        self, rows: pa.RecordBatch, producer: Producer | None, sequence: int | None
    ) -> Iterable[tuple[int, pa.RecordBatch]]:
        partitions = self._targets(producer, sequence)
        if partitions == 1:
            return [(0, rows)]
        if not self.spec.key:
            turn = self._next_turn() if sequence is None else sequence
            return [(turn % partitions, rows)]
        hashes = encode_columns([rows.column(name) for name in self.spec.key]).hashes()
        places = key_groups(hashes, partitions)
        ordered = rows.take(pa.array(np.argsort(places, kind="stable")))
        present, counts = np.unique(places, return_counts=True)
        begins = np.cumsum(counts) - counts
        return [
            (place, ordered.slice(begin, count))
            for place, begin, count in zip(
                present.tolist(), begins.tolist(), counts.tolist(), strict=True
            )
        ]

    def _fitted(self, batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        """Return a batch in the schema of the stream."""
        return normalise(batch, self.spec.schema)

    @abstractmethod
    def _targets(self, producer: Producer | None, sequence: int | None) -> int:
        """Return how many partitions rows go to; for a repeated append, as many as before."""

    @abstractmethod
    def _next_turn(self) -> int:
        """Return a number that rises by one with each call."""


class UncompactedStream(Stream):
    """A stream whose rows are elsewhere and never compacted, so that nobody has to hold them."""

    def compacted(self) -> list[int]:
        """Return that nothing is compacted."""
        return self.begins()

    def stored(self) -> list[Stored]:
        """Return how many offsets each partition has; their bytes are of the place of the rows."""
        pairs = zip(self.begins(), self.ends(), strict=True)
        return [Stored(end - begin, 0) for begin, end in pairs]

    def hold(self, reader: str, offsets: Sequence[int], *, fence: Fence | None = None) -> None:
        """Do nothing: nothing is compacted."""

    def release(self, reader: str, *, fence: Fence | None = None) -> None:
        """Do nothing."""

    def holds(self) -> dict[str, tuple[int, ...]]:
        """Return that nobody holds anything."""
        return {}


class Bus(Closeable):
    """A set of streams."""

    @abstractmethod
    def create(
        self, spec: StreamSpec, *, exist_ok: bool = False, fence: Fence | None = None
    ) -> Stream:
        """Create a stream, durably and in one step; if two processes do it at once, one wins.

        Args:
            spec: what the stream is.
            exist_ok: return the existing stream, if it is the same.
            fence: of the job, if a job does this.

        Raises:
            NotOwnerError: a newer generation of the job was announced; never try again.
            InvalidInputError: it exists, and is different or ``exist_ok`` is false.
        """

    @abstractmethod
    def stream(self, name: str) -> Stream:
        """Return a stream, by its name or by an alias.

        Raises:
            InvalidInputError: there is none; names similar ones.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all streams, sorted."""

    @abstractmethod
    def fence(self, fence: Fence) -> None:
        """Refuse all requests of older generations of a job from now on, durably.

        A driver announces its generation before it reads anything that an older one may still
        change. A change that had begun can still become visible once, as if it had come before. If
        the newer generation changes the same partition, the old change comes first or not at all.
        Streams that are removed and created again keep the announcement.

        Raises:
            NotOwnerError: a newer generation was announced.
        """

    @abstractmethod
    def fenced(self, job: str) -> int:
        """Return the newest announced generation of a job; 0 if there is none.

        A new generation must be above it, wherever the job's own generations are counted.
        """

    @abstractmethod
    def aliases(self) -> dict[str, str]:
        """Return the stream of each alias."""

    def alias(self, alias: str, stream: str) -> str | None:
        """Point an alias to a stream, durably and in one step.

        Readers that opened a stream by the alias before keep that stream.

        Args:
            alias: new, or an alias of another stream; no stream has this name.
            stream: an existing stream.

        Returns:
            The stream that it pointed to before.

        Raises:
            InvalidInputError: an invalid alias, or the name of a stream; or there is no such
                stream.
        """
        return self.swap({alias: stream})[alias]

    def swap(
        self, targets: Mapping[str, str], expected: Mapping[str, str] | None = None
    ) -> dict[str, str | None]:
        """Point several aliases to other streams, all in one step; see ``alias``.

        Args:
            targets: the stream of each alias.
            expected: the stream that aliases point to as far as the caller knows; checked in the
                same step.

        Returns:
            The stream that each pointed to before.

        Raises:
            InvalidInputError: as for ``alias``, or an alias points to another stream than expected;
                then none is changed.
        """
        names = self.names()
        for alias, stream in targets.items():
            check_name(alias)
            if alias in names:
                raise stream_taken(alias)
            if stream not in names:
                raise unknown_stream(stream, names)
        before = self.aliases()
        self._set_aliases(targets, expected)
        return {alias: before.get(alias) for alias in targets}

    def unalias(self, alias: str) -> None:
        """Remove an alias; the stream stays.

        Raises:
            InvalidInputError: there is no alias of this name.
        """
        known = self.aliases()
        if alias not in known:
            raise InvalidInputError(f"no alias {alias!r}; found {sorted(known)[:10]}")
        self._set_aliases({alias: None})

    def remove(self, name: str, *, fence: Fence | None = None) -> None:
        """Remove a stream with all of its rows, in one step; later appends are refused.

        Batches that were read stay valid; other processes that have the stream open find its rows
        gone.

        Args:
            name: of the stream.
            fence: of the job, if a job does this.

        Raises:
            NotOwnerError: a newer generation of the job was announced; never try again.
            InvalidInputError: there is no stream of this name, or an alias points to it.
        """
        pointing = sorted(alias for alias, stream in self.aliases().items() if stream == name)
        if pointing:
            raise InvalidInputError(
                f"alias {pointing[0]!r} points to stream {name!r}; point it to another stream, or "
                "remove it first",
                stream=name,
            )
        names = self.names()
        if name not in names:
            raise unknown_stream(name, names)
        self._remove(name, fence)

    @abstractmethod
    def _remove(self, name: str, fence: Fence | None) -> None:
        """Remove a stream; all was checked."""

    @abstractmethod
    def _set_aliases(
        self, targets: Mapping[str, str | None], expected: Mapping[str, str] | None = None
    ) -> None:
        """Let aliases stand for streams, or remove them, in one step; all was checked."""

    @abstractmethod
    def close(self) -> None:
        """Close files and threads; batches that were read stay valid."""


ADD_COLUMN = 'headrace bus configure {} --add-column "NAME:TYPE"'


def check_existing_stream(
    stream: Stream, expected: StreamSpec, schemas: Sequence[pa.Schema], exist_ok: bool
) -> None:
    """Raise unless ``create`` may answer a stream that is there already.

    As many partitions are right as it has, or was created with, or gives new rows to; and each
    schema that it has had.
    """
    found = stream.spec
    if not exist_ok:
        raise InvalidInputError(
            f"stream {found.name!r} exists; open it, or create it with exist_ok (--exist-ok)",
            stream=found.name,
        )
    counts = {found.partitions, *stream.settings.counts(stream.created.partitions)}
    if expected.partitions not in counts:
        raise InvalidInputError(
            f"stream {found.name!r} exists with another partitions: found {found.partitions}, "
            f"expected {expected.partitions}; use its partitions, or another name",
            stream=found.name,
        )
    if expected.compact and not found.compact:
        raise InvalidInputError(
            f"stream {found.name!r} exists and is not compacted, which it stays; use another name",
            stream=found.name,
        )
    if not is_same_place(found.address, expected.address):
        raise InvalidInputError(
            f"stream {found.name!r} exists in another place: found "
            f"{without_login(found.address) or 'the bus'}, expected "
            f"{without_login(expected.address) or 'the bus'}, and its rows do not move; change "
            "that back, or use another name",
            stream=found.name,
        )
    for what in ("schema", "time", "key"):
        there, wanted = getattr(found, what), getattr(expected, what)
        if there != wanted and not (what == "schema" and wanted in schemas):
            more = "" if what != "schema" else f", add columns: {ADD_COLUMN.format(found.name)}"
            raise InvalidInputError(
                f"stream {found.name!r} exists with another {what}: found {_plain(there)}, "
                f"expected {_plain(wanted)}; use its {what}{more}, or another name",
                stream=found.name,
            )


def _plain(value: object) -> str:
    if isinstance(value, pa.Schema):
        return ", ".join(f"{field.name} {field.type}" for field in value)
    return repr(value)


def start_offsets(stream: Stream, start: StartPosition) -> list[int]:
    """Return the offset of each partition at which reading begins.

    Args:
        stream: to read.
        start: ``earliest``, ``latest``, or an event time in ms: see ``Stream.offset_at``.

    Raises:
        InvalidInputError: a time, and the stream has no event-time column.
    """
    if start == EARLIEST:
        return stream.begins()
    if start == LATEST:
        return stream.ends()
    return [stream.offset_at(partition, int(start)) for partition in range(len(stream.ends()))]
