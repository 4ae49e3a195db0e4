"""What ends a query that nobody waits for any more."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.errors import UnavailableError


class Cancel:
    """Ends queries of a client that is gone; it can be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupts: set[Callable[[], None]] = set()
        self.is_done = False

    def __call__(self) -> None:
        """End what runs, and what would begin."""
        with self._lock:
            self.is_done = True
            interrupts = list(self._interrupts)
        for one in interrupts:
            one()

    def begin(self, interrupt: Callable[[], None]) -> None:
        """Note what ends a statement that begins."""
        with self._lock:
            self._interrupts.add(interrupt)
            is_done = self.is_done
        if is_done:
            raise CancelledError

    def end(self, interrupt: Callable[[], None]) -> None:
        """Forget a statement that has ended."""
        with self._lock:
            self._interrupts.discard(interrupt)


class CancelledError(UnavailableError):
    """Nobody waits for the answer any more."""

    code = "HR213"
    move = "ask again, if the answer is still wanted"

    def __init__(self) -> None:
        super().__init__("the query was cancelled, for nobody waits for its answer; ask again")
