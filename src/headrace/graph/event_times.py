"""Where the event time of an input comes from, and how far its watermark stays behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from headrace.durations import Duration, duration_ms
from headrace.graph.diagnostics import (
    attempt,
    checked_function,
    is_function,
    shown,
)
from headrace.graph.introspection import (
    message_class,
    name_of,
    user_names,
)
from headrace.graph.operators import (
    Confidence,
    EventTime,
)


@dataclass(frozen=True)
class TimeFunction:
    """A function from a message to its event time; made by ``event_time``."""

    function: Callable[[Any], Any]
    uses: Sequence[str] | None = None


@dataclass(frozen=True)
class ProcessingTime:
    """The wall clock of the epoch that reads a record; made by ``processing_time``."""


@dataclass(frozen=True)
class ConfidentLateness:
    """An out-of-orderness that follows the delays of a stream; made by ``confidence``."""

    part: float
    first: Duration = field(default="1m")


TimeSource = str | pl.Expr | Callable[[Any], Any] | TimeFunction | ProcessingTime


def event_time(function: Callable[[Any], Any], uses: Sequence[str] | None = None) -> TimeFunction:
    """Take the event time of an input's records from a function.

    Args:
        function: from a message to milliseconds since 1970 or a datetime, UTC without a time zone;
            called once for each record, in order. Its annotation is the type of messages, as for
            ``map``.
        uses: the columns that it reads; its message has only these. Default: all.
    """
    return TimeFunction(function, uses)


def processing_time() -> ProcessingTime:
    """Use the wall clock of the epoch that reads a record as its event time.

    It is stored with the epoch, so an epoch that runs again sees the same time. No record is late,
    and windows close by the clock, also on a quiet stream. Results depend on when records are
    read.
    """
    return ProcessingTime()


def confidence(part: float, first: Duration = "1m") -> ConfidentLateness:
    """Measure how far an input is out of order, so that a given share of records is not late.

    The delay of a record is how far its event time is behind the highest one before it in its
    partition. Each partition measures its own delays; old measurements fade.

    Args:
        part: share of records that are not behind the watermark when they arrive, such as 0.99.
        first: the out-of-orderness of a partition's first 64 records.
    """
    return ConfidentLateness(part, first)


def checked_time(wrong: list[str], time: object) -> tuple[str | None, EventTime | None]:
    """Return the event-time column of an input, or what makes its event times."""
    if time is None or isinstance(time, str):
        return time, None
    if isinstance(time, ProcessingTime):
        return None, EventTime(is_clock=True, text="processing time")
    if isinstance(time, pl.Expr):
        return None, EventTime(expression=time, text=str(time))
    if is_function(time):
        time = TimeFunction(time)  # type: ignore[arg-type]
    if isinstance(time, TimeFunction):
        function, names = time.function, user_names()
        uses = checked_function(wrong, "event_time", function, time.uses)
        takes = attempt(wrong, lambda: message_class(function, names), None)
        return None, EventTime(function=function, uses=uses, text=name_of(function), takes=takes)
    wrong.append(
        "time= takes a column, an expression, a function of a message or hr.processing_time(); "
        f"found {shown(time)}"
    )
    return None, None


def checked_lateness(wrong: list[str], lateness: object) -> tuple[int, Confidence | None]:
    """Return the out-of-orderness of an input, and the confidence that it follows from."""
    if not isinstance(lateness, ConfidentLateness):
        return attempt(wrong, lambda: duration_ms(lateness, "out_of_orderness", least=0), 0), None
    part, first = lateness.part, lateness.first
    is_part = isinstance(part, int | float) and not isinstance(part, bool) and 0 < part < 1
    if not is_part:
        wrong.append(f"confidence({part!r}); expected a part of the records such as 0.99")
    first_ms = attempt(wrong, lambda: duration_ms(first, "first", least=0), 0)
    return 0, Confidence(float(part) if is_part else 0.5, first_ms)
