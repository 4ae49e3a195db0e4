"""Rows that leave a job: collected by task, written once at the end of a slot's part.

``send_to`` a stream: by stream and partition. To a sink: one file for each sink. To a table of the
warehouse: rows that are late for their day are sorted out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64

from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS
from headrace.errors import EventTimeError, HeadraceError, InvalidInputError
from headrace.files import Bytes, Files
from headrace.graph.operators import SendTo, SendToSink
from headrace.graph.sinks import ADD, DAY_MS, LATE_ROW, DailyTable
from headrace.plan.stages import OutputBinding, SinkBinding
from headrace.records.evolution import with_defaults
from headrace.records.frame import encode_frame
from headrace.records.keys import key_groups, key_hashes
from headrace.records.schema import as_milliseconds, event_times, normalise
from headrace.runtime.chunk import Chunk, Ints, Mask
from headrace.runtime.node import Node, Refused, without
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.orders import FileRef, OutputPart, SinkPart
from headrace.runtime.user_calls import name_operator

FRAME_ROWS = 1 << 20


class OutputNode(Node):
    """``send_to``: keeps the rows of one output of one task.

    A keyed row goes to the partition of its key's hash range, the same for every job and
    task count; a row without key goes to the partition with the task's number. What is computed
    over all rows together, such as a window without a key, goes to the first partition: a later
    result may take the place of an earlier one, also when another task makes it.
    """

    @classmethod
    def of(cls, operator: SendTo, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        binding = next(o for o in build.stage.outputs if o.operator == operator.name)
        return cls(operator.name, binding, 0 if build.stage.is_gathered else build.task)

    def __init__(self, name: str, binding: OutputBinding, task: int) -> None:
        super().__init__(name)
        self.binding = binding
        self._fixed = task % binding.partitions
        self._parts: dict[int, list[pa.RecordBatch]] = {}

    def push(self, chunk: Chunk) -> None:
        """Keep the rows."""
        self.counts["out"] += chunk.rows
        binding, batch = self.binding, chunk.batch
        if not batch.schema.equals(binding.schema):
            batch = with_defaults(batch, binding.schema, dict(binding.defaults))
            batch = normalise(batch, binding.schema)
        if self.binding.time is not None:
            # After the commit, when the bus looks at them, it would be too late to refuse.
            self._check_times(batch.column(self.binding.time))
        if not self.binding.keys or self.binding.partitions == 1:
            self._parts.setdefault(self._fixed, []).append(batch)
            return
        hashes = key_hashes([batch.column(name) for name in self.binding.keys])
        target = key_groups(hashes, self.binding.partitions)
        for partition in np.unique(target).tolist():
            rows = batch.filter(pa.array(target == partition))
            self._parts.setdefault(partition, []).append(rows)

    def _check_times(self, column: pa.Array) -> None:
        try:
            event_times(column, f"output {self.binding.stream!r}")
        except InvalidInputError as error:
            name_operator(error, self.name)
            raise

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Take the rows of each partition, as batches of at most ``FRAME_ROWS``."""
        for partition in sorted(self._parts):
            table = pa.Table.from_batches(self._parts[partition]).combine_chunks()
            for batch in table.to_batches(max_chunksize=FRAME_ROWS):
                yield partition, batch
        self._parts = {}


class OutputWriter:
    """Writes what the output nodes of a slot hold.

    Args:
        files: the file system.
        folder: of the job's storage.
        stem: unique name of the attempt.
        adopt_bytes: from this size on a part gets a file of its own.
    """

    def __init__(self, files: Files, root: Path, stem: str, adopt_bytes: int, epoch: int) -> None:
        self._files, self._root, self._stem = files, root, stem
        self._adopt, self._epoch = adopt_bytes, epoch
        self._shared: list[bytes | pa.Buffer] = []
        self._shared_size = 0
        self.written: list[FileRef] = []

    def _name(self, number: int, suffix: str = "seg") -> str:
        return f"output/{self._stem}-{number}.{suffix}"

    def write(self, content: Sequence[Bytes], suffix: str) -> FileRef:
        """Write a file of its own; its name is durable once ``close`` has returned."""
        name = self._name(len(self.written) + 1, suffix)
        size = self._files.write_new(self._root / name, content)
        self.written.append(FileRef(name, size, self._epoch))
        return self.written[-1]

    def add(self, nodes: Iterable[OutputNode]) -> list[OutputPart]:
        """Take the rows of the outputs of a task, and return where each part will be."""
        parts = []
        taken = ((node.binding, part) for node in nodes for part in node.take())
        for binding, (partition, batch) in taken:
            frame = encode_frame(batch, binding.version)
            size = sum(map(len, frame))
            stream, rows = binding.stream, batch.num_rows
            if size >= self._adopt:
                name = self.write(frame, "seg").path
                parts.append(OutputPart(stream, partition, name, 0, size, rows))
                continue
            begin, self._shared_size = self._shared_size, self._shared_size + size
            self._shared += frame
            name, end = self._name(0), self._shared_size
            parts.append(OutputPart(stream, partition, name, begin, end, rows))
        return parts

    def close(self) -> None:
        """Write the shared file, if anything is in it, and make the names durable."""
        if self._shared:
            name = self._name(0)
            self._files.write_new(self._root / name, self._shared)
            self.written.append(FileRef(name, self._shared_size, self._epoch))
        if self.written:
            self._files.sync_folder(self._root / "output")


class SinkNode(Node):
    """``send_to`` a sink: keeps the rows of one task."""

    def __init__(self, name: str, binding: SinkBinding) -> None:
        super().__init__(name)
        self.binding = binding
        self._batches: list[pa.RecordBatch] = []

    def push(self, chunk: Chunk) -> None:
        """Keep the rows."""
        self.counts["out"] += chunk.rows
        self._batches.append(normalise(chunk.batch, self.binding.schema))

    def take(self) -> list[pa.RecordBatch]:
        """Take the rows, in their order."""
        taken, self._batches = self._batches, []
        return taken


def write_sinks(nodes: Sequence[SinkNode], writer: OutputWriter) -> list[SinkPart]:
    """Prepare what the tasks of a slot send, task after task, and write it durably.

    What goes to a sink that sends at once is sent, and nothing of it is written.

    Raises:
        InvalidInputError: a sink refuses a row; names the operator.
        UnavailableError: one that sends at once does not answer.
    """
    parts: list[SinkPart] = []
    for name in dict.fromkeys([node.name for node in nodes]):
        same = [node for node in nodes if node.name == name]
        batches = [batch for node in same for batch in node.take()]
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            continue
        binding = same[0].binding
        try:
            if binding.sink.sends_at_once:
                binding.sink.send(batches, binding.schema)
                continue
            content = binding.sink.prepare(batches, binding.schema)
        except InvalidInputError as error:
            name_operator(error, name)
            raise
        checksum = xxh3_64()
        for chunk in content:
            checksum.update(memoryview(chunk))
        file = writer.write(content, binding.sink.suffix)
        parts.append(SinkPart(name, file.path, file.size, rows, checksum.intdigest()))
    return parts


class LateForDayError(InvalidInputError):
    """A row came for a day that was complete by the watermark of its own partition."""


class DailyNode(SinkNode):
    """Keeps the rows of one task, but for those that are late where the table wants none.

    Args:
        name: of the operator.
        binding: with the table.
        table: the same table.
        delay_ms: how far the watermark of what reaches it is behind that of the stage.
    """

    def __init__(self, name: str, binding: SinkBinding, table: DailyTable, delay_ms: int) -> None:
        super().__init__(name, binding)
        self._table, self._delay_ms = table, delay_ms

    def push(self, chunk: Chunk) -> None:
        """Keep the rows that have a day, and are not too late for it."""
        assert self._table.time is not None
        column = as_milliseconds(chunk.batch.column(self._table.time))
        times = pc.fill_null(column, MAX_EVENT_TIME_MS).to_numpy()
        has_day = (times >= MIN_EVENT_TIME_MS) & (times < MAX_EVENT_TIME_MS)
        refused: dict[int, HeadraceError] = {
            int(row): self._untimed(column[int(row)].as_py()) for row in np.flatnonzero(~has_day)
        }
        late = np.flatnonzero(has_day & self._late(chunk, times))
        self.counts["late"] += len(late)
        if self._table.late != ADD:
            refused |= {int(row): self._too_late(int(times[row])) for row in late}
        if refused:
            rows = [Refused(row, refused[row]) for row in sorted(refused)]
            if self.guard is None:
                raise rows[0].error
            self.guard.take(chunk, rows)
            chunk = without(chunk, rows)
        if chunk.rows:
            super().push(chunk)
            if len(late) and self._table.late == ADD:
                self._mark_late(np.delete(np.isin(np.arange(len(times)), late), sorted(refused)))

    def _mark_late(self, is_late: Mask) -> None:
        """Say beside the rows that were kept last which of them are late."""
        self._batches[-1] = self._batches[-1].append_column(LATE_ROW, pa.array(is_late))

    def _late(self, chunk: Chunk, times: Ints) -> Mask:
        """Say of which rows the own watermark was past their day when they came."""
        if chunk.watermarks is None:
            return np.zeros(len(times), bool)
        past = self._table.ends_ms(0) - DAY_MS
        ends = (times // DAY_MS + 1) * DAY_MS + past
        is_late: Mask = ends <= chunk.watermarks - self._delay_ms
        return is_late

    def _untimed(self, found: int | None) -> EventTimeError:
        said = "null" if found is None else f"{found} ms, outside the years 1 to 9999"
        return EventTimeError(
            f"column {self._table.time!r} of a row for table {self._table.name!r} is {said}, so it "
            'has no day; fix it before send_to, or set such rows aside: late="dead_letter"',
            operator=self.name,
        )

    def _too_late(self, time: int) -> LateForDayError:
        day = np.datetime64(time // DAY_MS, "D")
        return LateForDayError(
            f"a row of {day} came for table {self._table.name!r} when that day was complete by the "
            "watermark of its partition; allow more with out_of_orderness= or allowed_lateness=, "
            'or use late="add"',
            operator=self.name,
        )


def sink_node(operator: SendToSink, build: NodeContext) -> SinkNode:
    """Return the node of a ``send_to`` a receiver outside."""
    name = operator.name
    binding = next(s for s in build.stage.sinks if s.operator == name)
    if isinstance(binding.sink, DailyTable):
        return DailyNode(name, binding, binding.sink, build.delay_ms(operator))
    return SinkNode(name, binding)
