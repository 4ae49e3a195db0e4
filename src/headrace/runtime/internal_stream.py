"""Both ends of an internal stream: what ``partition_by(..., via="bus")`` sends and receives.

A partition of the stream belongs to a range of key groups, so a task reads just its own. Its
rows are those of an exchange, with their key group. Between them are marks: rows that have
nothing but the watermark that the sending stage had reached, or the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bus.bus import Bus, Stream
from headrace.bus.carried import LARGEST_CARRIED, small_batches
from headrace.errors import InvalidInputError
from headrace.plan.dead_letters import PARTITION_BITS
from headrace.plan.stages import GROUP, MARK, ORIGIN, SOURCE, Exchange, OutputBinding, Stage
from headrace.records.keys import group_range
from headrace.runtime.chunk import UNKNOWN, Chunk, from_exchange
from headrace.runtime.exchange import ExchangeNode, ExchangeWriter, HotKeySketch, with_lag
from headrace.runtime.node import Node
from headrace.runtime.orders import END_WATERMARK, InputRange, Reached, TaskOrder
from headrace.runtime.outputs import OutputNode

CHUNK_ROWS = 1 << 16


class InternalStreamNode(OutputNode):
    """``partition_by(..., via="bus")``, on the sending side.

    Args:
        exchange: through an internal stream.
        groups: number of key groups of the job.
        task: number of the task.
        hot: sees the rows, where heavy keys are looked for.
    """

    def __init__(
        self, exchange: Exchange, groups: int, task: int, hot: HotKeySketch | None = None
    ) -> None:
        schema = exchange.stream_schema
        binding = OutputBinding(exchange.operator, exchange.stream, exchange.partitions, schema)
        super().__init__(exchange.operator, binding, task)
        self._exchange, self._groups, self.hot = exchange, groups, hot
        self._writer = self._new_writer()

    def _new_writer(self) -> ExchangeWriter:
        return ExchangeWriter(self._exchange.schema, self._exchange.keys, self._groups)

    def push(self, chunk: Chunk) -> None:
        """Keep the rows."""
        self.sent += chunk.rows
        if self.hot is not None:
            self.hot.see(chunk)
        self._writer.add(with_lag(chunk, self._exchange.delay_ms))

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Take the rows of each partition, sorted by key group, arrival order kept within one."""
        writer, self._writer = self._writer, self._new_writer()
        count = self.binding.partitions
        for batch, begins in writer.frames():
            groups = np.repeat(np.arange(self._groups, dtype=np.int32), np.diff(begins))
            columns = [*batch.columns, pa.array(groups), pa.nulls(len(groups), pa.int64())]
            if ORIGIN in batch.schema.names:
                columns.append(_named(batch.column(ORIGIN), self._exchange.origins))
            rows = pa.RecordBatch.from_arrays(columns, schema=self.binding.schema)
            for partition in range(count):
                first, last = group_range(partition, count, self._groups)
                begin, end = int(begins[first]), int(begins[last])
                if begin < end:
                    for piece in self._pieces(rows.slice(begin, end - begin)):
                        yield partition, piece

    def _pieces(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut rows as a log elsewhere takes them, while the epoch can still fail."""
        if not self._exchange.address:
            yield rows
            return
        for piece in small_batches(rows):
            if piece.nbytes > LARGEST_CARRIED:
                raise InvalidInputError(
                    f"a row of partition_by {self.name!r} has {piece.nbytes} bytes, more than the "
                    f"{LARGEST_CARRIED} that its topic takes; keep large values in files and send "
                    "their names",
                    operator=self.name,
                )
            yield piece


def make_sender(
    exchange: Exchange, groups: int, task: int, hot: HotKeySketch | None = None
) -> Node:
    """Return the sending side of a ``partition_by``: through files of the epoch, or the bus."""
    if exchange.stream:
        return InternalStreamNode(exchange, groups, task, hot)
    return ExchangeNode(exchange, groups, hot)


class InternalStreamReader:
    """Reads a range of one partition of an internal stream, and keeps count of its marks.

    Args:
        stream: the internal stream.
        exchange: that it stands for.
        wanted: the range; ``max_time`` is the highest mark below it.
        max_bytes: reading ends early after about so many bytes.
    """

    def __init__(
        self,
        stream: Stream,
        exchange: Exchange,
        wanted: InputRange,
        max_bytes: int | None = None,
    ) -> None:
        self._stream, self._exchange, self._range = stream, exchange, wanted
        self._max_bytes = max_bytes
        self._next, self.mark = wanted.start, wanted.max_time
        self._has_ended = False

    def chunks(self, should_stop: Callable[[], bool]) -> Iterator[Chunk]:
        """Yield the rows, small appends joined; stops early when asked.

        The first chunk is always read, so that every epoch moves on.
        """
        if self._range.start == self._range.stop:
            return
        part = self._stream.read(
            self._range.partition, self._range.start, self._range.stop, max_bytes=self._max_bytes
        )
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for found in part:
            batch = self._without_marks(found.batch)
            self._next = found.next_offset
            if batch.num_rows:
                waiting.append(batch)
                rows += batch.num_rows
            if rows >= CHUNK_ROWS:
                yield self._chunk(waiting)
                waiting, rows = [], 0
                if should_stop():
                    return
        if waiting:
            yield self._chunk(waiting)

    def _without_marks(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        marks = batch.column(MARK)
        if marks.null_count == batch.num_rows:
            return batch
        for mark in pc.drop_null(marks).to_pylist():
            if mark >= END_WATERMARK:
                self._has_ended = True
            else:
                self.mark = max(self.mark, mark)
        return batch.filter(pc.is_null(marks))

    def _chunk(self, batches: Sequence[pa.RecordBatch]) -> Chunk:
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        groups = batch.column(GROUP).to_numpy().astype(np.uint16)
        if len(batches) > 1:
            order = np.argsort(groups, kind="stable")
            batch, groups = batch.take(pa.array(order)), groups[order]
        rows = batch.select(self._exchange.schema.names)
        if ORIGIN in rows.schema.names:
            at = rows.schema.get_field_index(ORIGIN)
            own = _numbered(batch.column(ORIGIN), batch.column(SOURCE), self._exchange.origins)
            rows = rows.set_column(at, rows.schema.field(at), own)
        return from_exchange(rows, groups)

    def reached(self) -> Reached:
        """Return where reading stopped, the highest mark so far, and whether that is the end."""
        wanted, ended = self._range, self._has_ended
        return Reached(wanted.operator, wanted.partition, self._next, self.mark, ended=ended)


class _Receiver(Protocol):
    """The task that reads."""

    @property
    def has_timers(self) -> bool: ...
    def expect(self, watermark: int) -> None: ...
    def push(self, entry: str, chunk: Chunk) -> None: ...


class InternalStreamInput:
    """What one task reads of internal streams in an epoch.

    Args:
        stage: that it is of.
        task: with a range of each partition that it has.
        bus: the streams.
        max_bytes: reading a range ends early after about so many bytes.
    """

    def __init__(self, stage: Stage, task: TaskOrder, bus: Bus, max_bytes: int | None) -> None:
        self._task = task
        sent_by = {exchange.operator: exchange for exchange in stage.feeds}
        self._readers: list[tuple[InputRange, InternalStreamReader]] = []
        for wanted in task.ranges:
            exchange = sent_by[wanted.operator]
            stream = bus.stream(exchange.stream)
            reader = InternalStreamReader(stream, exchange, wanted, max_bytes)
            self._readers.append((wanted, reader))

    def feed(
        self, receiver: _Receiver, watermark: int, should_stop: Callable[[], bool]
    ) -> tuple[list[Reached], int]:
        """Bring the task its rows; stops early when asked.

        Returns:
            Where reading stopped, and the watermark that the marks bring the task to, which may
            be ahead of its stage's: no other task has anything of its partitions.
        """
        parts: list[Iterable[Chunk]] = [reader.chunks(should_stop) for _, reader in self._readers]
        if receiver.has_timers:  # between rows these have to know what the marks after them say
            parts = [list(chunks) for chunks in parts]
            receiver.expect(self._passed(watermark))
        reached = []
        for (wanted, reader), chunks in zip(self._readers, parts, strict=True):
            for chunk in chunks:
                receiver.push(wanted.operator, chunk)
            if wanted.start < wanted.stop:
                reached.append(reader.reached())
        return reached, self._passed(watermark)

    def _passed(self, watermark: int) -> int:
        marks = [reader.mark for _, reader in self._readers]
        return max(watermark, min(self._task.bound, *marks))


def _named(sources: pa.Array, origins: tuple[str, ...]) -> pa.Array:
    """The name of the stream that each row came from; null where it is not known."""
    numbers = sources.to_numpy() >> PARTITION_BITS
    known = pa.array(numbers, mask=numbers < 0)
    return pa.array(origins, pa.string()).take(known)


def _numbered(sources: pa.Array, names: pa.Array, origins: tuple[str, ...]) -> pa.Array:
    """The sources of rows by the numbers that their streams have now."""
    at = pc.index_in(names, pa.array(origins, pa.string()))
    numbers = at.fill_null(UNKNOWN).to_numpy().astype(np.int32)
    partitions = sources.to_numpy() & ((1 << PARTITION_BITS) - 1)
    return pa.array(np.where(numbers < 0, UNKNOWN, numbers << PARTITION_BITS | partitions))
