"""Gives a sink what a run beside the live job has kept for it in a stream.

The sink takes it as epochs of the live job's operator under the run's lineage, so once, however
often somebody asks and dies. What an epoch holds is a function of the stream alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.bus.bus import Stream
from headrace.clock import Clock
from headrace.coordinator.reprocessing.latest import last_rows
from headrace.coordinator.reprocessing.parted import Parted
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.sinks import Prepared, Sink, SinkEpoch, SinkSite
from headrace.plan.stages import SinkBinding
from headrace.records.schema import normalise

ROWS = 50_000
"""Of an epoch, where rows do not take the place of others."""


@dataclass(frozen=True)
class Given:
    """What a sink was given.

    Args:
        operator: that sends to it.
        stream: in which the rows were kept.
        sink: where they went, in words.
        rows: how many, also those that it had from a try before.
    """

    operator: str
    stream: str
    sink: str
    rows: int


@dataclass(frozen=True)
class _Epoch:
    lineage: str
    number: int
    rows: pa.RecordBatch


def give(
    stream: Stream, binding: SinkBinding, job: str, run: str, parts: int, clock: Clock
) -> Given:
    """Give a sink the rows of a stream; what it holds of a key stays.

    Args:
        stream: of a run that has ended.
        binding: of the live job.
        job: the live one.
        run: a name of the other one's run that no other run has.
        parts: in how many parts keys are handled; the same whenever it is asked for.
        clock: time and names.

    Raises:
        ReceiverAwayError: the sink does not answer; ask again.
        InvalidInputError: it refuses the rows.
    """
    sink, files, rows = binding.sink.beneath(), Files(), 0
    lacking = [name for name in binding.schema.names if name not in stream.spec.schema.names]
    if lacking:
        raise InvalidInputError(
            f"stream {stream.spec.name!r} has no columns {lacking}, which {sink.identity} takes: "
            "the job was changed since; run it over the old data again",
            stream=stream.spec.name,
        )
    receiver = sink.open(SinkSite(job, binding.operator, binding.schema, clock, files))
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            for epoch in _epochs(stream, sink, binding.schema, run, parts):
                path = Path(folder) / f"{clock.new_id()}.{sink.suffix}"
                files.write_new(path, sink.prepare([epoch.rows], binding.schema))
                prepared = Prepared(path, epoch.rows.num_rows)
                receiver.commit(SinkEpoch(epoch.lineage, epoch.number, (prepared,)))
                path.unlink()
                rows += epoch.rows.num_rows
                fault("merge.appended")
    finally:
        receiver.close()
    return Given(binding.operator, stream.spec.name, sink.identity, rows)


def _epochs(
    stream: Stream, sink: Sink, schema: pa.Schema, run: str, parts: int
) -> Iterator[_Epoch]:
    """Yield the last row of each key by parts, or all rows by their offsets."""
    if sink.replaces_by:
        with Parted(stream, schema.names, sink.replaces_by, parts) as rows:
            for part in range(parts):
                found = list(last_rows(rows, part)[1].values())
                if found:
                    batch = pa.RecordBatch.from_pylist(found, schema)
                    yield _Epoch(run, part + 1, batch)
        return
    for partition, (begin, end) in enumerate(zip(stream.begins(), stream.ends(), strict=True)):
        for number in range(begin // ROWS, -(-end // ROWS)):
            span = max(begin, number * ROWS), min(end, (number + 1) * ROWS)
            read = [one.batch for one in stream.read(partition, *span, columns=schema.names)]
            if any(one.num_rows for one in read):
                batch = normalise(pa.Table.from_batches(read), schema)
                yield _Epoch(f"{run}/{partition}", number + 1, batch)
