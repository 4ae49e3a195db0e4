"""Which results a pane counts in: how windows that share rows are made of panes.

Event time is cut into panes, each named by its end, ms. A result is named by its end too, and is
made of the panes after its beginning and up to its end. Nothing here looks at rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.task.chunk import Ints
from headrace.task.orders import END_WATERMARK

Mask = npt.NDArray[np.bool_]


class Placed(NamedTuple):
    """Where records go; each of shape (n,).

    ``is_whole`` says that a record is in time for all results of its pane, ``is_partly`` that it
    is for the last ones only; the others are late.
    """

    panes: Ints
    is_whole: Mask
    is_partly: Mask


class Spans(ABC):
    """What all kinds answer; arrays have an element for each record, pane or result.

    A result with the end e is sent when the watermark reaches e + grace.

    Args:
        grace_ms: how long after its end a result still takes records.
    """

    pane_ms: int

    def __init__(self, grace_ms: int) -> None:
        self.grace_ms = grace_ms

    def placed(self, times: Ints, marks: Ints) -> Placed:
        """Say in which panes records are, by event time and the watermark that they came with."""
        panes = (times // self.pane_ms + 1) * self.pane_ms
        out = marks - self.grace_ms
        is_whole = self.first(panes) > out
        return Placed(panes, is_whole, ~is_whole & (self.last(panes) > out))

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

    def due(self, ends: Ints) -> Ints:
        """Return the watermark that sends each result."""
        return ends + self.grace_ms

    def reach(self, watermark: int) -> int:
        """Return the greatest end of a result that a watermark sends."""
        return watermark - self.grace_ms

    def windows(self, ends: Ints) -> tuple[Ints, Ints]:
        """Return the bounds of the window that each result is of."""
        return self.begin(ends), ends


class Hops(Spans):
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
        """Go on in steps as long as the window still has the pane."""
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


class Trail(Spans):
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


class Steps(Spans):
    """Tumbling windows with early results: each as of the steps within it, and of its end.

    An early result is sent when the watermark reaches its step, the last one after the grace. A
    record counts in the first result that is still to come and not before its own time, which
    is the step of its own pane or a later one: so none is late but for the whole window.

    Args:
        size_ms: of each window.
        step_ms: from one early result to the next.
        grace_ms: how long after its end a window still takes records.
        adds_up: a result has only what came since the one before.
    """

    def __init__(self, size_ms: int, step_ms: int, grace_ms: int, *, adds_up: bool) -> None:
        super().__init__(grace_ms)
        self.size_ms, self.pane_ms, self.adds_up = size_ms, step_ms, adds_up

    def _window(self, panes: Ints) -> Ints:
        """The beginning of the window of each pane."""
        return (panes - 1) // self.size_ms * self.size_ms

    def placed(self, times: Ints, marks: Ints) -> Placed:
        """Put a record that came after its step into the next one of its window."""
        starts = times // self.size_ms * self.size_ms
        ends, now = (
            starts + self.size_ms,
            np.maximum(times, np.minimum(marks, starts + self.size_ms)),
        )
        steps = starts + ((now - starts) // self.pane_ms + 1) * self.pane_ms
        timely = ends + self.grace_ms > marks
        return Placed(np.minimum(steps, ends), timely, np.zeros(len(times), bool))

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
        return ends - 1 if self.adds_up else self._window(ends)

    def reach(self, watermark: int) -> int:
        """The watermark itself: early results have no grace."""
        return watermark

    def over_at(self, panes: Ints) -> Ints:
        """When the window is over."""
        return self.last(panes) + self.grace_ms

    def windows(self, ends: Ints) -> tuple[Ints, Ints]:
        """Return the bounds of the window, of which a result may be early."""
        return self._window(ends), self.last(ends)
