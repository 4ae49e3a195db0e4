"""How long a job needs until nothing lies before it, by how its lag fell in its last epochs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 30.0
LEAST_S = 1.0
"""Of less than that no pace is known."""


@dataclass
class Pace:
    """Written by the driver's thread, read by any under the lock of whoever holds it."""

    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, lag: int) -> None:
        """Take the lag after an epoch.

        Args:
            now: of the monotonic clock, s.
            lag: rows of all parts.
        """
        self._marks.append((now, lag))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()

    def eta_s(self, now: float) -> float | None:
        """Return for how long the job still reads at this pace.

        Args:
            now: of the monotonic clock, s.

        Returns:
            ``None`` where nothing lies before it, or it does not come closer.
        """
        if len(self._marks) < 2:
            return None
        (began, before), (last, lag) = self._marks[0], self._marks[-1]
        if last - began < LEAST_S or not 0 < lag < before:
            return None
        rate = (before - lag) / (last - began)
        return max(0.0, lag / rate - (now - last))
