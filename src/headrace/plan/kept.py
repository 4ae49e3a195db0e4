"""What aggregates and windows keep for each key, and what becomes of late records, in words."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import pyarrow as pa

from headrace.graph.durations import duration_text
from headrace.graph.operators import RunningAggregate, WindowAggregate
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
    elif isinstance(window, Tumbling) and window.late == "update":
        again = "replaced" if window.updates == "replace" else "taken back and sent anew"
        until = duration_text(window.grace_ms)
        yield f"results of late records are {again} until {until} after the end"


def kept_row(operator: RunningAggregate | WindowAggregate, source: pa.Schema) -> str:
    """Return what is kept beside the key: how many bytes, and what has no fixed size.

    Args:
        operator: bound.
        source: the columns of its messages.
    """
    size, loose = 0, []
    for name, aggregate in operator.aggregates:
        try:
            size += sum(kind.bit_width for kind in aggregate.partial_types(source).values()) // 8
        except ValueError:  # Arrow's, of types without a width
            loose.append(name)
    parts = [f"{size} B"] if size or not loose else []
    return f"keeps {' and '.join([*parts, *loose])} for each key{_span(operator)}"


def _span(operator: RunningAggregate | WindowAggregate) -> str:
    if isinstance(operator, RunningAggregate):
        return "" if operator.every_ms is None else ", and while they change for each step"
    window = operator.window
    until = f", until {duration_text(window.grace_ms)} after its end" if window.grace_ms else ""
    match window:
        case Tumbling(early_ms=int(step_ms)):
            return f" and {duration_text(step_ms)} that have messages{until}"
        case Tumbling():
            return f" and window{until}"
        case Hopping():
            return f" and pane of {duration_text(gcd(window.size_ms, window.every_ms))}"
        case Sliding():
            return " and moment"
        case Session():
            return f" and {duration_text(window.gap_ms)} that have messages"
    return ""
