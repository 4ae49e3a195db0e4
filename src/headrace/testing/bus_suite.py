"""What the suites of a bus have in common: streams, rows, and how a bus is opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus import Bus, BusOptions, Producer, Stream, StreamSpec
from headrace.clock import Clock
from headrace.files import Files
from headrace.records.frame import encode_frame

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
SPEC = StreamSpec("events", 2, SCHEMA, "at", ("id",))
ME = Producer("job/output", "lineage-1")
LONG_S = 30.0


def rows(first: int, count: int, at: Sequence[int] | None = None) -> pa.RecordBatch:
    """Return rows with ids from ``first`` on; event times are 1000 + id unless given."""
    ids = list(range(first, first + count))
    times = [1000 + number for number in ids] if at is None else list(at)
    return pa.record_batch([ids, times, [f"n{number}" for number in ids]], schema=SCHEMA)


def everything(stream: Stream, partition: int = 0, **how: Any) -> list[dict[str, Any]]:
    """Return all rows of a partition."""
    found: list[dict[str, Any]] = []
    for part in stream.read(partition, 0, **how):
        found += part.batch.to_pylist()
    return found


def write_frames(path: Path, batches: Sequence[pa.RecordBatch]) -> list[tuple[int, int]]:
    """Write a file of frames, and return where each of them lies."""
    ranges, end = [], 0
    chunks: list[Any] = []
    for batch in batches:
        frame = encode_frame(batch)
        begin, end = end, end + sum(memoryview(chunk).nbytes for chunk in frame)
        chunks += frame
        ranges.append((begin, end))
    Files().write_new(path, chunks)
    return ranges


class CrashError(Exception):
    """Raised by a hook where a process would have died."""


class BusSuite(ABC):
    """How the suites of a bus open it; subclasses give ``open_bus`` and ``reopen``."""

    @abstractmethod
    def open_bus(self, folder: Path, options: BusOptions, clock: Clock | None = None) -> Bus:
        """Return a bus without streams, in a folder of its own."""

    @abstractmethod
    def reopen(
        self, bus: Bus, folder: Path, options: BusOptions, clock: Clock | None = None
    ) -> Bus:
        """Return a bus over the same streams that knows only what is durable."""

    options = BusOptions(batch_bytes=100_000, record_bytes=20_000, adopt_bytes=4096)

    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[Bus]:
        """Open an empty bus."""
        with self.open_bus(tmp_path / "bus", self.options) as bus:
            yield bus

    @pytest.fixture
    def stream(self, bus: Bus) -> Stream:
        """Create a stream of two partitions, with event time and key."""
        return bus.create(SPEC)
