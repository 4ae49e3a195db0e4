"""Output rows of a slot: collected by stream and partition, written once at the end.

Small parts of all tasks share one file, which is copied into the bus when the epoch is
published; a large part gets a file of its own, which the bus adopts as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.files import Bytes, Files
from headrace.plan.stages import OutputBinding
from headrace.records.evolution import with_defaults
from headrace.records.frame import encode_frame
from headrace.records.key_hashes import key_hashes
from headrace.records.keys import key_groups
from headrace.records.schema import event_times, normalise
from headrace.task.chunk import Chunk
from headrace.task.messages.calls import name_operator
from headrace.task.node import Node
from headrace.task.orders import FileRef, OutputPart

FRAME_ROWS = 1 << 20


class OutputNode(Node):
    """``send_to``: keeps the rows of one output of one task.

    A keyed row goes to the partition of its key's hash range, the same for every job and
    task count; a row without key goes to the partition with the task's number.
    """

    def __init__(self, name: str, binding: OutputBinding, task: int) -> None:
        super().__init__(name)
        self.binding = binding
        self._fixed = task % binding.partitions
        self._parts: dict[int, list[pa.RecordBatch]] = {}

    def push(self, chunk: Chunk) -> None:
        """Keep the rows."""
        self.counts["out"] += chunk.rows
        binding = self.binding
        batch = with_defaults(chunk.batch, binding.schema, dict(binding.defaults))
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

    def add(self, node: OutputNode) -> list[OutputPart]:
        """Take a node's rows and return where each part will be."""
        parts = []
        for partition, batch in node.take():
            frame = encode_frame(batch, node.binding.version)
            size = sum(len(piece) for piece in frame)
            stream, rows = node.binding.stream, batch.num_rows
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
