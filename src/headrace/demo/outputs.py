"""The outputs of the job: their names, and whole streams of the bus as tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.bus.bus import Stream

OUTPUTS = ("route_delays", "carrier_totals", "worst_routes")
PARTITION, OFFSET = "partition", "offset"


def read_all(stream: Stream) -> pa.Table:
    """Return all rows of a stream, each with its ``partition`` and ``offset``, in that order."""
    schema = stream.spec.schema.append(pa.field(PARTITION, pa.int64()))
    schema = schema.append(pa.field(OFFSET, pa.int64()))
    batches = []
    for partition, begin in enumerate(stream.begins()):
        for found in stream.read(partition, begin):
            rows = found.batch.num_rows
            places = np.full(rows, partition, np.int64)
            columns = [*found.batch.columns, pa.array(places), pa.array(found.offsets)]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(batches, schema)


class Tail:
    """Hands out what was appended to a stream since the last call."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._next = stream.begins()

    def take(self) -> pa.Table:
        """Return the new rows of all partitions, partition by partition."""
        batches = []
        for partition, (start, end) in enumerate(zip(self._next, self._stream.ends(), strict=True)):
            batches += [found.batch for found in self._stream.read(partition, start, end)]
            self._next[partition] = end
        return pa.Table.from_batches(batches, self._stream.spec.schema)
