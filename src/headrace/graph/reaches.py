"""Which rows of the other side a row of a join may be paired with, by event time.

All of it is arithmetic of moments in ms, for one moment or an array of them. The left side is 0,
the right one 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headrace.graph.durations import duration_text

M = TypeVar("M", int, npt.NDArray[np.int64])
Sides = tuple[bool, bool]


@dataclass(frozen=True)
class Reach(ABC):
    """What both kinds have: how far behind the watermark a row may be and still take part."""

    grace_ms: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def span_ms(self) -> int:
        """From the earliest to the latest partner of a row, at most."""

    @abstractmethod
    def first(self, moments: M, side: int) -> M:
        """Return the earliest moment of a partner of rows."""

    @abstractmethod
    def last(self, moments: M, side: int) -> M:
        """Return the latest moment of a partner of rows; it never falls while moments rise."""

    @abstractmethod
    def late_after(self, moments: M, side: int) -> M:
        """Return the watermark beyond which rows are late."""

    @abstractmethod
    def due_below(self, watermark: int, side: int) -> int:
        """Return the moment below which no row can get a partner any more."""

    @abstractmethod
    def kept_ms(self, alone: Sides) -> tuple[int, int]:
        """Return how far the watermark is past a row of either side when it is needed no more.

        Args:
            alone: whether rows of the left and of the right side are sent that have no partner.
        """

    @abstractmethod
    def lag_ms(self, alone: Sides) -> int:
        """Return how far what is sent may be behind the watermark that reaches the join."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Return what must not change under old state, by name."""

    @abstractmethod
    def text(self) -> str:
        """Return a few words for ``explain``."""


@dataclass(frozen=True)
class Near(Reach):
    """A right row is at most ``before_ms`` earlier and ``after_ms`` later than its left one."""

    before_ms: int
    after_ms: int

    @property
    def span_ms(self) -> int:
        """From the earliest to the latest."""
        return self.before_ms + self.after_ms

    def first(self, moments: M, side: int) -> M:
        """Go back."""
        return moments - (self.after_ms if side else self.before_ms)

    def last(self, moments: M, side: int) -> M:
        """Go on."""
        return moments + (self.before_ms if side else self.after_ms)

    def late_after(self, moments: M, side: int) -> M:
        """A row is late by its own moment."""
        return moments + self.grace_ms

    def due_below(self, watermark: int, side: int) -> int:
        """Go back by what a partner may be later."""
        return watermark - self.grace_ms - (self.before_ms if side else self.after_ms)

    def kept_ms(self, alone: Sides) -> tuple[int, int]:
        """As long as a partner may come, and as long as one of its own may ask whether it had one.

        A row that is sent alone must know that it is: its partners stay until it is.
        """
        left = self.after_ms + (self.before_ms if alone[1] else 0)
        right = self.before_ms + (self.after_ms if alone[0] else 0)
        return left + self.grace_ms, right + self.grace_ms

    def lag_ms(self, alone: Sides) -> int:
        """A pair has the moment of its later row; a row alone waits until none can come."""
        left, right = self.after_ms if alone[0] else 0, self.before_ms if alone[1] else 0
        return self.grace_ms + max(left, right)

    def describe(self) -> dict[str, str]:
        """Return both directions."""
        return {"before": duration_text(self.before_ms), "after": duration_text(self.after_ms)}

    def text(self) -> str:
        """Return ``within 10m``, or both directions."""
        before, after = duration_text(self.before_ms), duration_text(self.after_ms)
        return f"within {after}" if before == after else f"from {before} before to {after} after"


@dataclass(frozen=True)
class SameWindow(Reach):
    """Both rows are in one window of a size, as ``hr.tumbling`` cuts event time."""

    size_ms: int

    @property
    def span_ms(self) -> int:
        """The window."""
        return self.size_ms

    def first(self, moments: M, side: int) -> M:
        """Go back to the window's beginning."""
        return moments // self.size_ms * self.size_ms

    def last(self, moments: M, side: int) -> M:
        """Go on to its last millisecond."""
        return self.first(moments, side) + (self.size_ms - 1)

    def late_after(self, moments: M, side: int) -> M:
        """A row is late for its window."""
        return self.last(moments, side) + self.grace_ms

    def due_below(self, watermark: int, side: int) -> int:
        """Go back to the last end of a window."""
        return (watermark - self.grace_ms) // self.size_ms * self.size_ms

    def kept_ms(self, alone: Sides) -> tuple[int, int]:
        """Until the window is over, for each of its rows."""
        kept = self.size_ms - 1 + self.grace_ms
        return kept, kept

    def lag_ms(self, alone: Sides) -> int:
        """Rows take part until their window is over."""
        return self.size_ms - 1 + self.grace_ms

    def describe(self) -> dict[str, str]:
        """Return the size."""
        return {"window": duration_text(self.size_ms)}

    def text(self) -> str:
        """Return ``in one window of 1h``."""
        return f"in one window of {duration_text(self.size_ms)}"
