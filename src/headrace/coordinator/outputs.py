"""Makes a committed epoch's outputs visible, any number of times the same.

Three kinds: output streams on the bus; internal streams between the parts of a job, each
partition of which gets a mark after the rows of an epoch (whatever follows has an event time of
at least its watermark, or nothing follows); and sinks. Whether a sink has an epoch, only the
sink knows: ``DONE`` in the job's storage holds the digest of the last manifest that all of them
have confirmed, which saves asking and is enough for commands that have no graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.bus import Bus, Fence, Producer, StreamSpec
from headrace.clock import Clock
from headrace.coordinator.job_storage import JobStorage
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.watermarks import Positions, passed_on
from headrace.errors import (
    InternalError,
    InvalidInputError,
    PartsError,
    UnavailableError,
)
from headrace.faults import fault
from headrace.files import Files, local_copy
from headrace.graph.semantics import Semantics
from headrace.graph.sinks import NO_TIME, Prepared, Receiver, SinkEpoch, SinkSite
from headrace.plan.stages import GROUP, MARK, Exchange, JobPlan, Stage
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK, InputRange, OutputPart, SinkPart
from headrace.runtime.sink_shares import verified

_PARTS = 1 << 20


class BusAppend(NamedTuple):
    """Frames of one file that are appended to a partition in one step, the n-th of their epoch."""

    stream: str
    partition: int
    number: int
    path: str
    ranges: list[tuple[int, int]]
    rows: int


def producer_of(state: JobState) -> Producer:
    """Return who appends what a job sends, under its lineage."""
    return _producer(state.job, state.lineage)


@lru_cache(maxsize=256)
def _producer(job: str, lineage: str) -> Producer:
    return Producer.of_job(job, lineage)


def sequence_of(state: JobState, number: int) -> int:
    """Return the sequence of an append of the last epoch, by its number in the partition."""
    return state.epoch * _PARTS + number


def last_sequence_of(state: JobState) -> int:
    """Return the sequence that no append of the last epoch is above, and any later one is."""
    return sequence_of(state, _PARTS - 1)


def publish_outputs(
    state: JobState, bus: Bus, root: Path, fence: Fence, inner: Collection[str] = ()
) -> int:
    """Append the outputs that the state names; returns the rows appended by this call.

    Rows of ``inner`` streams do not count: they do not leave the job.

    One append for each file of a partition, in a fixed order, under the producer
    (job, lineage) with a sequence made of the epoch and the append's number in the
    partition. Calling it again, from any process, appends what is missing.

    Raises:
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    producer = producer_of(state)
    rows = 0
    for one in bus_appends(state.outputs):
        if one.number >= _PARTS:
            raise InternalError(f"{one.number} files for one partition", epoch=state.epoch)
        appended = bus.stream(one.stream).append_file(
            one.partition,
            local_copy(root / one.path),
            one.ranges,
            producer=producer,
            sequence=sequence_of(state, one.number),
            fence=fence,
        )
        if not appended.duplicate and one.stream not in inner:
            rows += one.rows
        fault("epoch.output_published")
    return rows


def bus_appends(parts: Iterable[OutputPart]) -> Iterator[BusAppend]:
    """Yield one append for each file of a partition, in a fixed order."""
    place, file = attrgetter("stream", "partition"), attrgetter("path")
    for (stream, partition), found in groupby(sorted(parts, key=place), place):
        for number, (path, same) in enumerate(groupby(found, file)):
            held = list(same)
            rows = sum([part.rows for part in held])
            yield BusAppend(stream, partition, number, path, _joined(held), rows)


def _joined(parts: Sequence[OutputPart]) -> list[tuple[int, int]]:
    """Ranges of a file, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for part in parts:
        if ranges and ranges[-1][1] == part.begin:
            ranges[-1] = (ranges[-1][0], part.end)
        else:
            ranges.append((part.begin, part.end))
    return ranges


def create_internal_streams(plan: JobPlan, bus: Bus, fence: Fence | None = None) -> None:
    """Make the internal streams that a part sends to or receives from, unless they are there.

    Raises:
        PartsError: one holds rows with other columns.
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    known = bus.names()
    for stage in plan.stages:
        for exchange in (*stage.sends, *stage.feeds):
            if not exchange.stream:
                continue
            schema = exchange.stream_schema
            if exchange.stream in known:
                _check_columns(plan, exchange, bus, fence)
            spec = StreamSpec(
                exchange.stream, exchange.partitions, schema, address=exchange.address
            )
            made = bus.create(spec, exist_ok=True, fence=fence)
            if made.address not in ("", exchange.address):  # reached in another way by now
                made.configure(fence=fence, address=exchange.address)


def _check_columns(plan: JobPlan, exchange: Exchange, bus: Bus, fence: Fence | None) -> None:
    found = bus.stream(exchange.stream)
    held = found.spec.schema
    if held.equals(exchange.stream_schema):
        return
    if not any(found.ends()):  # of a start that failed: nothing was ever sent
        bus.remove(exchange.stream, fence=fence)
        return

    def columns_text(schema: pa.Schema) -> str:
        own = [field for field in schema if field.name not in (GROUP, MARK)]
        return ", ".join(f"{field.name} {field.type}" for field in own)

    job = plan.graph.name
    raise PartsError(
        f"what partition_by {exchange.operator!r} sends has changed, and rows as they were wait in "
        f"its internal stream: found {columns_text(exchange.schema)}; expected "
        f"{columns_text(held)}. Put a map with these columns before it, or start over: "
        f"headrace jobs reset {job}",
        job=job,
        stream=exchange.stream,
    )


def internal_ranges(
    stage: Stage, ranges: Iterable[InputRange], inputs: Positions
) -> dict[int, list[InputRange]]:
    """Return what each task of a stage reads of its partitions, an empty range where no news is.

    Args:
        stage: with a number of tasks that divides that of the partitions.
        ranges: with news, of all inputs.
        inputs: how far the job has read.
    """
    news = {(wanted.operator, wanted.partition): wanted for wanted in ranges}
    found: dict[int, list[InputRange]] = {}
    for feed in stage.feeds:
        for partition, at in enumerate(_positions(feed, inputs)):
            empty = InputRange(
                feed.operator, partition, at.next_offset, at.next_offset, at.max_time
            )
            task = partition * stage.tasks // feed.partitions
            found.setdefault(task, []).append(news.get((feed.operator, partition), empty))
    return found


def internal_watermark(stage: Stage, inputs: Positions) -> int:
    """Return the least mark of all partitions of the internal streams that a stage reads."""
    return min(at.max_time for feed in stage.feeds for at in _positions(feed, inputs))


def open_watermark(stage: Stage, inputs: Positions) -> int:
    """Return the least mark of the internal streams that have not been read to their end."""
    marks = [
        at.max_time
        for feed in stage.feeds
        if not internal_streams_ended([feed], inputs)
        for at in _positions(feed, inputs)
    ]
    return min(marks, default=END_WATERMARK)


def internal_streams_ended(feeds: Iterable[Exchange], inputs: Positions) -> bool:
    """Say whether all partitions of internal streams have been read to their end."""
    return all(at.ended for feed in feeds for at in _positions(feed, inputs))


def _positions(feed: Exchange, inputs: Positions) -> list[InputPosition]:
    held = inputs.get(feed.operator, {})
    return [held.get(partition, InputPosition(0)) for partition in range(feed.partitions)]


def publish_internal_streams(
    state: JobState, plan: JobPlan, bus: Bus, root: Path, fence: Fence
) -> int:
    """Bring out what the last epoch sent, marks last; rows that left the job by this call.

    Calling it again, from any process, appends what is missing.

    Raises:
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    inner = [exchange.stream for _, exchange in plan.internal_sends]
    if not inner:
        return publish_outputs(state, bus, root, fence)
    with ExitStack() as sent:
        for name in inner:
            sent.enter_context(bus.stream(name).together())
        rows = publish_outputs(state, bus, root, fence, inner)
        publish_marks(state, plan, bus, fence)
    return rows


def publish_marks(state: JobState, plan: JobPlan, bus: Bus, fence: Fence) -> None:
    """Append the marks of the last epoch, after its rows; any number of times the same."""
    marks = passed_on(state.watermarks, state.tasks)
    for stage, exchange in plan.internal_sends:
        watermark = marks.get(stage.name, NO_WATERMARK)
        _publish_mark(state, exchange, watermark, bus, fence, is_timed=stage.timed)


def _publish_mark(
    state: JobState, exchange: Exchange, watermark: int, bus: Bus, fence: Fence, *, is_timed: bool
) -> None:
    if state.ended:
        mark = END_WATERMARK
    elif not is_timed or watermark in (NO_WATERMARK, END_WATERMARK):
        return
    else:
        mark = watermark - exchange.delay_ms
    schema = exchange.stream_schema
    columns = [pa.array([mark if f.name == MARK else None], f.type) for f in schema]
    row = pa.RecordBatch.from_arrays(columns, schema=schema)
    stream, producer = bus.stream(exchange.stream), producer_of(state)
    parts = Counter(part.partition for part in state.outputs if part.stream == exchange.stream)
    for partition in range(exchange.partitions):
        sequence = sequence_of(state, parts[partition])  # there are no more appends than parts
        stream.append(partition, row, producer=producer, sequence=sequence, fence=fence)
        fault("feed.mark_published")


def sent_ends(plan: JobPlan, bus: Bus) -> dict[str, list[int]]:
    """Return the next offset of each partition of the internal streams that a part sends to."""
    names = {exchange.stream for _, exchange in plan.internal_sends}
    return {name: bus.stream(name).ends() for name in sorted(names)}


def trim_internal_streams(state: JobState, plan: JobPlan, bus: Bus, fence: Fence) -> None:
    """Release the rows of internal streams that the state has taken in.

    Raises:
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    for feed in plan.feeds:
        stream = bus.stream(feed.stream)
        for partition, position in state.inputs.get(feed.operator, {}).items():
            with suppress(UnavailableError):  # somebody appends; another epoch will do it
                fault("feed.trim_due")
                stream.trim(partition, position.next_offset, fence=fence)
                fault("feed.trimmed")


CONFIRMED_FILE = "sinks-done"


class SinkCommitter:
    """The receivers of one driver, for one thread.

    Args:
        plan: of the job.
        storage: of the job's files.
        clock: time and names.
    """

    def __init__(self, plan: JobPlan, storage: JobStorage, clock: Clock) -> None:
        self._bindings = {binding.operator: binding for binding in plan.sinks}
        self._job, self._storage, self._clock = plan.job, storage, clock
        self._open: dict[str, Receiver] = {}
        self._for = (0, "")
        self._followers = {
            binding.operator: stage
            for stage in plan.stages
            for binding in stage.sinks
            if binding.sink.follows_time and binding.semantics == Semantics.EXACTLY_ONCE
        }

    def begin(self, generation: int, origin: str) -> None:
        """Open them for a driver, which makes sure that they can take the rows.

        Args:
            generation: of the driver.
            origin: of its job.

        Raises:
            InvalidInputError: one is not as it must be.
            ReceiverAwayError: one does not answer.
            NotOwnerError: one has seen a newer driver.
        """
        if self._for != (generation, origin):
            self.close()
            self._for = generation, origin
        self.open()

    def open(self) -> None:
        """Open those that are not open yet; see ``begin``."""
        for name, binding in self._bindings.items():
            if name not in self._open:
                files, clock = self._storage.files, self._clock
                site = SinkSite(self._job, name, binding.schema, clock, files, *self._for)
                self._open[name] = binding.sink.open(site)

    def commit(self, state: JobState, share: Callable[[Sequence[SinkPart]], bool]) -> int:
        """Let each receiver commit what the state's epoch sent to it; returns the rows.

        Args:
            state: after the epoch.
            share: has slots pass files on to their sink, each as a share; False: not all of them.

        Raises:
            ReceiverAwayError: one does not answer; call again.
            InvalidInputError: one refuses the rows, or the graph has lost the sink.
            CorruptDataError: a file is not as the manifest says.
        """
        if not (state.sinks or self._followers) or sinks_confirmed(state, self._storage.root):
            return 0
        lost = sorted({part.operator for part in state.sinks} - set(self._bindings))
        if lost:
            raise InvalidInputError(
                f"epoch {state.epoch} of job {state.job!r} sent rows to sinks {lost}, which have "
                "not confirmed them and which the graph no longer has; run the job once with "
                "these operators, and take them out then",
                job=state.job,
                epoch=state.epoch,
            )
        self.open()
        rows = 0
        for name, receiver in self._open.items():
            parts = [part for part in state.sinks if part.operator == name]
            files = tuple(map(self._verified, parts))
            if files or name in self._followers:
                epoch = SinkEpoch(state.lineage, state.epoch, files, self._watermark(name, state))
                fault("sink.due")
                if not (receiver.share_out(epoch) and share(parts)):
                    receiver.commit(epoch)
                rows += epoch.rows
                fault("sink.committed")
        done = self._storage.root / CONFIRMED_FILE
        self._storage.files.replace(done, state.digest.encode(), durable=False)
        return rows

    def _watermark(self, operator: str, state: JobState) -> int:
        """The watermark of what reaches a sink, by the state after an epoch."""
        stage = self._followers.get(operator)
        if stage is None:
            return NO_TIME
        found = passed_on(state.watermarks, state.tasks).get(stage.name, NO_WATERMARK)
        if found in {NO_WATERMARK, END_WATERMARK}:
            return found
        return found - stage.delays.get(operator, 0)

    def deliver_pending(self, lineage: str, epoch: int, parts: Sequence[SinkPart]) -> int:
        """Let one receiver commit what an epoch sends to it, now and only now; returns the rows.

        Args:
            lineage: of the epoch.
            epoch: its number.
            parts: all of one operator.

        Raises:
            ReceiverAwayError: it does not answer; the rows are lost where they did not get there.
        """
        self.open()
        receiver = self._open.get(parts[0].operator)
        if receiver is None:
            return 0  # an epoch that is only run again has none
        sent = SinkEpoch(lineage, epoch, tuple(self._verified(part) for part in parts))
        fault("sink.due")
        receiver.commit(sent)
        fault("sink.committed")
        return sent.rows

    def _verified(self, part: SinkPart) -> Prepared:
        return verified(self._storage.files, self._storage.root, part)

    def close(self) -> None:
        """Release what is open."""
        for receiver in self._open.values():
            receiver.close()
        self._open = {}


class NoSinks(SinkCommitter):
    """Nobody: for an epoch that is run again, whose rows no real receiver may get."""

    def open(self) -> None:
        """Open nothing."""

    def commit(self, state: JobState, share: Callable[[Sequence[SinkPart]], bool]) -> int:
        """Let the rows be."""
        return 0


def sinks_confirmed(state: JobState, root: Path) -> bool:
    """Say whether the job's storage knows that all receivers have the state's epoch."""
    with suppress(FileNotFoundError):
        return Files(sync=False).read(root / CONFIRMED_FILE).decode() == state.digest
    return False


def check_sinks_confirmed(state: JobState, root: Path) -> None:
    """Refuse to go past an epoch whose sinks may not have it, where there is no graph to ask.

    Raises:
        InvalidInputError: they have not confirmed it.
    """
    if state.sinks and not sinks_confirmed(state, root):
        names = sorted({part.operator for part in state.sinks})
        raise InvalidInputError(
            f"epoch {state.epoch} of job {state.job!r} sent rows to sinks {names}, which have not "
            "confirmed them yet; start the job, which passes them on, stop it, and try again",
            job=state.job,
            epoch=state.epoch,
        )
