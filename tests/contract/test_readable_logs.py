"""Streams of the buses as readable logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus import Bus, BusOptions, FileBus, MemoryBus, ReadableLog, Stream, StreamSpec
from headrace.testing.log_contract import LOG_SCHEMA, LogRow, ReadableLogContract

SPEC = StreamSpec("events", 2, LOG_SCHEMA, "at")
OPTIONS = BusOptions(segment_bytes=512)


class StreamContract(ReadableLogContract):
    bus: Bus

    def append(self, log: ReadableLog, partition: int, rows: Sequence[LogRow]) -> None:
        assert isinstance(log, Stream)
        columns = [list(column) for column in zip(*rows, strict=True)]
        log.append(partition, pa.record_batch(columns, schema=LOG_SCHEMA))

    def drop_before(self, log: ReadableLog, partition: int, offset: int) -> None:
        assert isinstance(log, Stream)
        log.trim(partition, offset)

    def replaced(self, log: ReadableLog) -> ReadableLog:
        self.bus.remove("events")
        return self.bus.create(SPEC)

    @pytest.fixture(autouse=True)
    def closed(self) -> Iterator[None]:
        yield
        self.bus.close()


class TestFileStream(StreamContract):
    def open_log(self, folder: Path) -> ReadableLog:
        self.bus = FileBus(folder / "bus", OPTIONS)
        return self.bus.create(SPEC)


class TestMemoryStream(StreamContract):
    def open_log(self, folder: Path) -> ReadableLog:
        self.bus = MemoryBus(OPTIONS)
        return self.bus.create(SPEC)
