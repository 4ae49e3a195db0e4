"""One partition as a log of frames, and the index that tells of them.

``Log`` is what a bus implements for a partition (``file_log``, ``memory``); ``log_stream``
makes a stream of them, and ``frames`` reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.bus.compacting.holds import HoldStore
from headrace.bus.entries import ADOPTED, APPEND, NO_PRODUCER, SEQUENCED, Entry, View
from headrace.bus.options import BusOptions
from headrace.bus.retention import OffsetGoneError
from headrace.bus.schemas import Schemas
from headrace.bus.settings import StreamSettings
from headrace.bus.spec import Appended, Compacted, StreamSpec
from headrace.clock import Clock
from headrace.files import Bytes, Files


@dataclass(frozen=True)
class Parts:
    """What a bus is built with: its settings, and where time and files come from."""

    settings: BusOptions
    clock: Clock
    files: Files


class Place(NamedTuple):
    """Where the frames of an append lie."""

    segment: int
    nonce: int
    position: int
    length: int
    adopted: bool = False


def segment_name(segment: int, nonce: int) -> str:
    """Return the name of a segment's file."""
    return f"{segment:020d}-{nonce:08x}.seg"


class Draft(NamedTuple):
    """An append that has no place yet."""

    rows: int
    min_time: int
    max_time: int
    producer: bytes
    sequence: int

    def entry(self, first_offset: int, partition: int, place: Place, now_ms: int) -> Entry:
        """Return the index entry of the append at its place."""
        flags = SEQUENCED if self.producer != NO_PRODUCER else 0
        return Entry(
            kind=APPEND,
            flags=flags | (ADOPTED if place.adopted else 0),
            first_offset=first_offset,
            rows=self.rows,
            segment=place.segment,
            nonce=place.nonce,
            partition=partition,
            position=place.position,
            length=place.length,
            min_time=self.min_time,
            max_time=self.max_time,
            appended_ms=now_ms,
            producer=self.producer,
            sequence=self.sequence,
        )

    def duplicate(self, view: View, sequences: dict[bytes, int]) -> Appended | None:
        """Return the answer when the sequence is not above the last one of its producer."""
        if self.producer == NO_PRODUCER or self.sequence > sequences.get(self.producer, -1):
            return None
        before = view.find(self.producer, self.sequence)
        if before is None:
            return Appended(view.next_offset, view.next_offset, True)
        return Appended(before.first_offset, before.first_offset + before.rows, True)


class Order(NamedTuple):
    """A compaction that is wanted.

    ``stopped`` is asked often; true ends it without a change. Another compaction of the
    partition is waited for, for ``wait_s``.
    """

    spec: StreamSpec
    schemas: Schemas
    settings: StreamSettings
    now_ms: int
    segment_bytes: int
    stopped: Callable[[], bool]
    wait_s: float = 0.0


class SegmentReplacedError(Exception):
    """A segment is gone because a compaction has replaced it; look at the index again."""


class Log(ABC):
    """One partition. Safe to call from many threads."""

    @abstractmethod
    def view(self) -> View:
        """Return the index as it is now."""

    @abstractmethod
    def data(self, entry: Entry) -> tuple[pa.Buffer, str]:
        """Return the segment that an entry lies in, and its name for errors.

        Raises:
            SegmentReplacedError: a compaction has replaced it; take a new view.
            OffsetGoneError: it was dropped.
        """

    @abstractmethod
    def gone(self, offset: int) -> OffsetGoneError:
        """Return the error for an offset below the oldest one that is kept."""

    @abstractmethod
    def append(self, chunks: Sequence[Bytes], draft: Draft) -> Appended:
        """Append frames, given as chunks of their bytes, in one step."""

    @abstractmethod
    def adopt(self, path: Path, data: pa.Buffer, draft: Draft) -> Appended:
        """Append all frames of a file in one step, by its name where that can be."""

    @abstractmethod
    def trim(self, before_offset: int | None) -> int:
        """Drop whole segments below an offset, or those that the settings let go.

        Returns:
            Where the partition begins since.
        """

    @abstractmethod
    def compact(self, order: Order, limit: Callable[[View], int], holds: HoldStore) -> Compacted:
        """Keep of the rows up to an offset only the last one of each key, in one step.

        Args:
            order: what is wanted.
            limit: tells the offset; asked again before it counts, while no hold can be set.
            holds: of the stream.

        Raises:
            CompactionStoppedError: nothing was compacted.
            UnavailableError: as for ``append``.
        """
