"""Fires the timers of one task's processor: before rows that are past them, and at an epoch's end.

What a timer finds, and where its messages stand among those of rows, is then the same however
rows fall into epochs, as far as the rows of its key come in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from headrace.records.schema import MAX_EVENT_TIME_MS
from headrace.task.chunk import UNKNOWN, Chunk, Groups, Ints, Origins
from headrace.task.orders import END_WATERMARK, NO_WATERMARK
from headrace.task.parcels import Parcel
from headrace.task.timers import Timer, Timers
from headrace.task.turn import Stamp, Turn

BATCH = 4_096
"""About so many messages of timers are sent on at a time."""


_FAR = 1 << 62


class Ringer:
    """Fires timers of one operator.

    Args:
        turn: of the task and operator.
        timers: of the operator.
        hear: calls the user's ``on_timer``, whatever becomes of it.
        answer: calls those who wait for values of remote stores.
    """

    def __init__(
        self,
        turn: Turn,
        timers: Timers,
        hear: Callable[[Timer], None],
        answer: Callable[[], None],
    ) -> None:
        self._turn, self.timers = turn, timers
        self._hear, self._answer = hear, answer
        self._encode: Callable[[], Sequence[bytes]] = list
        self._owners: Sequence[bytes] | None = None

    def turn_to(self, marks: Ints | None, encode: Callable[[], Sequence[bytes]]) -> None:
        """Turn to some rows.

        Args:
            marks: what has passed for each, see ``passed``; ``None``: that is not known.
            encode: returns the canonical encoding of their keys.
        """
        self._turn.marks = None if marks is None else marks.tolist()
        self._encode, self._owners = encode, None

    def is_due(self, row: int) -> bool:
        """Say whether a timer of some key may be due before a row."""
        marks = self._turn.marks
        return marks is not None and marks[row] >= self.timers.first

    def before(self, row: int) -> None:
        """Fire the timers of a row's key that are due before it."""
        turn = self._turn
        if self._owners is None:
            self._owners = self._encode()
        assert turn.marks is not None
        group = turn.group
        for timer in self.timers.before(group, self._owners[row], turn.marks[row]):
            if turn.later:
                self._answer()
            self._ring(timer)
            turn.timer, turn.first = None, len(turn.rows)
            turn.enter(group)

    def at_end(self, watermark: int, wall_ms: int) -> Iterator[None]:
        """Fire what is due at the end of an epoch; yields when there is something to send on.

        At the end of the inputs only the timers set before it fire: one that sets itself
        again would never end.
        """
        turn, ended = self._turn, watermark >= END_WATERMARK
        event = self.timers.fire(watermark, wall=False, takes_new=not ended)
        for timers in (event, self.timers.fire(wall_ms, wall=True)):
            try:
                for timer in timers:
                    turn.enter(timer.group)
                    self._ring(timer)
                    if len(turn.rows) >= BATCH:
                        yield
            finally:
                turn.timer = None
        if turn.rows:
            yield

    def _ring(self, timer: Timer) -> None:
        turn = self._turn
        turn.timer, turn.first = timer, len(turn.rows)
        self._hear(timer)
        turn.stamp(turn.first, timer)


def passed(chunks: Sequence[Chunk]) -> list[Ints] | None:
    """Return what has passed for each row, before which timers that were due by then fire.

    That is the watermark of its own partition, or its own time where it has none; but nothing
    beyond the time of a row that comes later in its key group and is not late: rows of a slower
    partition come before the timers that are after them. ``None`` where rows have no event time.

    Args:
        chunks: all rows of an epoch, in the order in which they are handled.
    """
    found: list[Ints] = []
    later = np.full(1 << 16, _FAR, np.int64)
    for chunk in reversed(chunks):
        if chunk.times is None or chunk.watermarks is None or chunk.groups is None:
            return None
        groups, marks = chunk.groups, chunk.watermarks
        is_known = marks > NO_WATERMARK // 2
        if not is_known.all():
            marks = np.where(is_known, marks, chunk.times)
        on_time = np.where(chunk.times >= marks, chunk.times, _FAR)
        firsts = np.flatnonzero(np.diff(groups.astype(np.int32), prepend=-1))
        bound, runs = later[groups], groups[firsts]
        np.minimum.at(later, runs, np.minimum.reduceat(on_time, firsts))
        falls = (np.diff(marks) < 0) & (groups[1:] == groups[:-1])
        # Rows of several partitions, or a key group in several places, as behind joins.
        if falls.any() or len(np.unique(runs)) < len(runs):
            bound = np.minimum(bound, _least_from(on_time, groups))
        found.append(np.minimum(marks, bound))
    return found[::-1]


def _least_from(times: Ints, groups: Groups) -> Ints:
    """Return for each row the least time from it on, of its key group."""
    frame = pl.DataFrame({"group": groups, "time": times})
    least: Ints = (
        frame.select(pl.col("time").cum_min(reverse=True).over("group")).to_series().to_numpy()
    )
    return least


def stamped(chunk: Chunk, places: Sequence[int], stamps: Sequence[Stamp], earliest: int) -> Chunk:
    """Return messages with those of timers at the times of these.

    Args:
        chunk: the messages as if all were of rows.
        places: of each among all messages, rising.
        stamps: which of all messages are of timers.
        earliest: none is sent behind this.
    """
    at = np.full(max(stamps[-1].end, places[-1] + 1), NO_WATERMARK, np.int64)
    for stamp in stamps:
        at[stamp.begin : stamp.end] = _moment(stamp.at, earliest)
    own = at[np.asarray(places, np.int64)]
    is_timer = own > NO_WATERMARK
    assert chunk.times is not None
    assert chunk.watermarks is not None
    origins = chunk.origins
    if origins is not None:
        origins = Origins(
            np.where(is_timer, UNKNOWN, origins.sources).astype(np.int32),
            np.where(is_timer, UNKNOWN, origins.offsets),
        )
    return replace(
        chunk,
        times=np.where(is_timer, own, chunk.times),
        watermarks=np.where(is_timer, NO_WATERMARK, chunk.watermarks),
        origins=origins,
    )


def sent(parcel: Parcel, stamps: Sequence[Stamp], earliest: int) -> Chunk:
    """Return messages that are all of timers as rows.

    Args:
        parcel: the messages.
        stamps: whose they are; together of all messages.
        earliest: none is sent behind this.
    """
    counts = [stamp.end - stamp.begin for stamp in stamps]
    times = np.repeat([_moment(stamp.at, earliest) for stamp in stamps], counts)
    groups = np.repeat(np.array([stamp.group for stamp in stamps], np.uint16), counts)
    if parcel.places is not None:
        times, groups = times[parcel.places], groups[parcel.places]
    past = np.full(len(times), NO_WATERMARK, np.int64)
    return Chunk(parcel.batch, times.astype(np.int64), past, groups)


def _moment(at: int, earliest: int) -> int:
    return min(max(at, earliest, 0), MAX_EVENT_TIME_MS - 1)
