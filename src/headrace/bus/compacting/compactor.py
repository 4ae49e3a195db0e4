"""The files of a compaction: new segments under hidden names, until the index tells of them.

One at a time for each partition, beside its appenders. Only the last step needs their lock:
``Appender.replace``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from headrace.bus.compacting.compaction import (
    Compaction,
    CompactionStoppedError,
    Piece,
    starts_segment,
)
from headrace.bus.entries import Entry, View
from headrace.bus.locks import take_lock
from headrace.bus.log import Log, Order, Parts, Place, segment_name
from headrace.bus.options import Fsync
from headrace.bus.retention import OffsetGoneError
from headrace.bus.spec import Compacted
from headrace.errors import UnavailableError
from headrace.faults import fault
from headrace.files import Files

_PREFIX = ".compact-"


class _Segment:
    """A segment that is being written, with all pieces behind each other."""

    def __init__(self, path: Path, number: int, nonce: int, first_ms: int, files: Files) -> None:
        self.path, self.number, self.nonce = path, number, nonce
        self.first_ms = first_ms
        self.size = 0
        self._files = files
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)

    def add(self, piece: Piece, partition: int) -> Entry:
        place = Place(self.number, self.nonce, self.size, piece.size)
        self._files.append(self._descriptor, piece.chunks)
        self.size += piece.size
        return piece.entry(partition, place)

    def close(self, *, durable: bool) -> None:
        try:
            if durable:
                self._files.sync_file(self._descriptor)
        finally:
            os.close(self._descriptor)


class CompactionDraft(NamedTuple):
    """A compaction that is written and does not count yet.

    ``entries`` stand for everything below the offset up to which it goes, empty where nothing
    would change; ``files`` are the new segments, as they are called and as they are to be.
    """

    view: View
    entries: list[Entry]
    files: list[tuple[Path, Path]]
    outcome: Compacted


def changed_meanwhile(stream: str) -> CompactionStoppedError:
    """Return the error of a compaction that came too late."""
    return CompactionStoppedError(
        f"while stream {stream!r} was compacted it was trimmed, or a reader began to hold it; "
        "nothing was changed, compact again",
        stream=stream,
    )


class Compactor:
    """Writes the segments of one compaction; a context in which no other process does.

    Args:
        log: of the partition.
        folder: its folder.
        partition: its number.
        parts: settings, time and files.
        wait_s: longest wait for another compaction.
    """

    def __init__(self, log: Log, folder: Path, partition: int, parts: Parts, wait_s: float) -> None:
        self._wait_s = wait_s
        self._log, self._folder, self._partition = log, folder, partition
        self._settings, self._clock, self._files = parts.settings, parts.clock, parts.files
        self._lock = -1
        self._written: list[Path] = []

    def __enter__(self) -> Compactor:
        """Take the lock, and remove what a compaction that died has left.

        Raises:
            CompactionStoppedError: another process compacts the partition.
        """
        path = self._folder / "compact.lock"
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not take_lock(self._lock, self._clock, self._wait_s):
            os.close(self._lock)
            raise CompactionStoppedError(f"another process compacts {self._folder}; wait for it")
        for name in os.listdir(self._folder):
            if name.startswith(_PREFIX):
                self._files.remove(self._folder / name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what was not named, and let go of the lock."""
        try:
            for path in self._written:
                self._files.remove(path)
        finally:
            os.close(self._lock)

    def draft(self, order: Order, limit: Callable[[View], int]) -> CompactionDraft:
        """Write the segments of a compaction, durably.

        Args:
            order: what is wanted.
            limit: tells up to which offset.

        Raises:
            CompactionStoppedError: the partition was trimmed meanwhile.
            UnavailableError: the disk refused; nothing has changed.
        """
        view = self._log.view()
        upto = limit(view)
        compaction = Compaction(self._log, view, upto, order)
        try:
            entries, files = self._write(compaction, order)
        except OffsetGoneError as error:
            raise changed_meanwhile(order.spec.name) from error
        except OSError as error:
            raise UnavailableError(
                f"cannot compact {self._folder}: {error.strerror or error}; nothing was changed, "
                "try again"
            ) from error
        outcome = compaction.outcome(entries)
        return CompactionDraft(view, entries, files, outcome)

    def _write(
        self, compaction: Compaction, order: Order
    ) -> tuple[list[Entry], list[tuple[Path, Path]]]:
        entries: list[Entry] = []
        segments: list[_Segment] = []
        segment: _Segment | None = None
        try:
            for result in compaction.results():
                if isinstance(result, Piece) and result.rows:
                    if segment is not None and self._is_over(segment, result, order):
                        self._close(segment)
                        segment = None
                    if segment is None:
                        segment = self._opened(result)
                        segments.append(segment)
                    entries.append(segment.add(result, self._partition))
                elif isinstance(result, Piece):
                    nowhere = Place(result.first_offset, 0, 0, 0)
                    entries.append(result.entry(self._partition, nowhere))
                else:
                    if segment is not None:
                        self._close(segment)
                        segment = None
                    entries.append(result)
        finally:
            if segment is not None:
                self._close(segment)
        return entries, [
            (one.path, self._folder / segment_name(one.number, one.nonce)) for one in segments
        ]

    def _is_over(self, segment: _Segment, piece: Piece, order: Order) -> bool:
        is_old = starts_segment(segment.first_ms, piece.appended_ms, order.settings)
        return is_old or segment.size >= order.segment_bytes

    def _opened(self, piece: Piece) -> _Segment:
        nonce = int(self._clock.new_id()[:8], 16)
        path = self._folder / f"{_PREFIX}{segment_name(piece.first_offset, nonce)}"
        self._written.append(path)
        return _Segment(path, piece.first_offset, nonce, piece.appended_ms, self._files)

    def _close(self, segment: _Segment) -> None:
        segment.close(durable=self._settings.fsync is not Fsync.NEVER)
        fault("compact.segment_written")
