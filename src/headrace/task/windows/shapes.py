"""What windows with triggers are made of: which rows go together, and when they end.

Rows of a *unit* may become one result: those of a key and window, or of a key's session as far as
it is known. A *group* is where rows have to be looked at together: a key's window, or the key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import polars as pl

from headrace.task.chunk import Ints
from headrace.task.windows.sessions import FIRST_COLUMN, LAST_COLUMN, chained
from headrace.task.windows.spans import Hops

PLACE = "__place"


class Shape(ABC):
    """What both kinds answer; arrays have an element for each row."""

    @abstractmethod
    def groups(self, numbers: Ints, places: Ints) -> Ints:
        """Return the group of each row, from 0; ``numbers`` are those of keys."""

    @abstractmethod
    def units(self, frame: pl.DataFrame, groups: Ints) -> Ints:
        """Return the unit of each row, from 0."""

    @abstractmethod
    def bounds(self, frame: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return the window that each row would be of alone."""

    @abstractmethod
    def places(self, frame: pl.DataFrame) -> Ints:
        """Return where each row is kept once it was sent."""

    @abstractmethod
    def last_place(self, watermark: int) -> int:
        """Return the last place of rows that are sent up to a watermark, or belong to them."""

    def early(self, instants: Ints, ends: Ints, never: int) -> Ints:
        """Return the instants of early results; ``never`` for those after the end of a window."""
        return instants


class WindowShape(Shape):
    """Windows whose bounds are known from the start; rows have the end as ``PLACE``.

    Args:
        hops: the windows.
    """

    def __init__(self, hops: Hops) -> None:
        self.hops = hops

    def groups(self, numbers: Ints, places: Ints) -> Ints:
        """Return a number for each key and window."""
        known, at = np.unique(places, return_inverse=True)
        _, groups = np.unique(numbers * max(1, len(known)) + at, return_inverse=True)
        found: Ints = groups.astype(np.int64)
        return found

    def units(self, frame: pl.DataFrame, groups: Ints) -> Ints:
        """Return the groups."""
        return groups

    def bounds(self, frame: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return the window's."""
        ends = frame[PLACE].to_numpy()
        return ends - self.hops.size_ms, ends

    def places(self, frame: pl.DataFrame) -> Ints:
        """Return the end."""
        return frame[PLACE].to_numpy()

    def last_place(self, watermark: int) -> int:
        """Return the end of the last window that has begun."""
        return watermark + self.hops.size_ms

    def early(self, instants: Ints, ends: Ints, never: int) -> Ints:
        """Nothing is early after the end."""
        return np.where(instants >= ends, never, instants)


class SessionShape(Shape):
    """Sessions, which grow and meet; rows are in slices as long as the gap.

    Args:
        gap_ms: messages less than it apart are in one session.
    """

    def __init__(self, gap_ms: int) -> None:
        self.gap_ms = gap_ms

    def slices(self, times: Ints) -> Ints:
        """Return the slice of each time."""
        return (times // self.gap_ms + 1) * self.gap_ms

    def groups(self, numbers: Ints, places: Ints) -> Ints:
        """Return the keys."""
        return numbers

    def units(self, frame: pl.DataFrame, groups: Ints) -> Ints:
        """Return a number for each session that the rows make."""
        first, last = frame[FIRST_COLUMN].to_numpy(), frame[LAST_COLUMN].to_numpy()
        order = np.lexsort((first, groups))
        found = np.empty(len(order), np.int64)
        found[order] = chained(groups[order], first[order], last[order], self.gap_ms)
        return found

    def bounds(self, frame: pl.DataFrame) -> tuple[Ints, Ints]:
        """Return from the first record to the gap after the last."""
        return frame[FIRST_COLUMN].to_numpy(), frame[LAST_COLUMN].to_numpy() + self.gap_ms

    def places(self, frame: pl.DataFrame) -> Ints:
        """Return the slice of the last record."""
        return self.slices(frame[LAST_COLUMN].to_numpy())

    def last_place(self, watermark: int) -> int:
        """Return the slice after that of the watermark: no row reaches further."""
        return (watermark // self.gap_ms + 1) * self.gap_ms
