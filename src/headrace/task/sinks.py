"""What a slot sends to receivers outside: kept by task, written as one file for each sink.

The files lie in the job's storage until the epoch is committed and the driver hands them on.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from xxhash import xxh3_64

from headrace.errors import InvalidInputError
from headrace.plan.stages import SinkBinding
from headrace.records.schema import normalise
from headrace.task.chunk import Chunk
from headrace.task.messages.calls import name_operator
from headrace.task.node import Node
from headrace.task.orders import SinkPart
from headrace.task.outputs import OutputWriter


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

    Raises:
        InvalidInputError: a sink refuses a row; names the operator.
    """
    parts = []
    for name in dict.fromkeys(node.name for node in nodes):
        same = [node for node in nodes if node.name == name]
        batches = [batch for node in same for batch in node.take()]
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            continue
        binding = same[0].binding
        try:
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
