"""The open task states of one worker process, kept between epochs.

A slot usually meets its worker again, and then finds its stores open and its sealed
changes in memory. That is a cache: what is not found is opened and caught up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from headrace.state.object_cache import DEFAULT_CACHE_BYTES, CacheBudget
from headrace.state.task_state import BACKENDS, BackendFactory, TaskState

MAX_OPEN = 256

Key = tuple[str, str, int]
"""Job, stage, task."""


class Registry:
    """Open task states by job, stage and task; for one thread.

    Args:
        limit: states kept open; beyond, the one longest unused is closed.
        cache_bytes: what their stores may keep of values between epochs, together.
        backends: how each kind of store is opened.
    """

    def __init__(
        self,
        limit: int = MAX_OPEN,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        backends: Mapping[str, BackendFactory] = BACKENDS,
    ) -> None:
        self.backends = backends
        self._limit = limit
        self.cache = CacheBudget(cache_bytes)
        self._open: dict[Key, TaskState] = {}
        self._left_behind: list[TaskState] = []
        self._pid = os.getpid()

    def get(
        self, key: Key, opened: Callable[[], TaskState], groups: tuple[int, int] | None = None
    ) -> TaskState:
        """Return the state of a task, opening it when it is not here.

        Args:
            key: job, stage, task.
            opened: makes the state; called when there is none, or it owns other key groups.
            groups: those that it must own; ``None``: whichever.
        """
        self._check_process()
        held = self._open.get(key)
        if held is not None and groups not in (None, held.name.groups):
            self.close(key)
        found = self._open.pop(key, None)
        if found is None:
            while len(self._open) >= self._limit:
                self.close(next(iter(self._open)))
            found = opened()
        self._open[key] = found
        return found

    def reserve(self, count: int) -> None:
        """Keep at least so many open from now on: what one epoch needs at the same time."""
        self._limit = max(self._limit, count)

    def close(self, key: Key) -> None:
        """Close one state; it may be closed already."""
        self._check_process()
        found = self._open.pop(key, None)
        if found is not None:
            found.close()

    def close_all(self) -> None:
        """Close all states, for a clean end of the process."""
        self._check_process()
        for key in list(self._open):
            self.close(key)

    def __len__(self) -> int:
        """Return how many states are open."""
        self._check_process()
        return len(self._open)

    def _check_process(self) -> None:
        # After a fork the states belong to the parent: they are left alone, not closed.
        if self._pid != os.getpid():
            self._left_behind += self._open.values()
            self._open = {}
            self._pid = os.getpid()
