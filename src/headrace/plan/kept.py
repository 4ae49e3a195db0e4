"""What aggregates and windows keep for each key, and what becomes of late records, in words."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import pyarrow as pa

from headrace.graph.durations import duration_text
from headrace.graph.operators import RunningAggregate, WindowAggregate
from headrace.graph.picking import Collect
from headrace.graph.window_functions import MESSAGES
from headrace.graph.windows import (
    LATE_SIDE,
    Hopping,
    Session,
    Sliding,
    Tumbling,
    Window,
)


def late_rows(window: Window) -> Iterator[str]:
    """Yield what becomes of late records, unless they are only counted."""
    if window.late == "side_output":
        yield f"late records go to side {LATE_SIDE}"
    elif window.is_updated:
        again = {"retract": "taken back and sent anew", "add": "added to"}
        until = duration_text(window.grace_ms)
        way = again.get(window.updates, "replaced")
        yield f"results of late records are {way} until {until} after the end"


def kept_row(operator: RunningAggregate | WindowAggregate, source: pa.Schema) -> str:
    """Return what is kept beside the key: how many bytes, and what has no fixed size.

    Args:
        operator: bound.
        source: the columns of its messages.
    """
    size, loose = 0, []
    for name, aggregate in operator.aggregates:
        if isinstance(aggregate, Collect):
            loose.append(_messages(name, aggregate, source))
            continue
        try:
            size += sum(kind.bit_width for kind in aggregate.partial_types(source).values()) // 8
        except ValueError:  # Arrow's, of types without a width
            loose.append(name)
    parts = [f"{size} B"] if size or not loose else []
    return f"keeps {' and '.join([*parts, *loose])} for each key{_span(operator)}"


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


def _span(operator: RunningAggregate | WindowAggregate) -> str:
    if isinstance(operator, RunningAggregate):
        return "" if operator.every_ms is None else ", and while they change for each step"
    window = operator.window
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
