"""Whether a job that is to catch up with its inputs comes closer to them, and what to do if not."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 30.0
"""So long a job may come no closer: inputs come in bursts, and epochs take their time."""

REPEAT_S = 300.0


@dataclass
class Pursuit:
    """Written by the driver's thread.

    Args:
        rate: rows a second that the job may read; ``None``: as many as it can.
    """

    rate: int | None = None
    _marks: deque[tuple[float, int, int]] = field(default_factory=deque)
    _rows: int = 0
    _told_at: float | None = None

    def note(self, now: float, rows: int, lags: list[int]) -> str | None:
        """Take an epoch; returns what is to be told where the job comes no closer.

        Args:
            now: of the monotonic clock, s.
            rows: of the job's inputs that the epoch has read.
            lags: rows that lie before each part of the job.
        """
        self._rows += rows
        self._marks.append((now, self._rows, sum(lags)))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()
        (began, rows_then, lag_then), lag = self._marks[0], sum(lags)
        seconds = now - began
        if seconds < WINDOW_S or lag < lag_then or not lag:
            return None
        if self._told_at is not None and now - self._told_at < REPEAT_S:
            return None
        self._told_at = now
        reads = (self._rows - rows_then) / seconds
        comes = reads + (lag - lag_then) / seconds
        return self._words(reads, comes if len(lags) == 1 else None, lag)

    def _words(self, reads: float, comes: float | None, lag: int) -> str:
        came = "" if comes is None else f", and {comes:,.0f} a second come in"
        if self.rate is None or (comes is not None and comes < self.rate):
            limit, move = "", "more tasks, executors or cores (--tasks, --executors, --cores)"
        else:
            limit = f" (at most {self.rate:,}, by --rate)"
            above = "" if comes is None else f" above {comes:,.0f}"
            move = f"a --rate{above} that leaves it room, or none"
        return (
            "the job never catches up at this pace: it reads "
            f"{reads:,.0f} rows a second{limit}{came}; {lag:,} lie before it. Stop it, and give "
            f"the same command with {move}: it goes on from where it is"
        )
