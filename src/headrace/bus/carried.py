"""Streams whose rows a log elsewhere has, such as a topic of Kafka: internal streams of jobs.

The bus keeps what such a stream is, where its rows are, and which drivers may change it. Rows go in
frames, as in segments, so columns come back as they were. One offset is one frame, so a
partition has fewer offsets than rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from headrace.bus.bus import UncompactedStream
from headrace.bus.log import BusContext
from headrace.bus.log_stream import LogStream
from headrace.bus.readable import AppendStamp, CarrierLog, DelegatedLog, carrier_of
from headrace.bus.spec import (
    Appended,
    AppendedUpTo,
    Fence,
    Producer,
)
from headrace.bus.stream_stores import StreamSettings
from headrace.errors import InvalidInputError
from headrace.records.frame import encode_frame, iterate_frames
from headrace.redaction import without_login

MESSAGE_BYTES = 512 << 10
"""About what a frame has whose rows can be cut: servers and clients are made for such messages."""

LARGEST_CARRIED = 15 << 20
"""What a row may have."""


def small_batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of at most ``MESSAGE_BYTES``, or of one row; always cut alike."""
    if rows.num_rows <= 1 or rows.nbytes <= MESSAGE_BYTES:
        yield rows
        return
    half = rows.num_rows // 2
    yield from small_batches(rows.slice(0, half))
    yield from small_batches(rows.slice(half))


class CarriedStream(DelegatedLog, UncompactedStream):
    """A stream of the bus whose rows are in a log elsewhere.

    Args:
        kept: what the bus has of it, without rows.
        address: of the log.
        parts: of the bus.
    """

    _log: CarrierLog

    def __init__(self, kept: LogStream, address: str, parts: BusContext) -> None:
        self.kept, self.address, self._parts = kept, address, parts
        self.spec, self.created = kept.spec, kept.created
        connector = carrier_of(address)
        self._log = connector.carry(kept.spec, address, kept.identity)

    @property
    def identity(self) -> str:  # type: ignore[override]
        """That of the log that is there now, and of the stream."""
        return self._log.identity

    def append(
        self,
        partition: int,
        batch: pa.RecordBatch | pa.Table,
        *,
        producer: Producer | None = None,
        sequence: int | None = None,
        fence: Fence | None = None,
    ) -> Appended:
        """Append a batch, as one frame or several; see ``Stream.append``."""
        rows = self._fitted(batch)
        frames = [_bytes_of(piece) for piece in small_batches(rows) if piece.num_rows]
        return self._published(partition, frames, producer, sequence, fence)

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
        """Append frames that are on disk already; see ``Stream.append_file``."""
        data = self._parts.files.map(path) if path.stat().st_size else pa.py_buffer(b"")
        parts = [(0, data.size)] if ranges is None else ranges
        frames = [
            data[frame.position : frame.end].to_pybytes()
            for begin, end in parts
            for frame in iterate_frames(data, begin, end, str(path))
        ]
        return self._published(partition, frames, producer, sequence, fence)

    def _published(
        self,
        partition: int,
        frames: Sequence[bytes],
        producer: Producer | None,
        sequence: int | None,
        fence: Fence | None,
    ) -> Appended:
        if (producer is None) != (sequence is None):
            raise InvalidInputError(
                f"found producer {producer} and sequence {sequence}; expected both, or neither",
                stream=self.spec.name,
            )
        self._parts.fences.check(fence)
        if not frames:
            end = self.ends()[partition]
            return Appended(end, end, False)
        stamp = AppendStamp(
            "" if producer is None else producer.digest().hex(),
            -1 if sequence is None else sequence,
            0 if fence is None else fence.generation,
        )
        return self._log.publish(partition, frames, stamp)

    def together(self) -> AbstractContextManager[None]:
        """Let a block's appends be visible at its end, or sooner if they are many."""
        return self._log.together()

    @property
    def settings(self) -> StreamSettings:
        """What may be changed of the stream."""
        return self.kept.settings

    def configure(self, *, fence: Fence | None = None, **changes: Any) -> StreamSettings:
        """Change how the log is reached; all else is the log's own.

        Raises:
            NotOwnerError: as for ``append``.
            InvalidInputError: something else is to be changed.
        """
        if set(changes) - {"address"}:
            self._refuse("be configured")
        return self.kept.configure(fence=fence, **changes)

    def evolve(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: rows that wait have the columns of their job."""
        self._refuse("get other columns")

    def compact(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        self._refuse("be compacted")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidInputError(
            f"stream {self.spec.name!r} is between parts of a job, carried by "
            f"{without_login(self.address)}, and cannot {what}",
            stream=self.spec.name,
        )

    def trim(
        self, partition: int, before_offset: int | None = None, *, fence: Fence | None = None
    ) -> int:
        """Remove rows below an offset; by themselves none expire. See ``Stream.trim``."""
        self._parts.fences.check(fence)
        if before_offset is None:
            return self.begins()[partition]
        return self._log.trim(partition, before_offset)

    def as_of(self, producer: Producer, sequence: int) -> list[AppendedUpTo]:
        """Return the end of each partition as of a sequence of a producer."""
        return self._log.up_to(producer.digest().hex(), sequence)

    def offset_at(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: it has no event time."""
        self._refuse("be read from a time on")

    def time_range(self, partition: int) -> tuple[int, int] | None:
        """Return that there is none."""
        del partition
        return None

    def close(self) -> None:
        """Release the log's clients."""
        self._log.close()

    def _targets(self, producer: Producer | None, sequence: int | None) -> int:
        del producer, sequence
        return self.spec.partitions

    def _next_turn(self) -> int:
        self._refuse("get rows in turn")


def _bytes_of(rows: pa.RecordBatch) -> bytes:
    return b"".join(map(memoryview, encode_frame(rows)))
