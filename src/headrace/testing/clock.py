"""A clock that stands still until a test moves it, and names that repeat with a seed."""

from __future__ import annotations

import random


class ManualClock:
    """Time moves only by ``advance`` and ``sleep``; names come from the seed.

    Args:
        start_ms: first reading of the wall clock.
        seed: of the names.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self._now_ms = start_ms
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        """Return the wall clock."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return seconds since the wall clock's zero."""
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        """Move on at once."""
        self.advance(int(seconds * 1000))

    def advance(self, by_ms: int) -> None:
        """Move the clock forward."""
        self._now_ms += by_ms

    def new_id(self) -> str:
        """Return the next name of the seed."""
        return f"{self._random.getrandbits(64):016x}"
