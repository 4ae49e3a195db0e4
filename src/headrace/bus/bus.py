"""The contract of a bus: streams that many processes append to and read from.

Everything here is safe to call from many threads. ``headrace.testing.bus_contract`` is the
contract as a test suite; ``log`` is what the file and the memory bus share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.bus.refusals import stream_taken, unknown_stream
from headrace.bus.settings import StreamSettings
from headrace.bus.spec import (
    Appended,
    Compacted,
    OffsetBatch,
    Producer,
    Stored,
    StreamSpec,
    check_name,
)
from headrace.closing import Closing
from headrace.errors import InvalidInputError
from headrace.records.keys import encode_columns, key_groups
from headrace.records.schema import normalise

NEVER = 2**63 - 1
FOLLOW_CHECK_S = 0.2


class Stream(ABC):
    """A stream that can be appended to and read."""

    spec: StreamSpec
    created: StreamSpec

    @abstractmethod
    def append(
        self,
        partition: int,
        batch: pa.RecordBatch | pa.Table,
        *,
        producer: Producer | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """Append a batch in one step: all rows become visible, or none.

        An empty batch does nothing and answers the current end.

        Args:
            partition: from 0.
            batch: columns of the stream, in any order, cast when nothing is lost.
            producer: makes the append idempotent, together with ``sequence``.
            sequence: rises from append to append of a producer to a partition, gaps allowed;
                one that is not above the last is a duplicate and appends nothing.

        Raises:
            InvalidInputError: the batch does not fit, is too large, or an event time is
                null or out of range; nothing was appended.
            UnavailableError: the disk refused, or another appender holds the partition;
                try again with the same sequence.
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
    ) -> Appended:
        """Append frames that are already on disk, in one step, without encoding them again.

        Args:
            partition: from 0.
            path: a durable file of frames (``headrace.records.frame``) in the schema of the
                stream. It must never change again, for the bus may adopt it.
            ranges: positions of whole frames, (begin, end) each; ``None``: the whole file.
            producer: as for ``append``.
            sequence: as for ``append``.

        Raises:
            InvalidInputError: a range that is not one of whole frames of the file.
            CorruptDataError: a frame header, or an event-time column, is damaged.
            UnavailableError: as for ``append``.
        """

    @property
    @abstractmethod
    def settings(self) -> StreamSettings:
        """What may be changed of the stream, as it is now, whoever changed it."""

    @abstractmethod
    def configure(self, **changes: Any) -> StreamSettings:
        """Change settings of the stream, durably and in one step.

        ``partitions`` may rise and fall while the stream has no key columns: ``spec`` tells
        how many there are, which never falls, and ``settings`` how many get new rows.
        Appenders of all processes follow from their next append on.

        Args:
            **changes: fields of ``StreamSettings``.

        Raises:
            InvalidInputError: an unknown name, or a value that cannot be.
        """

    @abstractmethod
    def evolve(self, schema: pa.Schema, defaults: Mapping[str, Any] | None = None) -> StreamSpec:
        """Add columns to the stream, or make some wider, durably and in one step.

        Nothing is rewritten: rows that were appended before, and rows that are appended without
        an added column, have its default. A type may become one that holds all of its values,
        such as int64 for int32; not that of a key column or of the event time. Whoever reads
        columns by name goes on as before; all processes follow with their next call.

        Args:
            schema: every column that there is, in any order, and those to add.
            defaults: what older rows have in added columns: a number, text or truth value;
                null where nothing is said.

        Returns:
            The stream as it is since.

        Raises:
            InvalidInputError: a column is left out, or its type changed to one that does not
                hold its values; what to do instead.
        """

    @abstractmethod
    def trim(self, partition: int, before_offset: int | None = None) -> int:
        """Drop the oldest rows of a partition, whole segments at a time.

        ``begins`` moves in one step; files go after it. Whoever reads below gets an
        ``OffsetGoneError``. Batches that were read stay valid.

        Args:
            partition: from 0.
            before_offset: nothing from here on is dropped; ``None``: drop what the settings
                of the stream need not keep, as appenders do when they begin a segment.

        Returns:
            Where the partition begins since.

        Raises:
            UnavailableError: as for ``append``; try again.
        """

    @abstractmethod
    def compact(self, partition: int) -> Compacted:
        """Keep of each key only the last row, in one step; also of the newest segment.

        Appenders do it by themselves, of all but that, when as much is new as is compacted.
        Offsets stay: those of rows that went are skipped by readers. A row in which all values
        are null deletes its key, and goes itself ``keep_deletes_ms`` after a compaction first
        met it. Nothing goes from where a reader holds the stream on, nor what is younger than
        ``compact_after_ms``. Batches that were read stay valid.

        Args:
            partition: from 0.

        Raises:
            InvalidInputError: the stream was not created with ``compact``.
            CompactionStoppedError: another process compacts or trims the partition; wait.
            UnavailableError: the disk refused; nothing has changed.
        """

    @abstractmethod
    def compacted(self) -> list[int]:
        """Return up to where each partition is compacted; its beginning if it is not."""

    @abstractmethod
    def stored(self) -> list[Stored]:
        """Return how many rows and bytes each partition holds."""

    @abstractmethod
    def hold(self, reader: str, offsets: Sequence[int]) -> None:
        """Keep rows from an offset of each partition on from compactions, durably.

        Does nothing in a stream that is not compacted. Once it returns, ranges from there on are
        the same whenever they are read, until the reader holds a later offset, releases the
        stream, or says nothing for ``StreamSettings.hold_ms``.

        Args:
            reader: a name of its own, such as a job's.
            offsets: where it is in each partition.
        """

    @abstractmethod
    def release(self, reader: str) -> None:
        """Forget what a reader holds, if it holds anything."""

    @abstractmethod
    def holds(self) -> dict[str, tuple[int, ...]]:
        """Return the offsets that readers hold, by their names."""

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

        In a compacted stream batches may lack offsets, or be empty; together they cover the
        range.

        The batches may be views of mapped files; they stay valid after later appends and
        after ``close``.

        Args:
            partition: from 0.
            start: first offset wanted.
            stop: offset after the last one; ``None``: the end at the time of the call.
            columns: names of the wanted columns, in the order wanted; all when ``None``.
            max_rows: ends after this many rows.
            max_bytes: ends after about this many bytes of the wanted columns, and at least
                one row.

        Raises:
            OffsetGoneError: offsets that were dropped, before the call or while reading.
            InvalidInputError: offsets that are not in the partition, or unknown columns.
            CorruptDataError: damaged bytes, named by file and position.
        """

    @abstractmethod
    def offset_at(self, partition: int, time_ms: int) -> int:
        """Return where to start reading to see all rows from an event time on.

        That is the first row at or after ``time_ms`` of the first append that has one; later
        appends may hold earlier rows again. The partition's end when there is none.
        """

    @abstractmethod
    def time_range(self, partition: int) -> tuple[int, int] | None:
        """Return the least and greatest event time in ms; ``None`` when empty or untimed."""

    @abstractmethod
    def wait(self, ends: Sequence[int], timeout_s: float) -> list[int]:
        """Return the ends as soon as one of them is beyond the one given, or at the timeout.

        Partitions that were added since are waited for from their beginning.
        """

    def append_rows(
        self,
        batch: pa.RecordBatch | pa.Table,
        *,
        producer: Producer | None = None,
        sequence: int | None = None,
    ) -> dict[int, Appended]:
        """Append each row to the partition of its key, in the order of the batch.

        Without key columns the whole batch goes to one partition: that of the sequence where
        there is one, else the next in turn. One step for each partition, not for all: a
        caller that fails in the middle appends again with the same sequence.

        Returns:
            The answer of each partition that got rows.
        """
        rows = self._fitted(batch)
        if not rows.num_rows:
            return {}
        return {
            partition: self.append(partition, part, producer=producer, sequence=sequence)
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
            stopped: asked after each batch and at least five times a second; true ends it.
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


class Bus(Closing):
    """A set of streams."""

    @abstractmethod
    def create(self, spec: StreamSpec, *, exist_ok: bool = False) -> Stream:
        """Create a stream, durably and in one step; of two that race one wins.

        Args:
            spec: what the stream is.
            exist_ok: answer the stream that is there, if it is the same.

        Raises:
            InvalidInputError: it exists, and is another or ``exist_ok`` is false.
        """

    @abstractmethod
    def stream(self, name: str) -> Stream:
        """Return a stream, by its name or by the alias that stands for it now.

        Raises:
            InvalidInputError: there is none; names those that are near.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all streams, sorted."""

    @abstractmethod
    def aliases(self) -> dict[str, str]:
        """Return the stream that each alias stands for."""

    def alias(self, alias: str, stream: str) -> str | None:
        """Let another name stand for a stream from now on, durably and in one step.

        Who opened a stream by the alias before goes on with the one that it was then.

        Args:
            alias: may be new, or stand for another stream; no stream has this name.
            stream: exists.

        Returns:
            The stream that it stood for before.

        Raises:
            InvalidInputError: a name that cannot be, is that of a stream, or of none.
        """
        return self.swap({alias: stream})[alias]

    def swap(self, targets: Mapping[str, str]) -> dict[str, str | None]:
        """Let several names stand for other streams, all in one step; see ``alias``.

        Args:
            targets: the stream of each alias.

        Returns:
            The stream that each stood for before.

        Raises:
            InvalidInputError: as of ``alias``; then all stay what they were.
        """
        names = self.names()
        for alias, stream in targets.items():
            check_name(alias)
            if alias in names:
                raise stream_taken(alias)
            if stream not in names:
                raise unknown_stream(stream, names)
        before = self.aliases()
        self._set_aliases(targets)
        return {alias: before.get(alias) for alias in targets}

    def unalias(self, alias: str) -> None:
        """Remove an alias; the stream stays.

        Raises:
            InvalidInputError: there is none of this name.
        """
        known = self.aliases()
        if alias not in known:
            raise InvalidInputError(f"no alias {alias!r}; found {sorted(known)[:10]}")
        self._set_aliases({alias: None})

    def remove(self, name: str) -> None:
        """Remove a stream with all of its rows, in one step; nobody may append to it any more.

        Batches that were read stay valid; whoever else has the stream open finds that its rows
        are gone.

        Raises:
            InvalidInputError: there is none of this name, or an alias stands for it.
        """
        pointing = sorted(alias for alias, stream in self.aliases().items() if stream == name)
        if pointing:
            raise InvalidInputError(
                f"stream {name!r} is what alias {pointing[0]!r} stands for; let that stand for "
                "another, or remove it first",
                stream=name,
            )
        names = self.names()
        if name not in names:
            raise unknown_stream(name, names)
        self._remove(name)

    @abstractmethod
    def _remove(self, name: str) -> None:
        """Remove a stream; all was checked."""

    @abstractmethod
    def _set_aliases(self, targets: Mapping[str, str | None]) -> None:
        """Let aliases stand for streams, or remove them, in one step; all was checked."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and threads; batches that were read stay valid."""
