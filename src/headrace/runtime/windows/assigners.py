"""Window assigners: which windows a row belongs to, whether they merge, and when they end.

Event time is cut into *panes*, each named by its end, ms; a row is placed in one pane, however many
windows it is in. A window, or a result, is named by its end too, and is made of the panes after its
beginning and up to its end. Windows of ``SessionAssigner`` merge: there a row is in a slice as long
as the gap, and windows follow from the rows that are there. Arrays have an element for each record,
pane or result.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import polars as pl

from headrace.runtime.chunk import Ints, Mask
from headrace.runtime.orders import END_WATERMARK
from headrace.runtime.windows.layouts import FIRST_COLUMN, LAST_COLUMN
from headrace.runtime.windows.partial_table import BUCKET

PLACE = "__place"
"""The column that says where a row of windows with triggers is kept."""

_NONE = np.empty(0, np.int64)


class Assigned(NamedTuple):
    """Where records go: all of ``whole`` to ``places``, and ``rows`` to ``more_places``.

    What is in neither is late. ``rows`` may name a record several times, or none.
    """

    whole: Mask
    places: Ints
    rows: Ints
    more_places: Ints

    @property
    def is_late(self) -> Mask:
        """Say of each record whether it is in no window."""
        is_late = ~self.whole
        is_late[self.rows] = False
        return is_late


class Assigner(ABC):
    """What all kinds answer.

    Args:
        grace_ms: how long after its end a window still takes records.
    """

    merges = False

    def __init__(self, grace_ms: int) -> None:
        self.grace_ms = grace_ms

    @abstractmethod
    def assign(self, times: Ints, marks: Ints) -> Assigned:
        """Return where records go.

        Args:
            times: event times.
            marks: the watermarks that they came with.
        """

    def moments(self, rows: pl.DataFrame) -> dict[str, Ints]:
        """Return the columns of results that say which window each is of."""
        begins, ends = self.bounds(rows)
        return {"window_start": begins, "window_end": ends}

    @abstractmethod
    def bounds(self, rows: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return the window that each row of partials would be of alone."""


class TumblingAssigner(Assigner):
    """Windows of one size that follow each other: the place of a record is the end of its window.

    Args:
        size_ms: of each window.
        grace_ms: how long after its end a window still takes records.
    """

    def __init__(self, size_ms: int, grace_ms: int) -> None:
        super().__init__(grace_ms)
        self.size_ms = size_ms

    def assign(self, times: Ints, marks: Ints) -> Assigned:
        """Return the end of the window of each."""
        ends = (times // self.size_ms + 1) * self.size_ms
        timely = ends + self.grace_ms > marks
        return Assigned(timely, ends[timely], _NONE, _NONE)

    def bounds(self, rows: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return the bucket."""
        ends = rows[BUCKET].to_numpy()
        return ends - self.size_ms, ends


class GlobalAssigner(Assigner):
    """One window for all; records wait for the next multiple of event time, as of which they count.

    A record counts from the first instant that is neither before its own time nor before the
    watermark it came with, so no record is ever late and the log alone decides.

    Args:
        every_ms: from one instant to the next.
    """

    def __init__(self, every_ms: int) -> None:
        super().__init__(0)
        self.every_ms = every_ms

    def assign(self, times: Ints, marks: Ints) -> Assigned:
        """Return the instant as of which each counts."""
        seen = np.maximum(times, marks)
        places = (seen // self.every_ms + 1) * self.every_ms
        return Assigned(np.ones(len(times), bool), places, _NONE, _NONE)

    def moments(self, rows: pl.DataFrame) -> dict[str, Ints]:
        """Return as of when totals are."""
        return {"at": self.bounds(rows)[1]}

    def bounds(self, rows: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return the instant of the last record, where it is kept, or that of the bucket."""
        if LAST_COLUMN in rows.columns:
            ends: Ints = (rows[LAST_COLUMN].to_numpy() // self.every_ms + 1) * self.every_ms
        else:
            ends = rows[BUCKET].to_numpy()
        return ends - self.every_ms, ends


class PaneAssigner(Assigner):
    """Windows that share rows: results are made of panes.

    The place of a record is 2 * its pane. One that is late for the first windows of its pane but
    not for the last gets a place in each of these: 2 * its end + 1.
    """

    pane_ms: int

    def assign(self, times: Ints, marks: Ints) -> Assigned:
        """Return the pane of each, or the ends of the windows that it is in time for."""
        panes, is_whole, is_partly = self.placed(times, marks)
        return self._assigned(panes, is_whole, is_partly, marks)

    def _assigned(self, panes: Ints, is_whole: Mask, is_partly: Mask, marks: Ints) -> Assigned:
        if not is_partly.any():
            return Assigned(is_whole, 2 * panes[is_whole], _NONE, _NONE)
        rows, ends = self.late_ends(panes[is_partly], marks[is_partly])
        return Assigned(
            is_whole, 2 * panes[is_whole], np.flatnonzero(is_partly)[rows], 2 * ends + 1
        )

    def placed(self, times: Ints, marks: Ints) -> tuple[Ints, Mask, Mask]:
        """Return panes, and which records are in time for all windows, or for the last ones only.

        Args:
            times: event times.
            marks: the watermarks that they came with.
        """
        panes = (times // self.pane_ms + 1) * self.pane_ms
        out = marks - self.grace_ms
        is_whole = self.first(panes) > out
        return panes, is_whole, ~is_whole & (self.last(panes) > out)

    def late_ends(self, panes: Ints, marks: Ints) -> tuple[Ints, Ints]:
        """Return the results that records are in time for which are late for others.

        Returns:
            Places of the records and the ends of results, side by side.
        """
        rows, ends = self.made(panes, int(marks.min()), END_WATERMARK)
        timely = ends + self.grace_ms > marks[rows]
        return rows[timely], ends[timely]

    @abstractmethod
    def first(self, panes: Ints) -> Ints:
        """Return the end of the first result that a pane is in."""

    @abstractmethod
    def last(self, panes: Ints) -> Ints:
        """Return the end of the last result that it takes a record to be in time for."""

    @abstractmethod
    def made(self, panes: Ints, after: int, upto: int) -> tuple[Ints, Ints]:
        """Return the results that there are because of panes, and that watermarks send.

        Args:
            panes: rising, where they are distinct.
            after: a watermark that has passed: what it sent is out.
            upto: the watermark that sends them.

        Returns:
            Places in ``panes`` and the ends of results, side by side.
        """

    @abstractmethod
    def begin(self, ends: Ints) -> Ints:
        """Return the beginning of each result."""

    @abstractmethod
    def over_at(self, panes: Ints) -> Ints:
        """Return the watermark at which no result needs a pane any more."""

    def with_grace(self, grace_ms: int) -> Self:
        """Return the same with another grace."""
        other = copy(self)
        other.grace_ms = grace_ms
        return other

    def due(self, ends: Ints) -> Ints:
        """Return the watermark that sends each result."""
        return ends + self.grace_ms

    def reach(self, watermark: int) -> int:
        """Return the greatest end of a result that a watermark sends."""
        return watermark - self.grace_ms

    def windows(self, ends: Ints) -> tuple[Ints, Ints]:
        """Return the bounds of the window that each result is of."""
        return self.begin(ends), ends

    def bounds(self, rows: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return the window of a result, which has its end as ``BUCKET``."""
        return self.windows(rows[BUCKET].to_numpy())


class HoppingAssigner(PaneAssigner):
    """Windows of one size that begin every so often.

    Args:
        size_ms: of each window.
        every_ms: from the beginning of one to that of the next; not more than the size.
        grace_ms: how long after its end a result still takes records.
    """

    def __init__(self, size_ms: int, every_ms: int, grace_ms: int) -> None:
        super().__init__(grace_ms)
        self.size_ms, self.every_ms = size_ms, every_ms
        self.pane_ms = math.gcd(size_ms, every_ms)

    def first(self, panes: Ints) -> Ints:
        """Round up to the next end of a window."""
        return panes + (self.size_ms - panes) % self.every_ms

    def last(self, panes: Ints) -> Ints:
        """Continue in steps as long as the window still has the pane."""
        first = self.first(panes)
        steps = (panes + self.size_ms - self.pane_ms - first) // self.every_ms
        return first + steps * self.every_ms

    def made(self, panes: Ints, after: int, upto: int) -> tuple[Ints, Ints]:
        """Each window that a pane is in."""
        first, last = self.first(panes), self.last(panes)
        behind = np.maximum(after - self.grace_ms + 1 - first, 0)
        first = first + -(-behind // self.every_ms) * self.every_ms
        last = np.minimum(last, upto - self.grace_ms)
        counts = np.maximum((last - first) // self.every_ms + 1, 0)
        rows = np.repeat(np.arange(len(panes)), counts)
        steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, first[rows] + steps * self.every_ms

    def begin(self, ends: Ints) -> Ints:
        """Go back by the size."""
        return ends - self.size_ms

    def over_at(self, panes: Ints) -> Ints:
        """When the last window is sent."""
        return self.last(panes) + self.grace_ms


class TriggeredAssigner(HoppingAssigner):
    """The same where what was sent is kept apart, so that rows count in windows one by one.

    A record is in a pane only if none of its windows has ended, for one that has ended sends it at
    another instant.
    """

    def assign(self, times: Ints, marks: Ints) -> Assigned:
        """Return the pane of each, or the ends of the windows that it is in time for."""
        panes, is_whole, is_partly = self.placed(times, marks)
        is_plain = self.first(panes) > marks
        return self._assigned(panes, is_plain, (is_whole | is_partly) & ~is_plain, marks)

    def is_open(self, places: Ints, marks: Ints) -> Mask:
        """Say which places are of windows that have not ended."""
        is_open: Mask = (places % 2 == 0) | (places >> 1 > marks)
        return is_open

    def groups(self, numbers: Ints, places: Ints) -> Ints:
        """Return a number for each key and window: where rows have to be looked at together."""
        known, at = np.unique(places, return_inverse=True)
        _, groups = np.unique(numbers * max(1, len(known)) + at, return_inverse=True)
        found: Ints = groups.astype(np.int64)
        return found

    def units(self, rows: pl.DataFrame, groups: Ints) -> Ints:
        """Return a number for each result that rows make: the groups."""
        return groups

    def bounds(self, rows: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return the window of each row, which has its end as ``PLACE``."""
        ends = rows[PLACE].to_numpy()
        return ends - self.size_ms, ends

    def places(self, rows: pl.DataFrame) -> Ints:
        """Return where each row is kept once it was sent: the end."""
        return rows[PLACE].to_numpy()

    def last_place(self, watermark: int) -> int:
        """Return the end of the last window that has begun."""
        return watermark + self.size_ms

    def early(self, instants: Ints, ends: Ints, never: int) -> Ints:
        """Return the instants of early results: nothing is early after the end."""
        return np.where(instants >= ends, never, instants)


class SlidingAssigner(PaneAssigner):
    """For each moment that has a record, what lies within a size before it, itself included.

    Args:
        size_ms: how far back.
        grace_ms: how long after its moment a result still takes records.
    """

    pane_ms = 1

    def __init__(self, size_ms: int, grace_ms: int) -> None:
        super().__init__(grace_ms)
        self.size_ms = size_ms

    def first(self, panes: Ints) -> Ints:
        """Return the moment's own result."""
        return panes

    def last(self, panes: Ints) -> Ints:
        """Return the moment's own result: what comes too late for that is late."""
        return panes

    def made(self, panes: Ints, after: int, upto: int) -> tuple[Ints, Ints]:
        """One for each moment."""
        due = panes + self.grace_ms
        rows = np.flatnonzero((due > after) & (due <= upto))
        return rows, panes[rows]

    def begin(self, ends: Ints) -> Ints:
        """Go back by the size."""
        return ends - self.size_ms

    def over_at(self, panes: Ints) -> Ints:
        """When the last moment is sent that still looks back so far."""
        return panes + self.size_ms - 1 + self.grace_ms


class SteppedAssigner(PaneAssigner):
    """Tumbling windows with early results: each as of the steps within it, and of its end.

    An early result is sent when the watermark reaches its step, the last one after the grace. A
    record counts in the first result that is still to come and not before its own time, which
    is the step of its own pane or a later one: so none is late but for the whole window.

    Args:
        size_ms: of each window.
        step_ms: from one early result to the next.
        grace_ms: how long after its end a window still takes records.
        is_delta: a result has only what came since the one before.
    """

    def __init__(self, size_ms: int, step_ms: int, grace_ms: int, *, is_delta: bool) -> None:
        super().__init__(grace_ms)
        self.size_ms, self.pane_ms, self.is_delta = size_ms, step_ms, is_delta

    def _window(self, panes: Ints) -> Ints:
        """The beginning of the window of each pane."""
        return (panes - 1) // self.size_ms * self.size_ms

    def placed(self, times: Ints, marks: Ints) -> tuple[Ints, Mask, Mask]:
        """Put a record that came after its step into the next one of its window."""
        starts = times // self.size_ms * self.size_ms
        ends = starts + self.size_ms
        now = np.maximum(times, np.minimum(marks, ends))
        steps = starts + ((now - starts) // self.pane_ms + 1) * self.pane_ms
        timely = ends + self.grace_ms > marks
        return np.minimum(steps, ends), timely, np.zeros(len(times), bool)

    def first(self, panes: Ints) -> Ints:
        """Return its own."""
        return panes

    def last(self, panes: Ints) -> Ints:
        """Return that of the window's end."""
        return self._window(panes) + self.size_ms

    def due(self, ends: Ints) -> Ints:
        """The grace is for the last result of a window."""
        return np.where(ends == self.last(ends), ends + self.grace_ms, ends)

    def made(self, panes: Ints, after: int, upto: int) -> tuple[Ints, Ints]:
        """One for each pane that something came for."""
        due = self.due(panes)
        rows = np.flatnonzero((due > after) & (due <= upto))
        return rows, panes[rows]

    def begin(self, ends: Ints) -> Ints:
        """Go back to the window's beginning, or to the step before."""
        return ends - 1 if self.is_delta else self._window(ends)

    def reach(self, watermark: int) -> int:
        """The watermark itself: early results have no grace."""
        return watermark

    def over_at(self, panes: Ints) -> Ints:
        """When the window is over."""
        return self.last(panes) + self.grace_ms

    def windows(self, ends: Ints) -> tuple[Ints, Ints]:
        """Return the bounds of the window, of which a result may be early."""
        return self._window(ends), self.last(ends)


class SessionAssigner(Assigner):
    """Windows that grow and merge: messages of a key less than a gap apart are in one.

    The place of a record is its slice: event time is cut into slices as long as the gap. A record
    is late where it is behind the watermark of its own partition by more than the grace. By then a
    session may be out that it would have joined or made one of two.

    Args:
        gap_ms: messages less than it apart are in one session.
        grace_ms: how far behind the watermark a record may come.
        is_global: all is one window, of which there is a result after each session of the times at
            which records count; these are never late.
    """

    merges = True

    def __init__(self, gap_ms: int, grace_ms: int, *, is_global: bool = False) -> None:
        super().__init__(grace_ms)
        self.gap_ms, self.is_global = gap_ms, is_global

    def assign(self, times: Ints, marks: Ints) -> Assigned:
        """Return slices."""
        if self.is_global:
            slices = self.slices(np.maximum(times, marks))
            return Assigned(np.ones(len(times), bool), slices, _NONE, _NONE)
        timely = times + self.grace_ms >= marks
        return Assigned(timely, self.slices(times[timely]), _NONE, _NONE)

    def slices(self, times: Ints) -> Ints:
        """Return the slice of each time."""
        return (times // self.gap_ms + 1) * self.gap_ms

    def is_open(self, places: Ints, marks: Ints) -> Mask:
        """Say that a session may continue."""
        return np.ones(len(places), bool)

    def groups(self, numbers: Ints, places: Ints) -> Ints:
        """Return the keys: where rows have to be looked at together."""
        return numbers

    def units(self, rows: pl.DataFrame, groups: Ints) -> Ints:
        """Return a number for each session that rows make."""
        first, last = rows[FIRST_COLUMN].to_numpy(), rows[LAST_COLUMN].to_numpy()
        order = np.lexsort((first, groups))
        found = np.empty(len(order), np.int64)
        found[order] = chained(groups[order], first[order], last[order], self.gap_ms)
        return found

    def moments(self, rows: pl.DataFrame) -> dict[str, Ints]:
        """Return the bounds of sessions, or as of when totals are."""
        return {"at": self.bounds(rows)[1]} if self.is_global else super().moments(rows)

    def bounds(self, rows: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return from the first record to the gap after the last."""
        return rows[FIRST_COLUMN].to_numpy(), rows[LAST_COLUMN].to_numpy() + self.gap_ms

    def places(self, rows: pl.DataFrame) -> Ints:
        """Return the slice of the last record."""
        return self.slices(rows[LAST_COLUMN].to_numpy())

    def last_place(self, watermark: int) -> int:
        """Return the slice after that of the watermark: no row reaches further."""
        return (watermark // self.gap_ms + 1) * self.gap_ms

    def early(self, instants: Ints, ends: Ints, never: int) -> Ints:
        """Return the instants of early results: the end moves with each row."""
        return instants


class CountAssigner:
    """Windows by arrival, not by time: every so many rows of a key.

    Args:
        size: how many rows fill a window; 0: all are in one.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def assign(self, numbers: Ints, before: Ints) -> tuple[Ints, Ints]:
        """Return the window of each row, from 0 for that which is open, and how many are before it.

        Args:
            numbers: of the key of each row.
            before: how many rows the open window of each key has.
        """
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        counts = np.diff(np.concatenate([starts, [len(ordered)]]))
        places = np.empty(len(numbers), np.int64)
        places[order] = np.arange(len(numbers)) - np.repeat(starts, counts)
        windows, within = np.divmod(before[numbers] + places, self.size or END_WATERMARK)
        return windows, within


def chained(numbers: Ints, first: Ints, last: Ints, gap: int) -> Ints:
    """Number the sessions of rows sorted by key and first record."""
    begins = np.ones(len(numbers), bool)
    if len(numbers):
        # The latest record so far of each key: no rank of one key reaches those of the next.
        ranks = np.unique(last, return_inverse=True)
        codes = np.maximum.accumulate(numbers * len(ranks[0]) + ranks[1])
        reached = ranks[0][codes % len(ranks[0])]
        begins[1:] = (numbers[1:] != numbers[:-1]) | (first[1:] - reached[:-1] >= gap)
    return np.cumsum(begins).astype(np.int64) - 1
