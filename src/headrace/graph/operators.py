"""What a job is made of: one frozen record for each kind of operator.

Nothing here runs. The fluent API in ``streams`` builds these, ``plan`` cuts them into
stages, ``task`` runs them. An operator refers to the ones before it by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.config.starts import Start
from headrace.graph.aggregates import Aggregate
from headrace.graph.calls import Calls
from headrace.graph.frames import FrameSource
from headrace.graph.remote import Remote
from headrace.graph.semantics import Semantics
from headrace.graph.sinks import Sink
from headrace.graph.tables import BroadcastSpec
from headrace.graph.windows import Tumbling, Window
from headrace.records.layout import TableLayout


@dataclass(frozen=True)
class Site:
    """The user's line that built an operator."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        """Return ``file:line``, or nothing when unknown."""
        return f"{self.file}:{self.line}" if self.file else ""


FAIL, DROP, DEAD_LETTER = "fail", "drop", "dead_letter"
ON_ERROR = (FAIL, DROP, DEAD_LETTER)

EXCHANGE, BUS = "exchange", "bus"
VIAS = (EXCHANGE, BUS)

COLUMNAR = "columnar"
"""The kind of stores that are tables of columns."""


@dataclass(frozen=True)
class StoreSpec:
    """A keyed store that an operator declares.

    Args:
        name: unique within the job; together with the job it names the state.
        kind: ``rocksdb`` or ``memory``.
        value: the type of its values, for msgspec: a builtin, struct, dataclass or container.
        ttl_ms: how long an entry is seen after it was written; ``None``: for ever.
        changelog: whether changes are logged with the epoch; else the state is lost with what
            holds it.
        remote: of kind ``remote``: how it is reached.
        layout: of kind ``columnar``: its columns; given by the task that opens it.
        prefix_bloom: of kind ``rocksdb``: whether filters hold the first part of keys too.
    """

    name: str
    kind: str = "rocksdb"
    value: Any = Any
    ttl_ms: int | None = None
    changelog: bool = True
    remote: Remote | None = None
    layout: TableLayout | None = None
    prefix_bloom: bool = False


@dataclass(frozen=True)
class Operator:
    """What all operators have: a stable name, the operators before, the user's line.

    ``on_error``, one of ``ON_ERROR``, says what becomes of a row that a function, an expression
    or an input refuses. ``takes`` says what messages are made as for a function, or after an
    input for those that do not say: ``dict``, a record class, ``None``: a plain message.
    """

    name: str
    inputs: tuple[str, ...] = ()
    site: Site = field(default_factory=Site, compare=False)
    on_error: str = field(default="fail", kw_only=True)
    takes: Any = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class EventTime:
    """What makes the event times of an input that no column has: one of three.

    An ``expression``; a ``function`` of a message; or with ``is_clock`` the wall clock of the
    epoch that reads a record. ``uses`` are the columns read for it, ``None`` before these are
    known; ``takes`` is what a function takes messages as, see ``Operator``; ``text`` is what people
    are shown.
    """

    expression: pl.Expr | None = field(default=None, compare=False)
    function: Callable[[Any], Any] | None = field(default=None, compare=False)
    is_clock: bool = False
    uses: tuple[str, ...] | None = None
    text: str = ""
    takes: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Confidence:
    """The part of an input's records that its watermark is to hold for, and how it begins."""

    part: float
    first_ms: int


@dataclass(frozen=True)
class Input(Operator):
    """Read a stream of the bus.

    ``time`` is its event-time column (``None``: the stream's own, or no event time);
    ``lateness_ms`` is how far behind the highest time seen its partition's watermark is.
    ``schema`` may be given so that mistakes are found before a bus is at hand. An event time
    more than ``ahead_ms`` ahead of the epoch's wall clock is an error. ``start`` is where a new
    job begins: ``earliest``, ``latest``, an event time in ms; ``None``: as the settings say.
    ``stream`` may be a pattern; whenever the job is planned, an input for each stream takes its
    place, with its name as ``pattern``. ``event`` makes event times where no column has them;
    ``confidence`` takes the place of ``lateness_ms``; a partition without rows for ``idle_ms``
    holds no watermark back. With ``bootstrap`` it is read to its end as of the job's begin before
    others, by default if a table is made of it; one of a higher ``priority`` is read first. With
    ``frame`` the stream is internal, and what a Spark DataFrame has is appended to it.
    """

    stream: str = ""
    time: str | None = None
    lateness_ms: int = 0
    schema: pa.Schema | None = None
    ahead_ms: int | None = None
    start: Start | None = None
    pattern: str = ""
    event: EventTime | None = None
    confidence: Confidence | None = None
    idle_ms: int | None = None
    bootstrap: bool | None = None
    priority: int = 0
    frame: FrameSource | None = field(default=None, compare=False)

    @property
    def named(self) -> str:
        """The stream that the code names, though a DataFrame of the settings is in its place."""
        instead = None if self.frame is None else self.frame.instead
        return self.stream if instead is None else instead.stream


@dataclass(frozen=True)
class Select(Operator):
    """``map`` with Polars expressions: each makes one column."""

    expressions: tuple[pl.Expr, ...] = field(default=(), compare=False)
    text: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explode(Select):
    """``flat_map`` with Polars expressions: a row for each element of the first, a list.

    The other expressions make columns that each of these rows has.
    """


@dataclass(frozen=True)
class Filter(Operator):
    """``filter`` with a Polars expression; rows where it is null are dropped."""

    expression: pl.Expr | None = field(default=None, compare=False)
    text: str = ""


Sides = tuple[tuple[str, pa.Schema], ...]
"""The name and the columns of each side that an operator may send messages to."""


@dataclass(frozen=True)
class MapMessages(Operator):
    """``map`` with a function from one message to one message."""

    function: Callable[[Any], Any] | None = field(default=None, compare=False)
    returns: pa.Schema | None = None
    uses: tuple[str, ...] | None = None
    sides: Sides = ()


@dataclass(frozen=True)
class FlatMapMessages(Operator):
    """``flat_map`` with a function from one message to any number of messages.

    The function's results begin with the columns ``beside`` of the message that they do not have
    themselves. With ``like`` its other columns are those of that operator, found by the planner.
    """

    function: Callable[[Any], Any] | None = field(default=None, compare=False)
    returns: pa.Schema | None = None
    uses: tuple[str, ...] | None = None
    sides: Sides = ()
    beside: tuple[str, ...] = ()
    like: str = ""


@dataclass(frozen=True)
class Generate(FlatMapMessages):
    """``monoid``: partial results by key, of which an epoch sends one for each key.

    ``function`` is the user's factory; the results are the key's columns and the partial result,
    see ``graph.states``. With ``every_ms`` keys are apart by the instant they will count at.
    """

    every_ms: int | None = None


@dataclass(frozen=True)
class FilterMessages(Operator):
    """``filter`` with a function from one message to a truth value."""

    function: Callable[[Any], Any] | None = field(default=None, compare=False)
    uses: tuple[str, ...] | None = None


@dataclass(frozen=True)
class MapBatches(Operator):
    """``map_batches`` with a function from one Polars frame to another of as many rows."""

    function: Callable[[pl.DataFrame], pl.DataFrame] | None = field(default=None, compare=False)
    returns: pa.Schema | None = None
    uses: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PartitionBy(Operator):
    """``partition_by``: send each row to the task that owns the key group of its key.

    ``via`` is one of ``VIAS``: files of the epoch, or an internal stream of the bus. ``tasks`` is
    how many the receiving stage of a new job has; ``None``: as the settings say.
    """

    keys: tuple[str, ...] = ()
    via: str = EXCHANGE
    tasks: int | None = None


@dataclass(frozen=True)
class Merge(Operator):
    """``merge``: several streams of one schema as one."""


@dataclass(frozen=True)
class Union(Merge):
    """``union``: several streams as one that has the columns of all of them."""


@dataclass(frozen=True)
class Branch:
    """A branch of ``split``: its name, and which rows it takes, by expression or function.

    ``takes`` says what messages are made as for the function.
    """

    name: str
    expression: pl.Expr | None = field(default=None, compare=False)
    function: Callable[[Any], Any] | None = field(default=None, compare=False)
    text: str = ""
    takes: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Split(Operator):
    """``split``: each row goes to the first branch that takes it; its branches are ports."""

    branches: tuple[Branch, ...] = ()
    uses: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Port(Operator):
    """A stream that the operator before has beside its main one: a branch, or a side.

    A branch has the columns of what is split, a side those that it declares, ``returns``.
    """

    port: str = ""
    returns: pa.Schema | None = None


@dataclass(frozen=True)
class Deduplicate(Operator):
    """``deduplicate``: pass on the first row of each id.

    With ``within_ms`` an id is kept until event time is so far past that of its first row;
    without, as long as entries of the store live.
    """

    columns: tuple[str, ...] = ()
    within_ms: int | None = None
    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))


@dataclass(frozen=True)
class RunningAggregate(Operator):
    """``aggregate``: totals per key over all messages so far.

    With ``every_ms`` the totals of changed keys are emitted each time the watermark passes a
    multiple of it, as of that event time; without, the new totals follow each message.
    """

    aggregates: tuple[tuple[str, Aggregate], ...] = ()
    every_ms: int | None = None
    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))


@dataclass(frozen=True)
class WindowAggregate(Operator):
    """``window``: totals per key and window, emitted at its close."""

    window: Window = field(default_factory=lambda: Tumbling(1))
    aggregates: tuple[tuple[str, Aggregate], ...] = ()
    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))


@dataclass(frozen=True)
class Process(Operator):
    """``process``: the user's class, one instance for each task.

    ``calls`` says how calls are made that need not end before the next begins.
    """

    factory: Callable[[], Any] | None = field(default=None, compare=False)
    returns: pa.Schema | None = None
    uses: tuple[str, ...] | None = None
    stores: tuple[StoreSpec, ...] = ()
    tables: tuple[BroadcastSpec, ...] = ()
    sides: Sides = ()
    calls: Calls | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class JoinTable(Operator):
    """``join_table``: add columns of the broadcast store's row whose key the message has.

    ``on`` names columns of the stream in the order of the table's key; ``columns`` are pairs of
    a new name and a column of the table, ``None``: all but the key.
    """

    table: BroadcastSpec = field(default_factory=lambda: BroadcastSpec("", ()))
    on: tuple[str, ...] = ()
    how: str = "left"
    columns: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True)
class SendTo(Operator):
    """``send_to``: append to an output stream, made with ``partitions`` when it is new."""

    stream: str = ""
    partitions: int | None = None
    semantics: Semantics | None = None


@dataclass(frozen=True)
class KeepForSink(SendTo):
    """What a job with outputs of its own has for a sink: kept in a stream, until it is merged."""


@dataclass(frozen=True)
class SendToSink(Operator):
    """``send_to`` a sink: a receiver outside, which takes each committed epoch."""

    sink: Sink | None = None
    semantics: Semantics | None = None


@dataclass(frozen=True)
class JobGraph:
    """A whole job: its name and its operators, each after the ones it reads.

    ``state_semantics`` and ``output_semantics`` are what the code asks for; ``None``: what the
    settings say.
    """

    name: str
    operators: tuple[Operator, ...] = ()
    state_semantics: Semantics | None = None
    output_semantics: Semantics | None = None

    def operator(self, name: str) -> Operator:
        """Return the operator of that name."""
        return next(operator for operator in self.operators if operator.name == name)


def is_pattern(stream: str) -> bool:
    """Say whether the name of an input's stream stands for all streams that match it."""
    return "*" in stream


def first_starts(graph: JobGraph) -> dict[str, Start]:
    """Return where a new job begins to read, by input operator, for those that say so."""
    return {
        operator.name: operator.start
        for operator in graph.operators
        if isinstance(operator, Input) and operator.start is not None
    }
