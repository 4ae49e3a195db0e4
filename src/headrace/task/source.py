"""Reads a source task's ranges of the bus as chunks, with each record's own watermark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from headrace.bus.bus import Stream
from headrace.plan.stages import InputBinding
from headrace.records.schema import event_times
from headrace.task.chunk import Chunk
from headrace.task.orders import NO_WATERMARK, InputRange, Reached

CHUNK_ROWS = 1 << 16


class SourceReader:
    """Reads one range and keeps count of what it has seen.

    Args:
        stream: to read from.
        binding: columns and event time wanted.
        wanted: the range.
        timed: whether later operators need event times.
        max_bytes: reading ends early after about so many bytes of the columns.
    """

    def __init__(
        self,
        stream: Stream,
        binding: InputBinding,
        wanted: InputRange,
        *,
        timed: bool,
        max_bytes: int | None = None,
    ) -> None:
        self._stream, self._binding, self._range = stream, binding, wanted
        self._max_bytes = max_bytes
        self._timed = timed and binding.time is not None
        self._next = wanted.start
        self._max_time = wanted.max_time

    def chunks(self, should_stop: Callable[[], bool]) -> Iterator[Chunk]:
        """Yield the rows in offset order, small appends joined; stops early when asked.

        The first chunk is always read, so that every epoch moves on.
        """
        columns = list(self._binding.columns)
        if self._binding.time is not None and self._binding.time not in columns:
            columns.append(self._binding.time)
        waiting: list[pa.RecordBatch] = []
        rows = 0
        part = self._stream.read(
            self._range.partition,
            self._range.start,
            self._range.stop,
            columns=columns,
            max_bytes=self._max_bytes,
        )
        for found in part:
            waiting.append(found.batch)
            rows += found.batch.num_rows
            if rows >= CHUNK_ROWS:
                yield self._chunk(waiting)
                waiting, rows = [], 0
                if should_stop():
                    return
        if waiting:
            yield self._chunk(waiting)

    def _chunk(self, batches: list[pa.RecordBatch]) -> Chunk:
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self._next += batch.num_rows
        user = batch.select(list(self._binding.columns))
        if self._binding.time is None:
            return Chunk(user)
        where = f"stream {self._binding.stream!r} partition {self._range.partition}"
        times = event_times(batch.column(self._binding.time), where)
        highest = np.maximum.accumulate(np.concatenate([[self._max_time], times]))
        self._max_time = int(highest[-1])
        if not self._timed:
            return Chunk(user)
        before = highest[:-1]
        none = before == NO_WATERMARK
        watermarks = np.where(none, NO_WATERMARK, before - self._binding.lateness_ms)
        return Chunk(user, times, watermarks)

    def reached(self) -> Reached:
        """Return where reading stopped, and the highest event time seen so far."""
        return Reached(self._range.operator, self._range.partition, self._next, self._max_time)
