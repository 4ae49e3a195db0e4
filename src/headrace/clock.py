"""Time, waiting and identity, passed in so that tests can hold them still.

Nothing else in Headrace reads the clock, sleeps or makes random names; the linter
bans ``time.time``, ``time.sleep``, ``random`` and ``uuid`` elsewhere.
"""

from __future__ import annotations

import os
import time
from typing import Protocol


class Clock(Protocol):
    """Where time, waiting and unique names come from."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back; for deadlines and durations."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; called only by shells around the pure parts."""
        ...

    def new_id(self) -> str:
        """Return a name of 16 hexadecimal digits that no other call ever returned."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for the seconds given."""
        time.sleep(seconds)

    def new_id(self) -> str:
        """Return 16 hexadecimal digits from the operating system's randomness."""
        return os.urandom(8).hex()


class Deadline:
    """One time budget shared by a chain of calls.

    Args:
        clock: where time comes from.
        seconds: the budget; ``None`` never expires.
    """

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._at = None if seconds is None else clock.monotonic() + seconds

    def remaining(self, at_most: float = float("inf")) -> float:
        """Return seconds left, from 0 to ``at_most``."""
        if self._at is None:
            return at_most
        return max(0.0, min(at_most, self._at - self._clock.monotonic()))

    @property
    def expired(self) -> bool:
        """Say whether nothing is left."""
        return self._at is not None and self._clock.monotonic() >= self._at
