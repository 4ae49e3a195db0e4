"""How far a partition may be cut from its beginning: whole segments, by age and by bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.bus.entries import Int64s, View, segment_begins
from headrace.bus.settings import StreamSettings
from headrace.errors import InvalidInputError

_SEGMENTS_A_LIFE = 8


class OffsetGoneError(InvalidInputError):
    """Rows that retention or ``trim`` has removed. Read from the oldest that is kept."""

    code = "HR103"
    move = "read from the oldest that is kept; headrace bus describe STREAM tells where that is"


def offset_gone(stream: str, partition: int, offset: int, begin: int) -> OffsetGoneError:
    """Return the error for an offset below the oldest one that is kept."""
    return OffsetGoneError(
        f"stream {stream!r} partition {partition}: offset {offset} is gone, the oldest kept is "
        f"{begin}; read from there on, and raise retain_ms or retain_bytes of the stream so that "
        "slow readers find what they need",
        stream=stream,
        partition=partition,
        offset=offset,
        begin=begin,
    )


class Segments(NamedTuple):
    """The segments of a partition in order: where each begins, its bytes, its last append."""

    firsts: Int64s
    nexts: Int64s
    sizes: Int64s
    appended_ms: Int64s

    @classmethod
    def of(cls, view: View) -> Segments:
        """Return the segments that a view names."""
        entries = view.entries
        begins = segment_begins(entries)
        lasts = np.append(begins[1:], len(entries)) - 1
        if not len(begins):
            none = np.zeros(0, np.int64)
            return cls(none, none, none, none)
        return cls(
            entries["first_offset"][begins],
            view.nexts[lasts],
            np.add.reduceat(entries["length"], begins),
            entries["appended_ms"][lasts],
        )


def floor(view: View, before_offset: int) -> int:
    """Return where the partition can begin so that nothing from ``before_offset`` on goes."""
    nexts = Segments.of(view).nexts
    whole = nexts[nexts <= before_offset]
    return int(whole[-1]) if len(whole) else view.begin


def expired(view: View, settings: StreamSettings, now_ms: int) -> int:
    """Return where the partition may begin by its settings: before it no row need be kept."""
    if not settings.drops or not len(view.entries):
        return view.begin
    segments = Segments.of(view)
    may_go = np.zeros(len(segments.firsts), bool)
    if settings.retain_ms is not None:
        may_go |= segments.appended_ms < now_ms - settings.retain_ms
    if settings.retain_bytes is not None:
        after = segments.sizes[::-1].cumsum()[::-1] - segments.sizes
        may_go |= after >= settings.retain_bytes
    kept = np.flatnonzero(~may_go)
    return int(segments.firsts[kept[0]]) if len(kept) else view.next_offset


def is_old(view: View, settings: StreamSettings, now_ms: int) -> bool:
    """Say whether the last segment is old enough that a new one should follow it.

    A segment goes when its last row may, so one that is written for long keeps its first
    rows for long.
    """
    if settings.retain_ms is None or not len(view.entries):
        return False
    first = int(segment_begins(view.entries)[-1])
    age = now_ms - int(view.entries["appended_ms"][first])
    return age * _SEGMENTS_A_LIFE >= settings.retain_ms
