"""What every operator is: plain data, and the answers that planning asks it for.

An operator is one place. Its class says what it does to columns, key and event time (``flow``),
which columns it reads (``reads``), how it is shown (``describe``), what of it must not change
under old state (``fingerprint``), which stores it has and how far behind its results may be. The
node that runs it is registered in ``headrace.runtime.node_factory``. ``Flow`` is what leaves an
operator, and ``Planning`` what a rule finds of the graph around it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, ClassVar, Literal, Protocol

import polars as pl
import pyarrow as pa

from headrace.durations import duration_text
from headrace.graph.drawing import drawn
from headrace.graph.expressions import Resolved
from headrace.graph.semantics import Semantics
from headrace.graph.shared_stores import BroadcastSpec, Remote
from headrace.records.schema import TableLayout
from headrace.redaction import without_login

COROUTINE, CALLBACK, THREAD = "coroutine", "callback", "thread"
IN, OUT, KEY = "in", "out", "key"
ORDERS = (IN, OUT, KEY)


@dataclass(frozen=True)
class CallPolicy:
    """How calls of a processor are made.

    Args:
        style: ``coroutine``: ``async def process``; ``callback``: ``process_async``;
            ``thread``: ``process`` in a thread.
        most: calls that may be open in a task; ``None``: as the settings say.
        order: ``in``, ``out`` or ``key``.
        timeout_ms: how long one may be open; ``None``: as the settings say.
        threads: of the pool, for ``thread``.
    """

    style: str = COROUTINE
    most: int | None = None
    order: str = "in"
    timeout_ms: int | None = None
    threads: int = 0


def call_style(factory: Any) -> str | None:
    """Return how a class wants to be called; ``None``: one message after the other."""
    kind = getattr(factory, "func", factory)
    if inspect.iscoroutinefunction(getattr(kind, "process", None)):
        return COROUTINE
    return CALLBACK if callable(getattr(kind, "process_async", None)) else None


@dataclass(frozen=True)
class Site:
    """The user's line that built an operator."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        """Return ``file:line``, or nothing when unknown."""
        return f"{self.file}:{self.line}" if self.file else ""

    def mistake(self, operator: str, text: str, columns: pa.Schema | None) -> str:
        """Return what is wrong with an operator, and where.

        Args:
            operator: its name.
            text: what is wrong.
            columns: that it reads, if they are known.
        """
        where = f" ({self})" if str(self) else ""
        return f"operator {operator!r}{where}: {text}"


FAIL, DROP, DEAD_LETTER = "fail", "drop", "dead_letter"
ON_ERROR = (FAIL, DROP, DEAD_LETTER)

EXCHANGE, BUS = "exchange", "bus"
VIAS = (EXCHANGE, BUS)

GRACE, HOW = "grace", "how"
"""Parts of a fingerprint: how long late records count, and which rows a join sends."""

COLUMNAR = "columnar"
"""The kind of stores that are tables of columns."""


@dataclass(frozen=True)
class StoreSpec:
    """A keyed store that an operator declares.

    Args:
        name: unique within the job; together with the job it names the state.
        kind: ``rocksdb`` or ``memory``.
        value: the type of its values, for msgspec: a builtin, struct, dataclass or container.
        ttl_ms: how long an entry is seen after it was written; ``None``: forever.
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

    def _repr_html_(self) -> str:
        """Return what it is in a line, for notebooks."""
        kept = "" if self.ttl_ms is None else f", kept for {duration_text(self.ttl_ms)}"
        value = getattr(self.value, "__name__", None) or str(self.value)
        return f"<code>{escape(f'store {self.name!r}: {self.kind}, values {value}{kept}')}</code>"


@dataclass(frozen=True)
class StreamInfo:
    """What the planner needs to know of a stream that exists on the bus.

    ``written`` is how many of the partitions new rows go to; 0: all. ``version`` is the number of
    the schema, ``added`` are the columns that were added since it was created, with their defaults.
    ``compact`` says that only the last record of each key is kept. ``source`` is what stands for
    it, in words; empty: nothing does.
    """

    schema: pa.Schema
    partitions: int
    time: str | None = None
    key: tuple[str, ...] = ()
    written: int = 0
    version: int = 0
    added: tuple[tuple[str, Any], ...] = ()
    compact: bool = False
    source: str = ""


@dataclass(frozen=True)
class TableBinding:
    """A broadcast store bound to its stream, or to a file in the job's storage.

    ``schema`` holds the columns that operators use, the key's among them. ``values`` are all
    columns of the source but the key and the event time: a row in which they are null deletes.
    ``origin`` says where the rows come from, in words.
    """

    name: str
    key: tuple[str, ...]
    schema: pa.Schema
    values: tuple[str, ...]
    stream: str | None = None
    partitions: int = 0
    file: str = ""
    digest: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Flow:
    """What leaves an operator.

    ``lost`` names the operator that dropped or changed the key, ``untimed`` the inputs
    without event time, ``time`` the column that holds the event time, where one does.
    ``window_ms`` is the size of the windows whose start is ``time``. ``takes`` is the class that an
    input gave for its messages.
    """

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    lost: str | None = None
    untimed: tuple[str, ...] = ()
    time: str | None = None
    window_ms: int | None = None
    takes: Any = None


RowForm = Literal["rows", "latest", "ids"]


class StageView(Protocol):
    """What an operator may ask the stage that it is planned into."""

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The columns that leave each operator and that later ones use."""

    @property
    def delays(self) -> Mapping[str, int]:
        """How far the watermark that reaches an operator is behind the stage's, ms."""


class Planning(Protocol):
    """What is known of a graph while the rules of its operators are asked, in its order.

    A rule reports mistakes, and puts an operator that is bound to its columns into ``operators``.
    """

    graph: JobGraph
    streams: Mapping[str, StreamInfo]
    flows: dict[str, Flow]
    operators: dict[str, Operator]

    def report(self, operator: Operator, text: str) -> None:
        """Take a mistake, with the operator and the user's line."""

    def can_be_message(self, operator: Operator, columns: Sequence[str], schema: pa.Schema) -> bool:
        """Report columns that a function cannot read, unless there are none."""

    def resolve(self, operator: Operator, resolved: Resolved, method: str) -> bool:
        """Report an expression that has no type here, or looks beyond its row."""

    def condition(self, operator: Operator, before: Flow, expression: pl.Expr, method: str) -> bool:
        """Report an expression that is not one truth value for each row."""

    def need_key(self, operator: Operator, before: Flow, needed: bool) -> bool:
        """Report a key that was lost on the way, where one is needed."""

    def bind_table(self, operator: Operator, spec: BroadcastSpec) -> TableBinding | None:
        """Return a broadcast table with all its columns, or ``None`` after its mistakes."""

    def check_message(self, operator: Operator, bound: TableBinding) -> None:
        """Report columns of a table that cannot be attributes of a message."""


@dataclass(frozen=True)
class Operator:
    """What all operators have: a stable name, the operators before, the user's line.

    ``on_error``, one of ``ON_ERROR``, says what happens to a row that a function, an expression
    or an input refuses. ``takes`` says what messages are made as for a function, or after an
    input for those that do not say: ``dict``, a record class, ``None``: a plain message.
    """

    name: str
    inputs: tuple[str, ...] = ()
    site: Site = field(default_factory=Site, compare=False)
    on_error: str = field(default="fail", kw_only=True)
    takes: Any = field(default=None, compare=False, kw_only=True)

    keeps_columns: ClassVar[bool] = False
    """Whether what leaves it has all its columns, though later operators may use less."""
    is_end: ClassVar[bool] = False
    """Whether a graph may end in it."""
    reads_as_attributes: ClassVar[bool] = True
    """Whether a function of it reads columns as attributes of a message."""

    is_of_many: ClassVar[bool] = False
    """Whether a row that leaves it is made of several records."""
    row_form: ClassVar[RowForm] = "rows"
    """What a columnar store of it has for a key: any number of rows, the latest, or ids."""

    def infer(self, walk: Planning) -> Flow | None:
        """Return what leaves it; ``None`` after its mistakes were reported."""
        before = walk.flows[self.inputs[0]]
        if len(before.schema):
            return self.flow(walk, before)
        text = f"operator {self.inputs[0]!r} declares no columns; give it returns="
        walk.report(self, text)
        return None

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return what leaves it, of what reaches its first input: by default the same."""
        return before

    def port_flow(
        self, walk: Planning, port: Operator, name: str, returns: pa.Schema | None
    ) -> Flow | None:
        """Return what leaves one of its ports, by its name; it may declare its columns."""
        source = self.port_rows(name)
        if source is not None:
            return walk.flows[source]
        if returns is not None:
            return declared_flow(port, walk.flows[self.inputs[0]], returns)
        before = walk.flows[self.name]
        if len(before.schema):
            return before
        walk.report(port, f"operator {self.name!r} declares no columns; give it returns=")
        return None

    def port_rows(self, name: str) -> str | None:
        """Return which input's rows a port sends unchanged, if it does."""
        return None

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return the columns of an input that it reads or passes on: by default all.

        Args:
            upstream: the input.
            flows: all columns that leave each operator.
            wanted: the columns of what leaves it that later operators use.
        """
        return set(flows[upstream].schema.names)

    def pruned(self, flows: Mapping[str, Flow], wanted: set[str]) -> Operator:
        """Return it without what makes columns that nobody wants."""
        return self

    def describe(self) -> list[str]:
        """Return what it does in words, a row for each part."""
        return [type(self).__name__]

    def state_rows(self, stage: StageView) -> Iterable[str]:
        """Return what it keeps, in words, beyond what ``describe`` says."""
        return []

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any] | None:
        """Return what must not change under old state, by name; ``None``: all may."""
        return None

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """The stores that are its own."""
        return ()

    @property
    def broadcast_stores(self) -> tuple[BroadcastSpec, ...]:
        """The broadcast stores that it looks up."""
        return ()

    def columns_of_table(self, bound: TableBinding, made: Sequence[str]) -> set[str]:
        """Return the columns of a broadcast store that it needs to make some of its own."""
        return set(bound.schema.names)

    @property
    def lag_ms(self) -> int:
        """How much further than what reaches it what leaves it may be behind, ms."""
        return 0

    @property
    def closes_after_ms(self) -> int:
        """How far event time must pass beyond its last row until all results of it are sent."""
        return 0

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Say whether it needs event time."""
        return False

    def asks_time(self, upstream: str, after: bool) -> bool:
        """Say whether it, or what is ``after`` it, asks for the event time of an input's rows."""
        return after

    @property
    def message_function(self) -> Any:
        """The function or class whose annotation says what messages are made as, if one does."""
        return None


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

    def __repr__(self) -> str:
        """Return the names of the operators."""
        names = ", ".join(operator.name for operator in self.operators)
        return f"<graph of job {self.name!r}: {names}>"

    def _repr_html_(self) -> str:
        """Return it drawn, for notebooks."""
        return drawn(self.operators, f"job {self.name}")

    def operator(self, name: str) -> Operator:
        """Return the operator of that name."""
        return next(operator for operator in self.operators if operator.name == name)


def declared_flow(operator: Operator, before: Flow, schema: pa.Schema) -> Flow:
    """The flow after an operator whose columns are declared: those of one name may be the same."""

    def is_kept(name: str) -> bool:
        at = schema.get_field_index(name)
        return at >= 0 and bool(schema.field(at).type.equals(before.schema.field(name).type))

    return derived_flow(operator, before, schema, is_kept)


def derived_flow(
    operator: Operator, before: Flow, schema: pa.Schema, is_kept: Callable[[str], bool]
) -> Flow:
    """The flow after an operator that makes new columns."""
    lost = before.lost
    if lost is None and not all(is_kept(key) for key in before.keys):
        lost = operator.name
    time = before.time if before.time is not None and is_kept(before.time) else None
    return replace(before, schema=schema, lost=lost, time=time)


def listed(names: object) -> str:
    """Return names with commas between."""
    return ", ".join(names) if isinstance(names, list | tuple) else str(names)


def store_text(spec: StoreSpec) -> str:
    """Return a row that says what a store is."""
    if spec.remote is not None:
        where = (
            "the setting remote.url" if spec.remote.url is None else without_login(spec.remote.url)
        )
        return (
            f"store {spec.name} (remote, {spec.remote.access}, at {where}): at-least-once; sent "
            "before the epoch is committed, and again if it is run again; no changelog"
        )
    kept = "" if spec.ttl_ms is None else f", {duration_text(spec.ttl_ms)} to live"
    if not spec.changelog:
        kept += ", no changelog): not durable; empty again when its process or host is lost"
        return f"store {spec.name} ({spec.kind}{kept}"
    return f"store {spec.name} ({spec.kind}{kept})"


def store_mark(spec: StoreSpec) -> str:
    """Return what must not change of a store under old state."""
    value = spec.value
    kind = value.__qualname__ if isinstance(value, type) else str(value)
    # How long may change, but whether values say when they were written may not.
    ttl = "" if spec.ttl_ms is None else ", ttl"
    log = "" if spec.changelog else ", no changelog"
    return f"{spec.name}: {kind} ({spec.kind}{ttl}{log})"


def key_mark(flow: Flow, columns: tuple[str, ...]) -> list[str]:
    """Return columns and their types, for a fingerprint."""
    kinds = {column.name: column.type for column in flow.schema}
    return [f"{key}: {kinds[key]}" if key in kinds else key for key in columns]
