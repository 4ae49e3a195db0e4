"""Brings results of a run over old data into those of the live job: for each key, one wins.

Called while the live job appends nothing. Each partition gets the rows of a part of the keys in
one append, under the run of the other job, so it gets them once, however often a merge is
repeated.

A sink takes what a run has kept for it in a stream (``SinkBackfill``) as epochs of the live
job's operator under the run's lineage, so once as well. What an epoch holds is a function of the
stream.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.bus import Bus, Fence, Producer, Stream
from headrace.clock import Clock
from headrace.closeable import Closeable
from headrace.coordinator.operations.compare import (
    KeyPartitionedRows,
    Row,
    SpillFile,
    key_columns,
    key_names,
    last_rows,
    part_count,
)
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.sinks import Prepared, Sink, SinkEpoch, SinkSite
from headrace.plan.stages import SinkBinding
from headrace.records.schema import normalise

MergeFunction = Callable[[Row | None, Row], Row | None]
"""Given the live row of a key, ``None`` where there is none, and the other one: what is to follow
in the live stream; ``None`` for nothing."""


@dataclass(frozen=True)
class MergeResult:
    """What became of one output.

    Args:
        operator: that both streams come from.
        stream: the live one.
        appended: rows that it got.
        there: rows that it had got before, by the same run.
        kept: keys for which the live rows stay.
    """

    operator: str
    stream: str
    appended: int
    there: int
    kept: int


def live_wins(live: Row | None, other: Row) -> Row | None:
    """Take what the live job has nothing of."""
    return other if live is None else None


def choose_rows(
    bus: Bus,
    operator: str,
    streams: tuple[str, str],
    run: str,
    merge: MergeFunction = live_wins,
    key: Sequence[str] = (),
    *,
    parts: int | None = None,
    is_alike: bool = False,
) -> ChosenRows:
    """Choose what the last rows of one stream become in another, a part of the keys at a time.

    A part is one append to each partition that has rows of it, and sequences are numbers of parts:
    so ``parts`` must be the same when a merge is asked for again.

    Args:
        bus: with the streams.
        operator: that they come from.
        streams: the live one, and the other.
        run: a name of the other one's run that no other run has.
        merge: chooses for a key.
        key: columns that say which rows are of one thing; by default the key of the live stream
            and the window.
        parts: how many; ``None``: by the size of the other stream.
        is_alike: both jobs send a key to the same partition, although streams have no key.

    Raises:
        InvalidInputError: no columns identify rows, or where they belong, or ``merge`` fails or
            makes rows that do not fit.
    """
    live, other = (bus.stream(name) for name in streams)
    columns = live.spec.schema.names
    shared = [name for name in columns if name in other.spec.schema.names]
    keys = _keys(live, shared, key)
    parts = part_count(other) if parts is None else parts
    finder = PartitionFinder(live, other, is_alike=is_alike)
    chosen = ChosenRows(live, parts, Producer(f"merge/{operator}", run), operator)
    try:
        with (
            KeyPartitionedRows(other, shared, keys, parts) as others,
            KeyPartitionedRows(live, columns, keys, parts) as lives,
        ):
            for part in range(parts):
                found = KeyPart(part, others, lives)
                rows: dict[int, list[Row]] = {}
                for name, row in found.old.items():
                    new = merged_row(merge, found.live.get(name), row, operator)
                    if new is not None:
                        rows.setdefault(finder.place(name, found), []).append(new)
                chosen.add(part, rows, len(found.old))
    except BaseException:
        chosen.close()
        raise
    return chosen


class ChosenRows(Closeable):
    """Rows that are to follow those of a live stream; none is appended until that is said.

    Args:
        live: the stream.
        parts: in how many keys are handled.
        producer: that appends.
        operator: that the rows come from.
    """

    def __init__(self, live: Stream, parts: int, producer: Producer, operator: str) -> None:
        self._live, self._parts, self._producer = live, parts, producer
        self._operator, self._spill = operator, SpillFile()
        self._met = 0
        self.rows = 0

    def add(self, part: int, rows: Mapping[int, Sequence[Row]], met: int) -> None:
        """Take the rows of a part by partition, of so many keys that were asked for."""
        for partition, some in sorted(rows.items()):
            schema, name = self._live.spec.schema, f"{self._live.spec.name!r}"
            self._spill.write(as_columns(some, schema, name), partition, part)
            self.rows += len(some)
        self._met += met

    def append(self, fence: Fence | None = None) -> MergeResult:
        """Append them; what was appended by a try before is not there twice.

        Args:
            fence: of the live job, which appends nothing in this generation.

        Raises:
            NotOwnerError: another driver of the live job has begun; merge again.
        """
        live, came, there = self._live, 0, 0
        for part in range(self._parts):
            for partition, rows in self._spill.read(part):
                how: Any = {"producer": self._producer, "sequence": part + 1, "fence": fence}
                if live.spec.key:
                    answers = list(live.append_rows(rows, **how).values())
                else:
                    answers = [live.append(partition, rows, **how)]
                for answer in answers:
                    count = answer.next_offset - answer.first_offset
                    came, there = (
                        (came, there + count) if answer.duplicate else (came + count, there)
                    )
                    fault("merge.appended")
        return MergeResult(self._operator, live.spec.name, came, there, self._met - self.rows)

    def close(self) -> None:
        """Let them go."""
        self._spill.close()


def _keys(live: Stream, shared: Sequence[str], wanted: Sequence[str]) -> list[str]:
    keys = key_columns(live, shared, wanted)
    if len(keys) == len(shared):
        name = live.spec.name
        raise InvalidInputError(
            f"stream {name!r} has no key, so nothing says which rows are of one thing; give --key "
            "COLUMN,...",
            stream=name,
        )
    return keys


class KeyPart:
    """The last rows of a part of the keys in both streams, and where rows of each key lie.

    Args:
        part: of the keys.
        others: rows of the other stream.
        lives: rows of the live one; of keys that the other has not, none is held.
    """

    def __init__(self, part: int, others: KeyPartitionedRows, lives: KeyPartitionedRows) -> None:
        self.old: dict[str, Row] = {}
        self.live: dict[str, Row] = {}
        self.places: tuple[dict[str, set[int]], dict[str, set[int]]] = ({}, {})
        for partition, batch, names in others.read(part):
            for name, row in zip(names, batch.to_pylist(), strict=True):
                self.old[name] = row
                self.places[1].setdefault(name, set()).add(partition)
        for partition, batch, names in lives.read(part):
            wanted = [at for at, name in enumerate(names) if name in self.old]
            rows = batch.take(pa.array(wanted, pa.int64())).to_pylist()
            for at, row in zip(wanted, rows, strict=True):
                self.live[names[at]] = row
                self.places[0].setdefault(names[at], set()).add(partition)


class PartitionFinder:
    """Says to which partition of the live stream a row belongs: where those of its key lie.

    Args:
        live: the stream.
        other: that of the run over old data.
        is_alike: both jobs send a key to the same partition, where there are as many.
    """

    def __init__(self, live: Stream, other: Stream, *, is_alike: bool) -> None:
        self._name, self._is_any = live.spec.name, bool(live.spec.key) or live.spec.partitions == 1
        counts = [one.settings.counts(one.created.partitions)[0] for one in (live, other)]
        self._is_alike = is_alike and counts[0] == counts[1]

    def place(self, name: str, found: KeyPart) -> int:
        """Return the partition of a key; 0 where the bus knows.

        Raises:
            InvalidInputError: that cannot be known.
        """
        if self._is_any:
            return 0
        lives, others = (held.get(name, set()) for held in found.places)
        if not lives and self._is_alike and len(others) == 1:
            return next(iter(others))
        if len(lives) == 1:
            return next(iter(lives))
        why = (
            f"rows of key {name} lie in its partitions {sorted(lives)}, so none is the last"
            if lives
            else f"it has no row of key {name} yet, and nothing says to which of its partitions "
            "the live job will send one"
        )
        raise InvalidInputError(
            f"stream {self._name!r} has no key of its own, and {why}; let the job keep the columns "
            "that it is partitioned by, which a new stream has for its key, or send to one "
            "partition (partitions=1)",
            stream=self._name,
        )


def as_columns(rows: Sequence[Row], schema: pa.Schema, name: str) -> pa.Table:
    """Return chosen rows as a table of some columns; ``name`` says whose they are.

    Raises:
        InvalidInputError: they do not fit.
    """
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidInputError(
            f"what merge returns does not fit the columns of {name}: {error}"
        ) from error


def merged_row(merge: MergeFunction, live: Row | None, other: Row, operator: str) -> Row | None:
    """Return what a function makes of the rows of a key.

    Raises:
        InvalidInputError: it fails, or makes what is no row.
    """
    try:
        row = merge(live, other)
    except Exception as error:
        raise InvalidInputError(
            f"merge raised {type(error).__name__}: {error}, for output {operator!r}, live "
            f"{live}, other {other}"
        ) from error
    if row is not None and not isinstance(row, dict):
        raise InvalidInputError(
            f"merge returned {row!r} for output {operator!r}; expected a dict of columns, or None"
        )
    return row


EPOCH_ROWS = 50_000
"""Of an epoch, where rows do not take the place of others."""


@dataclass(frozen=True)
class SinkBackfillResult:
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
class _BackfillEpoch:
    lineage: str
    number: int
    rows: pa.RecordBatch


class SinkBackfill(Closeable):
    """A sink that is to have rows of a stream: all is chosen, and nothing given until it is said.

    What it holds of a key stays, unless a function chooses and the sink can return what it has.

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
        merge: MergeFunction | None = None,
    ) -> None:
        self._stream, self._binding, self._run, self._parts = stream, binding, run, parts
        self._clock, self._files, self._schema = clock, Files(), binding.schema
        beneath = binding.sink.beneath()
        self._check_columns()
        self._unasked = "" if merge is None else _why_no_function(beneath)
        self._by_function = merge is not None and not self._unasked
        self._sink: Sink = binding.sink if self._by_function else beneath
        site = SinkSite(job, binding.operator, binding.schema, clock, self._files)
        with ExitStack() as stack:
            self._spill = stack.enter_context(SpillFile())
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

    def _choose(self, merge: MergeFunction) -> None:
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
                merged_row(merge, there.get(name), row, operator)
                for name, row in zip(names, epoch.rows.to_pylist(), strict=True)
            ]
            rows = [row for row in found if row is not None]
            if rows:
                table = as_columns(rows, self._schema, self._sink.identity)
                self._spill.write(table, 0, epoch.number)

    def give(self) -> SinkBackfillResult:
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
        return SinkBackfillResult(
            self._binding.operator, name, sink, rows, self._by_function, self._unasked
        )

    def close(self) -> None:
        """Release the sink."""
        self._held.close()

    @contextmanager
    def _prepared(self, rows: pa.RecordBatch) -> Iterator[Prepared]:
        path = self._folder / f"{self._clock.new_id()}.{self._sink.suffix}"
        self._files.write_new(path, self._sink.prepare([rows], self._schema))
        try:
            yield Prepared(path, rows.num_rows)
        finally:
            path.unlink(missing_ok=True)

    def _epochs(self) -> Iterator[_BackfillEpoch]:
        """Yield what was chosen, else the last rows of keys by parts, or all by their offsets."""
        if self._by_function:
            for number in range(1, self._parts + 1):
                if read := [batch for _, batch in self._spill.read(number)]:
                    rows = normalise(pa.Table.from_batches(read), self._schema)
                    yield _BackfillEpoch(self._run, number, rows)
        elif self._sink.replaces_by:
            yield from self._keyed()
        else:
            yield from self._numbered()

    def _keyed(self) -> Iterator[_BackfillEpoch]:
        with KeyPartitionedRows(
            self._stream, self._schema.names, self._sink.replaces_by, self._parts
        ) as rows:
            for part in range(self._parts):
                found = list(last_rows(rows, part)[1].values())
                if found:
                    batch = pa.RecordBatch.from_pylist(found, self._schema)
                    yield _BackfillEpoch(self._run, part + 1, batch)

    def _numbered(self) -> Iterator[_BackfillEpoch]:
        stream, names = self._stream, self._schema.names
        for partition, (begin, end) in enumerate(zip(stream.begins(), stream.ends(), strict=True)):
            for number in range(begin // EPOCH_ROWS, -(-end // EPOCH_ROWS)):
                span = max(begin, number * EPOCH_ROWS), min(end, (number + 1) * EPOCH_ROWS)
                read = [one.batch for one in stream.read(partition, *span, columns=names)]
                if any(one.num_rows for one in read):
                    batch = normalise(pa.Table.from_batches(read), self._schema)
                    yield _BackfillEpoch(f"{self._run}/{partition}", number + 1, batch)


def _why_no_function(sink: Sink) -> str:
    """Return why no function can choose for a sink; empty: one can."""
    if not sink.replaces_by:
        return "each row is a new one there"
    return "" if sink.reports_rows else "the sink does not report what it has (reports_rows)"
