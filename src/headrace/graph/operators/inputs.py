"""``input``: a stream of the bus, or a DataFrame, and what its event times are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.config import InputSettings, StartPosition
from headrace.graph.aggregates import unknown_column
from headrace.graph.expressions import Resolved
from headrace.graph.flows import bound_to_class, differences
from headrace.graph.operator_base import Flow, JobGraph, Operator, Planning

FRAME_SUFFIX = ".dataframe"
FRAME_FOLDER = "frames"
"""Folder of a job's storage with what its driver knows of each DataFrame, by the input's name."""
FRAME_NOTE = "run"
"""A file in there: the run of the job that the internal stream is of."""


def frame_stream(job: str, operator: str) -> str:
    """Return the name of the internal stream of an input that is a DataFrame."""
    return f"{job}.{operator}{FRAME_SUFFIX}"


class FrameSource:
    """Makes the DataFrame that an input reads, in the driver; workers have no need of it.

    Args:
        make: gets the session, returns a DataFrame, batch or streaming; ``None`` in a worker.
        key: columns by whose values rows are placed in the internal stream.
        partitions: of the internal stream; ``None``: as many as a keyed stage has tasks.
        instead: what the settings put in the place of a stream, instead of a function.
    """

    def __init__(
        self,
        make: Callable[[Any], Any] | None,
        key: tuple[str, ...] = (),
        partitions: int | None = None,
        instead: SettingsFrame | None = None,
    ) -> None:
        self.make, self.key, self.partitions, self.instead = make, key, partitions, instead

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave behind what cannot travel, such as a session, or is to stay, such as a secret."""
        return (FrameSource, (None, self.key, self.partitions))


class SettingsFrame:
    """A DataFrame that the settings put in the place of a stream.

    Args:
        stream: that the code names.
        given: what the settings say.
        columns: that it has to have; ``None``: whichever it has.
    """

    def __init__(self, stream: str, given: InputSettings, columns: pa.Schema | None) -> None:
        self.stream, self.given, self.columns = stream, given, columns


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
    holds no watermark back, and with ``idle_closes`` windows close when all are idle. With
    ``bootstrap`` it is read to its end as of the job's begin before others, by default if a table
    is made of it; one of a higher ``priority`` is read first. With ``frame`` the stream is
    internal, and what a Spark DataFrame has is appended to it. With ``address`` the stream is not
    of the bus: a log there stands for it.
    """

    stream: str = ""
    time: str | None = None
    lateness_ms: int = 0
    schema: pa.Schema | None = None
    ahead_ms: int | None = None
    start: StartPosition | None = None
    pattern: str = ""
    event: EventTime | None = None
    confidence: Confidence | None = None
    idle_ms: int | None = None
    idle_closes: bool = False
    bootstrap: bool | None = None
    priority: int = 0
    frame: FrameSource | None = field(default=None, compare=False)
    address: str = field(default="", compare=False)

    @property
    def named(self) -> str:
        """The stream that the code names, though a DataFrame of the settings is in its place."""
        instead = None if self.frame is None else self.frame.instead
        return self.stream if instead is None else instead.stream

    def infer(self, walk: Planning) -> Flow | None:
        """Return what an input brings: the columns of its stream, and its event time."""
        info = walk.streams.get(self.stream)
        if info is None and self.schema is None:
            known = f"; streams are {sorted(walk.streams)}" if walk.streams else ""
            text = f"no stream {self.stream!r}; create it, or give schema= to plan without it"
            walk.report(self, text + known)
            return None
        schema = self.schema if info is None else info.schema
        assert schema is not None
        if info is not None and self.schema is not None:
            differ = differences(self.schema, info.schema, extra_allowed=True)
            if differ:
                text = f"stream {self.stream!r} does not have the schema given: {differ}"
                walk.report(self, text)
                return None
            schema = self.schema
        if self.event is not None:
            return self._made_time(walk, self.event, schema)
        time = self.time or (info.time if info is not None else None)
        whole = schema if info is None else info.schema
        if time is not None:
            if time not in whole.names:
                walk.report(self, f"event time: {unknown_column(time, whole.names)}")
                return None
            kind = whole.field(time).type
            if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
                text = f"event-time column {time!r} is {kind}; expected a timestamp or integer ms"
                walk.report(self, text)
                return None
        shown = time if time in schema.names else None
        untimed = () if time is not None else (self.name,)
        return Flow(schema, untimed=untimed, time=shown, takes=self.takes)

    def _made_time(self, walk: Planning, event: EventTime, schema: pa.Schema) -> Flow | None:
        """The flow of an input whose event times are made; finds the columns they need."""
        if event.expression is not None:
            resolved = Resolved(event.expression, schema)
            if not walk.resolve(self, resolved, "time="):
                return None
            kinds = [column.type for column in resolved.schema]
            if len(kinds) != 1 or not (
                pa.types.is_timestamp(kinds[0]) or pa.types.is_integer(kinds[0])
            ):
                found = ", ".join(map(str, kinds))
                text = f"time={event.text} gives {found}; expected a timestamp or integer ms"
                walk.report(self, text)
                return None
            uses = tuple(name for name in schema.names if name in resolved.reads)
            event = replace(event, uses=uses)
        elif event.function is not None:
            event, wrong = bound_to_class(event, schema, self.takes)
            for text in wrong:
                walk.report(self, text)
            uses = tuple(schema.names) if event.uses is None else event.uses
            asking = replace(self, takes=event.takes)
            if wrong or not walk.can_be_message(asking, uses, schema):
                return None
            event = replace(event, uses=uses)
        walk.operators[self.name] = replace(self, event=event)
        return Flow(schema, takes=self.takes)

    def describe(self) -> list[str]:
        """Return its stream, and how its records come."""
        if self.frame is not None:
            return ["of a Spark DataFrame", f"through internal stream {self.stream}"]
        return [f"{self.stream}, priority {self.priority}" if self.priority else self.stream]


def is_pattern(stream: str) -> bool:
    """Say whether the name of an input's stream stands for all streams that match it."""
    return "*" in stream


def first_starts(graph: JobGraph) -> dict[str, StartPosition]:
    """Return where a new job begins to read, by input operator, for those that say so."""
    return {
        operator.name: operator.start
        for operator in graph.operators
        if isinstance(operator, Input) and operator.start is not None
    }
