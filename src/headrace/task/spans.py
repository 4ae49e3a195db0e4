"""Which results a pane counts in: how windows that share rows are made of panes.

Event time is cut into panes, each named by its end, ms. A result is named by its end too, and is
made of the panes after its beginning and up to its end. Nothing here looks at rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from headrace.task.chunk import Ints


class Spans(ABC):
    """What all kinds answer; arrays are of shape (n,), one element for each pane or result."""

    pane_ms: int

    def panes(self, times: Ints) -> Ints:
        """Return the pane of each event time."""
        return (times // self.pane_ms + 1) * self.pane_ms

    @abstractmethod
    def first(self, panes: Ints) -> Ints:
        """Return the end of the first result that a pane is in."""

    @abstractmethod
    def last(self, panes: Ints) -> Ints:
        """Return the end of the last result that it takes a record to be in time for."""

    @abstractmethod
    def made(self, panes: Ints, after: int, upto: int) -> tuple[Ints, Ints]:
        """Return the results that there are because of panes, with ends in a range.

        Args:
            panes: distinct, rising.
            after: results end after it.
            upto: and not later than it.

        Returns:
            Places in ``panes`` and the ends of results, side by side.
        """

    @abstractmethod
    def begin(self, ends: Ints) -> Ints:
        """Return the beginning of each result."""

    @abstractmethod
    def kept_until(self, panes: Ints) -> Ints:
        """Return the end of the last result that can need each pane."""


class Hops(Spans):
    """Windows of one size that begin every so often.

    Args:
        size_ms: of each window.
        every_ms: from the beginning of one to that of the next; not more than the size.
    """

    def __init__(self, size_ms: int, every_ms: int) -> None:
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
        behind = np.maximum(after + 1 - first, 0)
        first = first + -(-behind // self.every_ms) * self.every_ms
        counts = np.maximum((np.minimum(last, upto) - first) // self.every_ms + 1, 0)
        rows = np.repeat(np.arange(len(panes)), counts)
        steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, first[rows] + steps * self.every_ms

    def begin(self, ends: Ints) -> Ints:
        """Go back by the size."""
        return ends - self.size_ms

    def kept_until(self, panes: Ints) -> Ints:
        """Return the last window's end."""
        return self.last(panes)


class Trail(Spans):
    """For each moment that has a record, what lies within a size before it, itself included.

    Args:
        size_ms: how far back.
    """

    pane_ms = 1

    def __init__(self, size_ms: int) -> None:
        self.size_ms = size_ms

    def first(self, panes: Ints) -> Ints:
        """Return the moment's own result."""
        return panes

    def last(self, panes: Ints) -> Ints:
        """Return the moment's own result: what comes too late for that is late."""
        return panes

    def made(self, panes: Ints, after: int, upto: int) -> tuple[Ints, Ints]:
        """One for each moment."""
        rows = np.flatnonzero((panes > after) & (panes <= upto))
        return rows, panes[rows]

    def begin(self, ends: Ints) -> Ints:
        """Go back by the size."""
        return ends - self.size_ms

    def kept_until(self, panes: Ints) -> Ints:
        """Return the last moment that still looks back so far."""
        return panes + self.size_ms - 1
