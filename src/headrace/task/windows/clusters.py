"""Under which clusters a window with triggers keeps its rows: what was sent, and what waits.

A *place* is the end of a window, or of a slice of sessions. What was sent of it is under 2 * place;
what waits for its end under 2 * place + 1; what waits for an instant before that under a number
beyond ``WAITING``, which holds the *step*, the end of a piece of event time, and the place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.graph.windows import Session, Window
from headrace.task.chunk import Ints

WAITING = 1 << 62
NEVER = 1 << 62
_MOST = 1 << 48
"""Later than any event time in ms."""


@dataclass(frozen=True)
class Clusters:
    """How clusters are numbered.

    Args:
        step_ms: length of a step; 0 where nothing waits for one.
        ahead_ms: how far the place of a row may be after its step.
        behind_ms: how far before.
    """

    step_ms: int = 0
    ahead_ms: int = 0
    behind_ms: int = 0

    @property
    def _span(self) -> int:
        return self.ahead_ms + self.behind_ms + 1

    def steps(self, moments: Ints) -> Ints:
        """Return the step in which each moment is."""
        return (moments // self.step_ms + 1) * self.step_ms

    def waiting(self, steps: Ints, places: Ints) -> Ints:
        """Return the clusters of rows that wait: for a step, or where that is 0, for the end."""
        if not self.step_ms:
            return 2 * places + 1
        beside = steps - places + self.ahead_ms
        numbers = WAITING + steps // self.step_ms * self._span + beside
        return np.where(steps > 0, numbers, 2 * places + 1)

    def is_sent(self, clusters: Ints) -> npt.NDArray[np.bool_]:
        """Say which rows were sent."""
        chosen: npt.NDArray[np.bool_] = (clusters < WAITING) & (clusters % 2 == 0)
        return chosen

    def read(self, clusters: Ints) -> tuple[Ints, Ints]:
        """Return the place and the step of each; ``NEVER`` is that of rows that wait for none."""
        places, steps = clusters >> 1, np.full(len(clusters), NEVER)
        is_waiting = clusters >= WAITING
        if is_waiting.any():
            numbers, beside = np.divmod(clusters[is_waiting] - WAITING, self._span)
            steps[is_waiting] = numbers * self.step_ms
            places[is_waiting] = steps[is_waiting] - beside + self.ahead_ms
        return places, steps

    def ranges(self, last_place: int, last_step: int) -> list[tuple[int, int]]:
        """Return from which to which cluster rows are, up to a place or a step."""
        found = [(0, 2 * min(last_place, _MOST) + 1)]
        if self.step_ms:
            number = min(last_step, _MOST) // self.step_ms + 1
            found.append((WAITING, WAITING + min(number * self._span, WAITING - 2)))
        return [(low, high) for low, high in found if low <= high]


def clusters_of(window: Window) -> Clusters:
    """Return how the rows of a window with triggers are kept."""
    step_ms = window.early_ms or window.early_idle_ms or 0
    if isinstance(window, Session):
        return Clusters(step_ms, window.gap_ms, step_ms + window.grace_ms)
    return Clusters(step_ms, window.width_ms, step_ms)
