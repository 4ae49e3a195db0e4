"""Gives a sink what a run beside the live job has kept for it in a stream.

The sink takes it as epochs of the live job's operator under the run's lineage, so once, however
often somebody asks and dies. What an epoch holds is a function of the stream alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.bus.bus import Stream
from headrace.clock import Clock
from headrace.closing import Closing
from headrace.coordinator.reprocessing.latest import last_rows
from headrace.coordinator.reprocessing.merging import Merge, chosen_row, fitting
from headrace.coordinator.reprocessing.parted import Parted, Spill, key_names
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
        by_function: the merge function chose; else what was there stays.
        unasked: why it did not choose, where there is one.
    """

    operator: str
    stream: str
    sink: str
    rows: int
    by_function: bool = False
    unasked: str = ""


@dataclass(frozen=True)
class _Epoch:
    lineage: str
    number: int
    rows: pa.RecordBatch


class Giving(Closing):
    """A sink that is to have rows of a stream: all is chosen, and nothing given until it is said.

    What it holds of a key stays, unless a function chooses and the sink can tell what it has.

    Args:
        stream: of a run that has ended.
        binding: of the live job.
        job: the live one.
        run: a name of the other one's run that no other run has.
        parts: in how many parts keys are handled; the same whenever it is asked for.
        clock: time and names.
        merge: the function; ``None``: what is there stays.

    Raises:
        ReceiverAwayError: the sink does not answer; ask again.
        InvalidInputError: it refuses the rows, or the function fails.
    """

    def __init__(
        self,
        stream: Stream,
        binding: SinkBinding,
        job: str,
        run: str,
        parts: int,
        clock: Clock,
        merge: Merge | None = None,
    ) -> None:
        self._stream, self._binding, self._run, self._parts = stream, binding, run, parts
        self._clock, self._files, self._schema = clock, Files(), binding.schema
        beneath = binding.sink.beneath()
        self._check_columns()
        self._unasked = "" if merge is None else _why_unasked(beneath)
        self._by_function = merge is not None and not self._unasked
        self._sink: Sink = binding.sink if self._by_function else beneath
        site = SinkSite(job, binding.operator, binding.schema, clock, self._files)
        with ExitStack() as stack:
            self._spill = stack.enter_context(Spill())
            folder = tempfile.TemporaryDirectory(prefix="headrace-")
            self._folder = Path(stack.enter_context(folder))
            self._receiver = self._sink.open(site)
            stack.callback(self._receiver.close)
            if merge is not None and self._by_function:
                self._choose(merge)
            self._held = stack.pop_all()

    def _check_columns(self) -> None:
        stream, held = self._stream.spec.name, self._stream.spec.schema.names
        lacking = [name for name in self._schema.names if name not in held]
        if lacking:
            raise InvalidInputError(
                f"stream {stream!r} has no columns {lacking}, which {self._binding.sink.identity} "
                "takes: the job was changed since; run it over the old data again",
                stream=stream,
            )

    def _choose(self, merge: Merge) -> None:
        """Let the function choose between the rows of the stream and those of the sink."""
        keys, operator = self._sink.replaces_by, self._binding.operator
        for epoch in self._keyed():
            with self._prepared(epoch.rows) as prepared:
                held = self._receiver.held([prepared])
            there = {
                name: row
                for batch in held.to_batches()
                for name, row in zip(key_names(batch, keys), batch.to_pylist(), strict=True)
            }
            names = key_names(epoch.rows, keys)
            found = [
                chosen_row(merge, there.get(name), row, operator)
                for name, row in zip(names, epoch.rows.to_pylist(), strict=True)
            ]
            rows = [row for row in found if row is not None]
            if rows:
                table = fitting(rows, self._schema, self._sink.identity)
                self._spill.write(table, 0, epoch.number)

    def give(self) -> Given:
        """Give the sink its rows; those that it has from a try before are not there twice.

        Raises:
            ReceiverAwayError: the sink does not answer; ask again.
            InvalidInputError: it refuses the rows.
        """
        rows = 0
        for epoch in self._epochs():
            with self._prepared(epoch.rows) as prepared:
                self._receiver.commit(SinkEpoch(epoch.lineage, epoch.number, (prepared,)))
            rows += epoch.rows.num_rows
            fault("merge.appended")
        name, sink = self._stream.spec.name, self._sink.identity
        return Given(self._binding.operator, name, sink, rows, self._by_function, self._unasked)

    def close(self) -> None:
        """Let go of the sink."""
        self._held.close()

    @contextmanager
    def _prepared(self, rows: pa.RecordBatch) -> Iterator[Prepared]:
        path = self._folder / f"{self._clock.new_id()}.{self._sink.suffix}"
        self._files.write_new(path, self._sink.prepare([rows], self._schema))
        try:
            yield Prepared(path, rows.num_rows)
        finally:
            path.unlink(missing_ok=True)

    def _epochs(self) -> Iterator[_Epoch]:
        """Yield what was chosen, else the last rows of keys by parts, or all by their offsets."""
        if self._by_function:
            for number in range(1, self._parts + 1):
                if read := [batch for _, batch in self._spill.read(number)]:
                    rows = normalise(pa.Table.from_batches(read), self._schema)
                    yield _Epoch(self._run, number, rows)
        elif self._sink.replaces_by:
            yield from self._keyed()
        else:
            yield from self._numbered()

    def _keyed(self) -> Iterator[_Epoch]:
        with Parted(self._stream, self._schema.names, self._sink.replaces_by, self._parts) as rows:
            for part in range(self._parts):
                found = list(last_rows(rows, part)[1].values())
                if found:
                    batch = pa.RecordBatch.from_pylist(found, self._schema)
                    yield _Epoch(self._run, part + 1, batch)

    def _numbered(self) -> Iterator[_Epoch]:
        stream, names = self._stream, self._schema.names
        for partition, (begin, end) in enumerate(zip(stream.begins(), stream.ends(), strict=True)):
            for number in range(begin // ROWS, -(-end // ROWS)):
                span = max(begin, number * ROWS), min(end, (number + 1) * ROWS)
                read = [one.batch for one in stream.read(partition, *span, columns=names)]
                if any(one.num_rows for one in read):
                    batch = normalise(pa.Table.from_batches(read), self._schema)
                    yield _Epoch(f"{self._run}/{partition}", number + 1, batch)


def _why_unasked(sink: Sink) -> str:
    """Return why no function can choose for a sink; empty: one can."""
    if not sink.replaces_by:
        return "each row is a new one there"
    return "" if sink.tells_rows else "the sink does not tell what it has (tells_rows)"
