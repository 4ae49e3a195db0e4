"""``send_to``: a stream of the bus, or a receiver outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from headrace.graph.operator_base import Flow, Operator, Planning
from headrace.graph.semantics import Semantics
from headrace.graph.sinks import Sink


@dataclass(frozen=True)
class SendTo(Operator):
    """``send_to``: append to an output stream, made with ``partitions`` when it is new."""

    stream: str = ""
    partitions: int | None = None
    semantics: Semantics | None = None
    output: str = ""

    keeps_columns: ClassVar[bool] = True
    is_end: ClassVar[bool] = True

    @property
    def named(self) -> str:
        """The output that the code names, though a backfill has another stream in its place."""
        return self.output or self.stream

    def describe(self) -> list[str]:
        """Return the stream."""
        return [self.stream]

    def asks_time(self, upstream: str, after: bool) -> bool:
        """A stream has the event times of its own column."""
        return False


@dataclass(frozen=True)
class KeepForSink(SendTo):
    """What a job with outputs of its own has for a sink: kept in a stream, until it is merged."""


@dataclass(frozen=True)
class SendToSink(Operator):
    """``send_to`` a sink: a receiver outside, which takes each committed epoch.

    ``output`` is what settings call it, if the code gives an ``address``.
    """

    sink: Sink | None = None
    semantics: Semantics | None = None
    output: str = ""
    address: str = ""

    keeps_columns: ClassVar[bool] = True
    is_end: ClassVar[bool] = True

    def flow(self, walk: Planning, before: Flow) -> Flow:
        """Return the flow as it is; the sink learns what is known of its rows."""
        if self.sink is not None:
            sink = self.sink.bound(before.time, before.window_ms or 0)
            walk.operators[self.name] = replace(self, sink=sink)
            for text in sink.column_mistakes(before.schema):
                walk.report(self, text)
        return before

    def describe(self) -> list[str]:
        """Return the receiver, and what it promises."""
        if self.sink is None:
            return super().describe()
        return [f"sink {self.sink.identity}", self.sink.promise]

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Some sinks take rows by event time, where there is one."""
        follows = self.sink is not None and self.sink.follows_time
        return follows and not flows[self.name].untimed
