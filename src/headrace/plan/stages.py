"""A job cut into stages: what each task of each stage runs, reads, keeps and sends.

Frozen data, made by ``planner`` from a graph and the schemas of its inputs, read by the
task runtime and the coordinator. Hidden columns carry what operators need beside the
user's: ``__time`` (event time, int64 ms) and ``__watermark`` (int64 ms, the watermark of
the record's own input partition just before it), present in stages with ``timed``;
``__origin`` (int32, of input and partition) and ``__offset`` (int64) of the record that a row
was made of, present on the way to an operator that makes dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from headrace.graph.operator_base import TableBinding
from headrace.graph.operators import (
    Confidence,
    EventTime,
    JobGraph,
    Operator,
    RunningAggregate,
    StoreSpec,
    WindowAggregate,
)
from headrace.graph.semantics import CommitAction, Semantics, commit_actions
from headrace.graph.sinks import Sink

TIME, WATERMARK = "__time", "__watermark"
ORIGIN, OFFSET = "__origin", "__offset"
HIDDEN = (TIME, WATERMARK, ORIGIN, OFFSET)
UNKEYED = "__all"
"""The key column of state of messages that are not partitioned; 0 in every row."""

GROUP, MARK, SOURCE = "__group", "__mark", "__source"
"""Columns of an internal stream beside those of its exchange: the key group (int32); in rows of
its own, which have nothing else, the watermark that the sending stage has reached (int64 ms);
and where rows have origins, the name of the stream, for its number may become another.
"""


@dataclass(frozen=True)
class Derived:
    """Data that keeps what was found from its fields; that is neither compared nor sent on."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is only kept so that it is not found again."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True)
class InputBinding(Derived):
    """An input operator bound to its stream: partitions, and the columns that are read.

    ``schema`` is the stream's whole; ``columns`` those that operators use. ``time`` is the
    event-time column, ``None`` where no operator of the job needs it; it need not be among
    ``columns``. ``origin`` is the number of the input in ``Stage.origins`` where its rows say
    which record they are. ``pattern`` names the input of a pattern that this is one of. ``event``
    takes the place of ``time``, and ``confidence`` that of ``lateness_ms``, see ``Input``.
    When all partitions are idle, event time goes ``closes_after_ms`` beyond the last record, if
    not ``None``. ``bootstrap`` says that it is read to its end before others. ``source`` is what
    stands for the stream, in words.
    """

    operator: str
    stream: str
    partitions: int
    schema: pa.Schema
    columns: tuple[str, ...]
    time: str | None
    lateness_ms: int
    origin: int | None = None
    ahead_ms: int | None = None
    pattern: str = ""
    event: EventTime | None = None
    confidence: Confidence | None = None
    idle_ms: int | None = None
    closes_after_ms: int | None = None
    bootstrap: bool = False
    priority: int = 0
    source: str = ""

    @cached_property
    def is_timed(self) -> bool:
        """Say whether its records have event times, and operators need them."""
        return self.time is not None or self.event is not None

    @cached_property
    def is_clock(self) -> bool:
        """Say whether the event time is the wall clock of epochs."""
        return self.event is not None and self.event.is_clock

    @cached_property
    def reads(self) -> list[str]:
        """The columns read: those that operators use, and those that event times come from."""
        more = () if self.event is None else self.event.uses or ()
        if self.time is not None:
            more = (self.time,)
        return list(dict.fromkeys((*self.columns, *more)))

    @cached_property
    def read_schema(self) -> pa.Schema:
        """The types of these columns when the job was planned."""
        names = self.schema.names
        return pa.schema([self.schema.field(name) for name in self.reads if name in names])


@dataclass(frozen=True)
class Combined:
    """What an exchange may send in the place of rows: partial results of ``reader``.

    ``schema`` has the key, the partial results, and event time and watermark where rows have them.
    """

    reader: RunningAggregate | WindowAggregate
    schema: pa.Schema


@dataclass(frozen=True)
class Exchange(Derived):
    """The edge that a ``partition_by`` makes between two stages.

    ``upstream`` is the operator of the sending stage whose rows it takes.
    ``schema`` holds only the columns that later stages use, hidden ones included; what is
    ``timeless`` carries no event times and holds no watermark back, for it only fills tables.
    ``keys`` are columns of the sending side; ``delay_ms`` is how far the receiving side's
    watermark stays behind the sending stage's (the grace of the windows before it). ``stream`` is
    the internal stream of ``partitions`` that rows go through; empty: files of the epoch.
    ``address`` is that of the log elsewhere which carries it; empty: the bus does.
    ``origins`` are then the streams that the rows' origins name by number. With ``combined``
    a part of the rows may be sent as partial results.
    """

    operator: str
    source_stage: int
    target_stage: int
    keys: tuple[str, ...]
    schema: pa.Schema
    delay_ms: int = 0
    upstream: str = ""
    stream: str = ""
    partitions: int = 0
    origins: tuple[str, ...] = ()
    combined: Combined | None = None
    timeless: bool = False
    address: str = ""

    semantics: ClassVar[Semantics] = Semantics.EXACTLY_ONCE
    """Of rows that another part receives, whatever the job promises of its outputs."""

    @cached_property
    def file_schemas(self) -> dict[str, pa.Schema]:
        """The columns of its files by what their names end with: rows, and partial results."""
        found = {"arrow": self.schema}
        if self.combined is not None:
            found["partial.arrow"] = self.combined.schema
        return found

    @property
    def stream_schema(self) -> pa.Schema:
        """The columns of the internal stream."""
        own = [pa.field(GROUP, pa.int32()), pa.field(MARK, pa.int64())]
        if ORIGIN in self.schema.names:
            own.append(pa.field(SOURCE, pa.string()))
        return pa.schema([*self.schema, *own])

    @property
    def binding(self) -> InputBinding:
        """The internal stream as something that is read."""
        schema = self.stream_schema
        names = tuple(schema.names)
        return InputBinding(self.operator, self.stream, self.partitions, schema, names, None, 0)


@dataclass(frozen=True)
class OutputBinding:
    """A ``send_to`` bound to its stream; ``keys`` place rows, empty: see ``OutputNode``.

    ``schema`` is the stream's, of number ``version``; ``defaults`` are for the columns of it that
    the job does not make, since they were added to the stream.
    """

    operator: str
    stream: str
    partitions: int
    schema: pa.Schema
    keys: tuple[str, ...] = ()
    time: str | None = None
    version: int = 0
    defaults: tuple[tuple[str, Any], ...] = ()
    semantics: Semantics = Semantics.EXACTLY_ONCE


@dataclass(frozen=True)
class SinkBinding:
    """A ``send_to`` bound to a receiver outside; ``schema`` is that of its rows."""

    operator: str
    sink: Sink
    schema: pa.Schema
    semantics: Semantics = Semantics.EXACTLY_ONCE


@dataclass(frozen=True)
class Stage(Derived):
    """Operators between two repartitions.

    A source stage has ``inputs`` and one task for each partition number of them; a keyed
    stage has ``receives`` and ``tasks`` tasks, each a range of key groups. ``operators`` has
    inputs but no ``partition_by``: these are ``sends`` and ``receives``. ``schemas`` gives the
    user's columns that leave each operator and each received ``partition_by`` and that later
    operators use, without hidden ones; an operator with a function has all that it returns.

    ``delays`` says how far, in ms, the watermark of what reaches an operator stays behind the
    stage's own, because of windows between: see ``planner``. ``tables`` names the broadcast
    stores that its operators use. ``origins`` are the streams of all inputs of the job, in order:
    by their numbers rows say where they came from, where something asks for it. ``keys`` are
    the columns of the key in what leaves each operator and each received ``partition_by``.
    """

    index: int
    level: int
    tasks: int
    operators: tuple[Operator, ...]
    schemas: dict[str, pa.Schema]
    timed: bool = False
    inputs: tuple[InputBinding, ...] = ()
    receives: tuple[Exchange, ...] = ()
    sends: tuple[Exchange, ...] = ()
    outputs: tuple[OutputBinding, ...] = ()
    sinks: tuple[SinkBinding, ...] = ()
    stores: tuple[StoreSpec, ...] = ()
    delays: dict[str, int] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def keys_of(self, operator: Operator) -> tuple[str, ...]:
        """The columns of the key in what an operator gets by its first input.

        Streams that are joined may call theirs differently.
        """
        first = self.receives[0].keys if self.receives else ()
        return self.keys.get(operator.inputs[0], first)

    @property
    def is_gathered(self) -> bool:
        """Whether it gets all rows as those of one key, so that one of its tasks has them."""
        return bool(self.receives) and not any(exchange.keys for exchange in self.receives)

    @cached_property
    def name(self) -> str:
        """The name that state is kept under: of the operators that feed the stage."""
        feeds = list(dict.fromkeys(b.pattern or b.operator for b in self.inputs))
        return "+".join(feeds + [exchange.operator for exchange in self.receives])

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What those who run it make of it once, for it never changes; by names of theirs."""
        return {}

    @cached_property
    def feeds(self) -> tuple[Exchange, ...]:
        """What it receives through internal streams."""
        return tuple(exchange for exchange in self.receives if exchange.stream)

    @cached_property
    def clocked(self) -> tuple[Exchange, ...]:
        """What it receives in files that its watermark follows: all, if none fills only tables."""
        files = tuple(exchange for exchange in self.receives if not exchange.stream)
        timed = tuple(exchange for exchange in files if not exchange.timeless)
        return timed if timed or self.feeds else files

    @cached_property
    def reads(self) -> tuple[InputBinding, ...]:
        """All that it reads from the bus by offset: inputs and internal streams."""
        return (*self.inputs, *(exchange.binding for exchange in self.feeds))

    @cached_property
    def input_of(self) -> dict[str, InputBinding]:
        """Its inputs by their operators."""
        return {binding.operator: binding for binding in self.inputs}

    @cached_property
    def timed_inputs(self) -> tuple[InputBinding, ...]:
        """Its inputs whose records have event times."""
        return tuple(binding for binding in self.inputs if binding.is_timed)

    @cached_property
    def may_idle(self) -> bool:
        """Say whether idle partitions of some of its inputs do not hold its watermark back."""
        return any(binding.idle_ms is not None for binding in self.timed_inputs)

    @cached_property
    def expires(self) -> bool:
        """Say whether entries of some of its stores live for a time only."""
        return any(spec.ttl_ms is not None for spec in self.stores)

    @cached_property
    def keyed(self) -> bool:
        """Say whether tasks are ranges of key groups rather than input partitions."""
        return not self.inputs


@dataclass(frozen=True)
class CallLimits:
    """Bounds of one call of a user's function.

    Args:
        timeout_s: how long it may take; ``None``: forever.
        rows: how many messages it may make of one.
        concurrency: how many calls of an asynchronous processor may be open in a task.
        threads: in how many threads plain processors run; 0: in none.
        begin_s: how long an epoch begins asynchronous calls.
        wait_s: how long it waits for open ones while nothing happens.
    """

    timeout_s: float | None = None
    rows: int | None = None
    concurrency: int = 1
    threads: int = 0
    begin_s: float = 10.0
    wait_s: float = 1.0


PART = "@"
"""Stands between the names of a job and of a part; no job's own name has it."""


def job_of(name: str) -> str:
    """Return the job of a part, by the name that the part is kept under."""
    return name.partition(PART)[0]


@dataclass(frozen=True)
class JobPlan(Derived):
    """All stages of a job, in level order, and what must not change under old state.

    Where rows go through internal streams it is cut into parts (``plan.parts``), each a plan of
    its own by the name ``part``; empty: the first, or the whole.
    """

    graph: JobGraph
    stages: tuple[Stage, ...]
    key_groups: int
    fingerprint: dict[str, str]
    tables: tuple[TableBinding, ...] = ()
    limits: CallLimits = CallLimits()
    part: str = ""
    state_semantics: Semantics = Semantics.EXACTLY_ONCE

    @cached_property
    def job(self) -> str:
        """The name that the part is kept under: that of the job, or ``job@part``."""
        return f"{self.graph.name}{PART}{self.part}" if self.part else self.graph.name

    @cached_property
    def by_name(self) -> dict[str, Stage]:
        """Its stages by their names."""
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of its stages by their numbers."""
        return {stage.index: stage.name for stage in self.stages}

    @cached_property
    def may_wake(self) -> bool:
        """Say whether its watermarks can move on without a row: by a clock, or when idle."""
        timed = [binding for stage in self.stages for binding in stage.timed_inputs]
        return any(binding.is_clock or binding.idle_ms is not None for binding in timed)

    @cached_property
    def by_index(self) -> dict[int, Stage]:
        """Its stages by their numbers, by which exchanges name them."""
        return {stage.index: stage for stage in self.stages}

    @cached_property
    def reads(self) -> tuple[InputBinding, ...]:
        """All that its stages read from the bus by offset."""
        return tuple(binding for stage in self.stages for binding in stage.reads)

    @cached_property
    def stream_of(self) -> dict[str, str]:
        """The stream of each input operator, and of what comes from another part."""
        return {binding.operator: binding.stream for binding in self.reads}

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams that it reads: by offset, and for broadcast stores."""
        tables = [table.stream for table in self.tables if table.stream is not None]
        return tuple(dict.fromkeys([*(one.stream for one in self.reads), *tables]))

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What those who run it make of it once, for it never changes; by names of theirs."""
        return {}

    @cached_property
    def feeds(self) -> tuple[Exchange, ...]:
        """What its stages receive through internal streams."""
        return tuple(exchange for stage in self.stages for exchange in stage.feeds)

    @cached_property
    def sinks(self) -> tuple[SinkBinding, ...]:
        """Every sink of the job."""
        return tuple(binding for stage in self.stages for binding in stage.sinks)

    @cached_property
    def feed_operators(self) -> frozenset[str]:
        """The operators that these come from."""
        return frozenset(feed.operator for feed in self.feeds)

    @cached_property
    def output_semantics(self) -> dict[str, Semantics]:
        """The semantics of each stream that the job sends to."""
        return {binding.stream: binding.semantics for binding in self.outputs}

    @cached_property
    def outputs(self) -> tuple[OutputBinding, ...]:
        """Every stream that the job sends to, that of dead letters included."""
        return tuple(binding for stage in self.stages for binding in stage.outputs)

    @cached_property
    def internal_sends(self) -> tuple[tuple[Stage, Exchange], ...]:
        """What its stages send through internal streams, each with its stage."""
        return tuple((stage, edge) for stage in self.stages for edge in stage.sends if edge.stream)

    @cached_property
    def commit_actions(self) -> tuple[CommitAction, ...]:
        """What a commit does after the epoch's results are durable, in order."""
        used = {binding.semantics for binding in self.sent}
        used |= {edge.semantics for _, edge in self.internal_sends}
        return commit_actions(self.state_semantics, frozenset(used))

    @cached_property
    def last_save(self) -> int:
        """The place of the last of these that saves something: it ends the epoch."""
        return max(number for number, action in enumerate(self.commit_actions) if action.saves)

    @cached_property
    def sent(self) -> tuple[OutputBinding | SinkBinding, ...]:
        """Every stream and sink that the job sends to."""
        return (*self.outputs, *self.sinks)

    @cached_property
    def levels(self) -> tuple[tuple[Stage, ...], ...]:
        """The stages that may run at the same time, level after level."""
        count = max(stage.level for stage in self.stages) + 1
        return tuple(
            tuple(stage for stage in self.stages if stage.level == level) for level in range(count)
        )

    @cached_property
    def by_level(self) -> tuple[dict[str, Stage], ...]:
        """The same by their names."""
        return tuple({stage.name: stage for stage in level} for level in self.levels)


def with_task_counts(plan: JobPlan, counts: Mapping[str, int]) -> JobPlan:
    """Return a plan whose keyed stages have other numbers of tasks.

    Outputs keep the partitions that they were planned with, and source stages their tasks.

    Args:
        plan: of the job.
        counts: by the name of the stage; a stage that is not named stays as it is.
    """
    stages = tuple(
        replace(stage, tasks=counts.get(stage.name, stage.tasks)) if stage.keyed else stage
        for stage in plan.stages
    )
    return plan if stages == plan.stages else replace(plan, stages=stages)


def with_partitions(plan: JobPlan, counts: Mapping[str, int]) -> JobPlan:
    """Return a plan whose source stages read partitions that were added to their streams.

    Args:
        plan: of the job.
        counts: partitions of each input stream by now.
    """

    def widened(stage: Stage) -> Stage:
        inputs = tuple(
            replace(binding, partitions=max(binding.partitions, counts[binding.stream]))
            for binding in stage.inputs
        )
        return replace(stage, inputs=inputs, tasks=max(b.partitions for b in inputs))

    stages = tuple(stage if stage.keyed else widened(stage) for stage in plan.stages)
    return plan if stages == plan.stages else replace(plan, stages=stages)
