"""Threads for calls that block; one that never returns does not keep its process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

Act = Callable[[], object]


class Threads:
    """Runs calls in up to ``size`` threads, in their order.

    Unlike those of ``concurrent.futures`` they are not waited for at the end of the process.

    Args:
        name: of the threads.
        size: how many at most.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._acts: SimpleQueue[Act | None] = SimpleQueue()
        self._free = threading.Semaphore(0)
        self._made = 0

    def submit(self, act: Act) -> None:
        """Run a call, which raises nothing, once a thread is free."""
        if not self._free.acquire(blocking=False) and self._made < self._size:
            name = f"{self._name}_{self._made}"
            self._made += 1
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._acts.put(act)

    def _work(self) -> None:
        while (act := self._acts.get()) is not None:
            act()
            self._free.release()

    def close(self) -> None:
        """Let threads end once they are free; calls that have not begun are not made."""
        with suppress(Empty):
            while True:
                self._acts.get_nowait()
        for _ in range(self._made):
            self._acts.put(None)
