"""Why a job sends what it sends: which inputs hold its watermarks back, and where rows went.

Reads manifests, the catalog and the bus; needs neither the job's code nor its driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.bus import Bus
from headrace.coordinator.catalog import Catalog, OperatorEntry, StageEntry, TimeEntry
from headrace.coordinator.epoch_ranges import BootstrapPartition, bootstrap_partitions
from headrace.coordinator.inspection.job_reader import JobReader
from headrace.coordinator.manifest import InputPosition, JobState, OperatorState
from headrace.coordinator.watermarks import Now, holding, is_idle, resting
from headrace.errors import InvalidInputError
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK

Standing = Literal["holds back", "counts", "idle", "at the end"]


@dataclass(frozen=True)
class PartitionView:
    """A partition of a timed input: its watermark, rows not yet read, when some were last read.

    ``standing`` says what it means for the watermark of its stage: the least of those that count.
    """

    operator: str
    stream: str
    partition: int
    watermark_ms: int | None
    unread: int
    read_ms: int | None
    standing: Standing


@dataclass(frozen=True)
class WatermarkView:
    """A stage: its watermark, the lowest one at which it has something due, who holds it back."""

    stage: str
    watermark_ms: int | None
    due_ms: int | None
    behind: str


@dataclass(frozen=True)
class OperatorView:
    """An operator: rows in and out, and what became of the others.

    ``epoch`` is the last one in which it sent rows, and ``time_ms`` its clock; -1: it never did.
    """

    name: str
    text: str
    received: int
    sent: int
    others: dict[str, int]
    epoch: int
    time_ms: int


@dataclass(frozen=True)
class OutputView:
    """Where rows leave the job, and the last epoch in which they did.

    ``stopped_at`` names the operator that has got rows since and sent none, or the input that
    has brought none; ``None``: rows still leave. ``due`` is its stage where it waits for a
    watermark.
    """

    operator: str
    epoch: int
    time_ms: int
    stopped_at: str | None = None
    reason: str = ""
    due: WatermarkView | None = None


@dataclass(frozen=True)
class JobDiagnosis:
    """All of it, as of one epoch."""

    job: str
    epoch: int
    time_ms: int
    partitions: tuple[PartitionView, ...]
    stages: tuple[WatermarkView, ...]
    operators: tuple[OperatorView, ...]
    ends: tuple[OutputView, ...]
    first: tuple[BootstrapPartition, ...] = ()


def diagnose(reader: JobReader, bus: Bus) -> JobDiagnosis:
    """Return why a job sends what it sends.

    Raises:
        InvalidInputError: an older version ran the job last.
    """
    state = reader.state()
    catalog = reader.catalog(state)
    if not catalog.operators:
        raise InvalidInputError(
            f"job {reader.job!r} does not say what its operators are: an older version ran it; "
            "start it once with this one",
            job=reader.job,
        )
    return _Diagnosis(state, catalog, bus).answer()


class _Diagnosis:
    def __init__(self, state: JobState, catalog: Catalog, bus: Bus) -> None:
        self._state = state
        self._stages = {stage.name: stage for stage in catalog.stages}
        self._operators = {operator.name: operator for operator in catalog.operators}
        there = {*bus.names(), *bus.aliases()}
        names = {time.stream for stage in catalog.stages for time in stage.times} & there
        streams = {name: bus.stream(name) for name in names}
        ends = {name: stream.ends() for name, stream in streams.items()}
        self._now = Now(state.time_ms, ends, resting(streams, ends))
        self._first = tuple(bootstrap_partitions(state, catalog.inputs))

    def answer(self) -> JobDiagnosis:
        state = self._state
        return JobDiagnosis(
            state.job,
            state.epoch,
            state.time_ms,
            tuple(p for stage in self._stages.values() for p in self._partitions(stage)),
            tuple(map(self._watermark, self._stages.values())),
            tuple(map(self._operator, self._operators.values())),
            tuple(self._ends()),
            self._first,
        )

    def _partitions(self, stage: StageEntry) -> Iterator[PartitionView]:
        counted = {
            (time.operator, partition): mark
            for time in stage.times
            for partition, mark in holding(time, self._state, self._state.inputs, self._now)
        }
        least = min(counted.values(), default=None)
        for time in stage.times:
            for partition, position in sorted(self._state.inputs.get(time.operator, {}).items()):
                mark = counted.get((time.operator, partition))
                standing: Standing = "counts"
                if mark is None:
                    idle = is_idle(time, partition, position, self._now)
                    standing = "idle" if idle else "at the end"
                elif mark == least:
                    standing = "holds back"
                yield self._partition(time, partition, position, standing)

    def _partition(
        self, time: TimeEntry, partition: int, position: InputPosition, standing: Standing
    ) -> PartitionView:
        own = position.watermark_behind(time.lateness_ms)
        ends = self._now.ends.get(time.stream, ())
        end = ends[partition] if partition < len(ends) else position.next_offset
        return PartitionView(
            time.operator,
            time.stream,
            partition,
            _known(self._state.time_ms if time.is_clock else own),
            position.lag(end),
            position.read_ms if position.max_time > NO_WATERMARK else None,
            standing,
        )

    def _watermark(self, stage: StageEntry) -> WatermarkView:
        due = [
            task.event_deadline
            for name, task in self._state.tasks.items()
            if name.rpartition("/")[0] == stage.name and task.event_deadline is not None
        ]
        mark = self._state.watermarks.get(stage.name, NO_WATERMARK)
        behind, waiting = self.behind(stage.name), self._waiting(stage.name)
        if waiting:
            behind += f"; {waiting:,} messages wait for calls, and hold back what follows these"
        return WatermarkView(stage.name, _known(mark), min(due, default=None), behind)

    def _waiting(self, stage: str) -> int:
        tasks = self._state.tasks.items()
        return sum(task.waiting for name, task in tasks if name.rpartition("/")[0] == stage)

    def behind(self, name: str) -> str:
        """Say who holds a stage's watermark back: the partitions at the head of its way."""
        found = self._holding(self._stages[name])
        if not found:
            is_timed = any(stage.times for stage in self._stages.values())
            return "nothing: all are idle or at their end" if is_timed else "no event time"
        first = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"input {first.operator}, partition {first.partition}{more}"

    def _holding(self, stage: StageEntry) -> list[PartitionView]:
        """The partitions that hold a stage back: of the sender furthest behind that is not idle."""
        if not stage.senders:
            return [p for p in self._partitions(stage) if p.standing == "holds back"]
        marks = self._state.watermarks
        order = sorted(stage.senders, key=lambda one: marks.get(one[0], NO_WATERMARK) - one[1])
        found = (self._holding(self._stages[sender]) for sender, _ in order)
        return next((held for held in found if held), [])

    def _operator(self, operator: OperatorEntry) -> OperatorView:
        held = self._held(operator.name)
        counts = dict(held.counts)
        received = counts.pop("received", 0)
        sent = counts.pop("sent", 0) + counts.pop("out", 0)
        return OperatorView(
            operator.name, operator.text, received, sent, counts, held.epoch, held.time_ms
        )

    def _held(self, name: str) -> OperatorState:
        return self._state.operators.get(name, OperatorState())

    def _ends(self) -> Iterator[OutputView]:
        read = {before for operator in self._operators.values() for before in operator.inputs}
        sources = [o for o in self._operators.values() if not o.inputs]
        newest = max((self._arrival(source)[0] for source in sources), default=-1)
        for operator in self._operators.values():
            if operator.name in read:
                continue
            epoch, time_ms = self._arrival(operator)
            if epoch >= newest >= 0:
                yield OutputView(operator.name, epoch, time_ms)
                continue
            stop = self._stop(operator)
            reason, due = self._reason(stop)
            yield OutputView(operator.name, epoch, time_ms, stop.name, reason, due)

    def _arrival(self, operator: OperatorEntry) -> tuple[int, int]:
        """When rows last came to an operator: the epoch, and its clock."""
        held = self._held(operator.name)
        if operator.kind in _ENTRIES:
            return held.epoch, held.time_ms
        return held.received_epoch, held.received_ms

    def _stop(self, end: OperatorEntry) -> OperatorEntry:
        """The operator that got rows since any came to the end; else the input."""
        operator = end
        while operator.inputs:
            # What is looked up in a table brings no rows.
            names = operator.inputs[:1] if operator.kind == "JoinKept" else operator.inputs
            befores = [self._operators[name] for name in names]
            operator = max(befores, key=self._arrival)
            if self._arrival(operator) > self._arrival(end):
                return operator
        return operator

    def _reason(self, stop: OperatorEntry) -> tuple[str, WatermarkView | None]:
        if not stop.inputs and self._first and stop.name not in {o.operator for o in self._first}:
            return f"it waits until {self._first[0].operator} has been read", None
        if not stop.inputs:
            return "it brought no rows since", None
        counts = self._held(stop.name).counts
        received = counts.get("received", 0)
        if counts.get("late", 0) == received > 0:
            return "all of its rows were late", None
        if counts.get("dropped", 0) + counts.get("dead_letters", 0) == received > 0:
            return "it refused all of its rows", None
        stage = self._watermark(self._stages[stop.stage])
        if stop.kind in _WAITING and stage.due_ms is not None:
            return "it waits for a watermark", stage
        return "it sent none of the rows that it got since", None


_WAITING = (
    "JoinKept",
    "WindowAggregate",
    "RunningAggregate",
    "Process",
    "ProcessSeveral",
    "InOrder",
)
"""Operators that send what they got once a watermark has passed it."""

_ENTRIES = ("Input", "PartitionBy")


def _known(watermark: int) -> int | None:
    return watermark if NO_WATERMARK < watermark < END_WATERMARK else None
