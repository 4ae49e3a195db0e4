"""Operators with state of each key: ``deduplicate``, ``in_order``, ``aggregate`` and ``window``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, ClassVar

import pyarrow as pa

from headrace.durations import duration_text
from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate
from headrace.graph.flows import key_mistakes
from headrace.graph.operator_base import (
    GRACE,
    Flow,
    Operator,
    Planning,
    RowForm,
    StageView,
    StoreSpec,
    key_mark,
    store_mark,
    store_text,
)
from headrace.graph.row_aggregates import MESSAGES, Collect
from headrace.graph.windows import LATE_SIDE, Hopping, Session, Sliding, Tumbling, Window

MOMENT = pa.timestamp("us", tz="UTC")
LATE_WAYS = ("drop", "side_output")


@dataclass(frozen=True)
class Deduplicate(Operator):
    """``deduplicate``: pass on the first row of each id.

    With ``within_ms`` an id is kept until event time is so far past that of its first row;
    without, as long as entries of the store live.
    """

    columns: tuple[str, ...] = ()
    within_ms: int | None = None
    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))

    row_form: ClassVar[RowForm] = "ids"

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow as it is, if it has the key and ids."""
        wrong = key_mistakes(self.columns, before.schema)
        if self.within_ms is not None and before.untimed:
            source = before.untimed[0]
            hint = f'give g.input({source!r}, time="..."), or ttl= instead of within='
            wrong.append(f"within= counts event time, which input {source!r} has not: {hint}")
        for text in wrong:
            walk.report(self, text)
        return before if walk.need_key(self, before, needed=True) and not wrong else None

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return the columns of the id, and what is passed on."""
        return wanted | set(self.columns)

    def describe(self) -> list[str]:
        """Return the columns of the id, and how long one is kept."""
        head = f"first row of each ({', '.join(self.columns)})"
        spec = self.store
        if self.within_ms is not None:
            head += f" within {duration_text(self.within_ms)} of event time"
            spec = replace(spec, ttl_ms=None)
        elif spec.ttl_ms is None:
            head += ", ids kept forever"
        return [head, store_text(spec)]

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any]:
        """Return the ids. How long they are kept may change, but not by which clock."""
        clock = "event time" if self.within_ms is not None else "wall clock"
        return {
            "kind": "deduplicate",
            "kept by": clock if self.store.ttl_ms is not None else "nothing",
            "stores": [store_mark(self.store)],
            "by": key_mark(before, self.columns),
        }

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """The ids."""
        return (self.store,)

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Ids may be kept by event time."""
        return self.within_ms is not None


@dataclass(frozen=True)
class InOrder(Operator):
    """``in_order``: keep rows until the watermark has passed them, then send them by event time.

    ``keys`` are the columns of the key, set by the rules of planning.
    """

    late: str = "drop"
    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))
    keys: tuple[str, ...] = ()

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow as it is, if its rows have a key and event time."""
        good = walk.need_key(self, before, needed=True)
        for source in before.untimed:
            hint = f'give g.input({source!r}, time="...")'
            walk.report(self, f"in_order needs event time, which input {source!r} has not: {hint}")
        walk.operators[self.name] = replace(self, keys=before.keys)
        return before if good and not before.untimed else None

    def port_rows(self, name: str) -> str:
        """Late rows leave as they came."""
        return self.inputs[0]

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return the key, and what is passed on."""
        return wanted | set(flows[upstream].keys)

    def describe(self) -> list[str]:
        """Return how long rows wait, and what happens to late ones."""
        late = ["late rows go to side late"] if self.late == "side_output" else []
        head = "rows by event time, each kept until the watermark has passed it"
        return [head, *late, store_text(replace(self.store, ttl_ms=None))]

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any]:
        """Return the columns of the rows that wait, and how far behind they are."""
        columns = tuple(stage.schemas[self.name].names)
        behind = stage.delays.get(self.name, 0)
        return {
            "kind": "in order",
            "stores": [store_mark(self.store)],
            "columns": key_mark(before, columns),
            **({"behind": duration_text(behind)} if behind else {}),
        }

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """The rows that wait."""
        return (self.store,)

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Rows are sorted by event time."""
        return True


def aggregate_flow(
    walk: Planning,
    operator: RunningAggregate | WindowAggregate,
    before: Flow,
    heads: list[str],
    window: Window | None,
) -> Flow | None:
    """Return the key, the heads of windows and the totals; binds the aggregates."""
    needs_time = operator.is_timed(walk.flows)
    good = walk.need_key(operator, before, needed=True)
    if needs_time and before.untimed:
        what = "aggregate(every=...)" if window is None else "window"
        source = before.untimed[0]
        hint = f'give g.input({source!r}, time="...")'
        text = f"{what} needs event time, which input {source!r} has not: {hint}"
        walk.report(operator, text)
        good = False
    fields, bound = [], []
    for name, aggregate in operator.aggregates:
        try:
            fields.append((name, aggregate.result_type(before.schema)))
            bound.append((name, aggregate.bind(before.schema)))
        except InvalidInputError as error:
            walk.report(operator, f"{name}: {error.message}")
            good = False
    if not good:
        return None
    walk.operators[operator.name] = replace(operator, aggregates=tuple(bound))
    size = window.size_ms if isinstance(window, Tumbling) else None
    time = heads[0] if heads else None
    if size is not None and before.time == "window_start" and before.window_ms == size:
        # The start of a window of the same size is that of the window it falls into.
        heads = [name for name in heads if name != "window_start" or name not in before.keys]
    clash = [name for name in heads if name in before.keys]
    if clash:
        text = f"key columns {clash} have the names of columns it makes: rename them with map"
        walk.report(operator, text)
        return None
    keys = [(key, before.schema.field(key).type) for key in before.keys]
    made = [(name, MOMENT) for name in heads]
    flags = [(name, pa.bool_()) for name in (window.flags if window is not None else ())]
    schema = pa.schema([*keys, *made, *fields, *flags])
    return replace(before, schema=schema, time=time, window_ms=size)


def totals_mark(operator: RunningAggregate | WindowAggregate, kind: str) -> dict[str, Any]:
    """Return what must not change of totals under old state."""
    return {
        "kind": kind,
        "aggregates": [f"{name} = {a.describe()}" for name, a in operator.aggregates],
        "types": [str(getattr(a, "type", "")) for _, a in operator.aggregates],
        "stores": [store_mark(operator.store)],
    }


def totals_read(operator: RunningAggregate | WindowAggregate, before: Flow) -> set[str]:
    """Return the columns that aggregates read, and the key."""
    read = {column for _, one in operator.aggregates for column in one.columns()}
    return read | set(before.keys)


def totals_rows(operator: RunningAggregate | WindowAggregate) -> list[str]:
    """Return the aggregates and their store, in words."""
    rows = [f"{name} = {aggregate.describe()}" for name, aggregate in operator.aggregates]
    return [*rows, store_text(operator.store)]


@dataclass(frozen=True)
class RunningAggregate(Operator):
    """``aggregate``: totals per key over all messages so far.

    With ``every_ms`` the totals of changed keys are emitted each time the watermark passes a
    multiple of it, as of that event time; without, the new totals follow each message.
    """

    aggregates: tuple[tuple[str, Aggregate], ...] = ()
    every_ms: int | None = None
    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))

    is_end: ClassVar[bool] = True
    is_of_many: ClassVar[bool] = True

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the key and the totals, with ``every_ms`` behind the instant."""
        return aggregate_flow(walk, self, before, [] if self.every_ms is None else ["at"], None)

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what aggregates read, and the key."""
        return totals_read(self, flows[upstream])

    def describe(self) -> list[str]:
        """Return when totals are sent, and which."""
        head = "totals after each message"
        if self.every_ms is not None:
            head = f"totals every {duration_text(self.every_ms)}"
        elif any(aggregate.is_per_epoch for _, aggregate in self.aggregates):
            head = "totals, added to once an epoch"
        return [head, *totals_rows(self)]

    def state_rows(self, stage: StageView) -> list[str]:
        """Return how many bytes a key has."""
        span = "" if self.every_ms is None else ", and while they change for each step"
        return [state_row(self.aggregates, stage.schemas[self.inputs[0]], span)]

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any]:
        """Return the totals and when they are sent."""
        every = {} if self.every_ms is None else {"every": duration_text(self.every_ms)}
        return totals_mark(self, "aggregate") | every

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """The totals."""
        return (self.store,)

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Totals may be sent by event time."""
        return self.every_ms is not None

    @property
    def closes_after_ms(self) -> int:
        """To the next time at which totals are sent."""
        return self.every_ms or 0


@dataclass(frozen=True)
class WindowAggregate(Operator):
    """``window``: totals per key and window, emitted at its close."""

    window: Window = field(default_factory=lambda: Tumbling(1))
    aggregates: tuple[tuple[str, Aggregate], ...] = ()
    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))

    is_end: ClassVar[bool] = True
    is_of_many: ClassVar[bool] = True

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the key, the heads of windows and the totals."""
        return aggregate_flow(walk, self, before, list(self.window.heads), self.window)

    def port_rows(self, name: str) -> str:
        """Late records leave as they came."""
        return self.inputs[0]

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what aggregates read, and the key."""
        return totals_read(self, flows[upstream])

    @property
    def closes_after_ms(self) -> int:
        """The window, and how long it waits for late records."""
        return self.window.span_ms + self.window.grace_ms

    def describe(self) -> list[str]:
        """Return the window, what happens to late records, and the totals."""
        window = self.window
        grace = f", grace {duration_text(window.grace_ms)}" if window.grace_ms else ""
        return [f"{window.text()}{grace}", *late_rows(window), *totals_rows(self)]

    def state_rows(self, stage: StageView) -> list[str]:
        """Return how many bytes a key has, and for how long."""
        source = stage.schemas[self.inputs[0]]
        return [state_row(self.aggregates, source, window_span(self.window))]

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any]:
        """Return the totals and the window."""
        window = self.window
        marks = totals_mark(self, "window")
        return marks | window.describe() | {GRACE: duration_text(window.grace_ms)}

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """The totals of windows."""
        return (self.store,)

    @property
    def lag_ms(self) -> int:
        """Results are sent when the grace is over."""
        return self.window.grace_ms

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Windows of a number of messages have no times."""
        return self.window.is_timed


def late_rows(window: Window) -> Iterator[str]:
    """Yield what happens to late records, unless they are only counted."""
    if window.late == "side_output":
        yield f"late records go to side {LATE_SIDE}"
    elif window.is_updated:
        again = {"retract": "taken back and sent again", "add": "added to"}
        until = duration_text(window.grace_ms)
        way = again.get(window.updates, "replaced")
        yield f"results of late records are {way} until {until} after the end"


def state_row(aggregates: tuple[tuple[str, Aggregate], ...], source: pa.Schema, span: str) -> str:
    """Return what is kept beside the key: how many bytes, and what has no fixed size.

    Args:
        aggregates: bound.
        source: the columns of the messages.
        span: what is kept beside the key, in words.
    """
    size, loose = 0, []
    for name, aggregate in aggregates:
        if isinstance(aggregate, Collect):
            loose.append(_messages(name, aggregate, source))
            continue
        try:
            size += sum(kind.bit_width for kind in aggregate.partial_types(source).values()) // 8
        except ValueError:  # Arrow's, of types without a width
            loose.append(name)
    parts = [f"{size} B"] if size or not loose else []
    return f"keeps {' and '.join([*parts, *loose])} for each key{span}"


def _messages(name: str, collect: Collect, source: pa.Schema) -> str:
    """Say what is kept of each message, in bytes and in columns that have no fixed size."""
    fixed, loose = 0, []
    for column in collect.names or source.names:
        try:
            fixed += source.field(column).type.bit_width
        except ValueError:
            loose.append(column)
    each = " and ".join([*([f"{-(-fixed // 8)} B"] if fixed or not loose else []), *loose])
    return f"{'all messages' if name == MESSAGES else name} ({each} each)"


def window_span(window: Window) -> str:
    """Return what is kept beside the key of a window, in words."""
    until = f", until {duration_text(window.grace_ms)} after its end" if window.grace_ms else ""
    if window.is_triggered:
        return _triggered_span(window, until)
    match window:
        case Tumbling(early_ms=int(step_ms)):
            return f" and {duration_text(step_ms)} that have messages{until}"
        case Tumbling():
            return f" and window{until}"
        case Hopping():
            until = until.replace("its end", "its last window")
            return f" and pane of {duration_text(gcd(window.size_ms, window.every_ms))}{until}"
        case Sliding():
            return f" and moment{until.replace('its end', 'the last result with it')}"
        case Session():
            return f" and {duration_text(window.gap_ms)} that have messages"
    return ""


def _triggered_span(window: Window, until: str) -> str:
    """What was sent is kept until the window is over; what waits, by step of event time."""
    step_ms = window.early_ms or window.early_idle_ms
    waits = ["gap" if isinstance(window, Session) else "window"]
    waits += [duration_text(step_ms)] if step_ms else []
    sent = "session" if isinstance(window, Session) else "window"
    return f" and {sent} sent{until}, and for {' and '.join(waits)} that waits"
