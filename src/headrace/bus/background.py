"""A thread that does what can wait, one thing after the other; begun with the first of them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from headrace.errors import HeadraceError


class BackgroundWork:
    """Work of one process, in the order in which it was given.

    What fails is left: it is found to be due again, and what is wrong tells whoever reads.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closed = False

    def put(self, work: Callable[[], None]) -> None:
        """Have something done; nothing more after ``close``."""
        if self._process != os.getpid():  # a forked process has none of the threads
            self._lock = threading.Lock()
            self._begin()
        with self._lock:
            if self._is_closed:
                return
            self._work.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait for what is under way, and leave the rest."""
        with self._lock:
            self._is_closed = True
            thread = self._thread if self._process == os.getpid() else None
        if thread is not None:
            self._work.put(None)
            thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            work = self._work.get()
            if work is not None:
                with contextlib.suppress(HeadraceError, OSError):
                    work()
