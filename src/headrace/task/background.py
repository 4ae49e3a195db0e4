"""Work beside the epochs: one thread of low priority in each worker process.

What it does is a pure function of committed files that never change, so nothing of it
survives and nothing has to: a result that nobody took is made again. A slot submits work,
never waits for it, and looks later whether it is done.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

MOST_WAITING = 64
NICE = 5
"""Added to the nice value of the thread: a third of a slot's share where processors are short. With
more a merge starves there, and what it holds of the interpreter lock is held for longer."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Work(Protocol[T_co]):
    """Something to be done once."""

    def run(self, should_stop: Callable[[], bool]) -> T_co:
        """Do it; may raise anything, also because it was asked to stop."""
        ...

    def forget(self) -> None:
        """Remove what it has made, if anything; called once, when nobody wants it any more."""
        ...


class Ticket(Generic[T]):
    """Work that was submitted; ``is_done`` once there is a result or an error."""

    def __init__(self, work: Work[T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_dropped = self._is_running = False
        self.is_done = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def perform(self) -> None:
        """Do the work, in whatever thread calls."""
        with self._lock:
            if self._is_dropped:
                return
            self._is_running = True
        try:
            self.result = self._work.run(self._dropped)
        except Exception as error:  # noqa: BLE001 - told to whoever asks for the result
            self.error = error
        with self._lock:
            self._is_running, self.is_done = False, True
        if self._dropped():
            self._work.forget()

    def _dropped(self) -> bool:
        return self._is_dropped

    def drop(self) -> None:
        """Stop the work if it runs, and remove what it made; a second time is fine."""
        with self._lock:
            already, self._is_dropped = self._is_dropped, True
            if already or self._is_running:
                return
        self._work.forget()


class Background(ABC):
    """Where work is done while epochs go on."""

    @abstractmethod
    def submit(self, work: Work[T]) -> Ticket[T] | None:
        """Take work; ``None`` when too much of it waits already."""

    @abstractmethod
    def look(self, ticket: Ticket[T]) -> bool:
        """Say whether work is done; never waits for it."""

    @abstractmethod
    def close(self) -> None:
        """Drop everything and let no thread behind; work may be submitted again."""


class ThreadBackground(Background):
    """One thread, there only while there is work; a forked child begins without any."""

    def __init__(self, most_waiting: int = MOST_WAITING, nice: int = NICE) -> None:
        self._most, self._nice = most_waiting, nice
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[Ticket[object]] = deque()
        self._current: Ticket[object] | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Work[T]) -> Ticket[T] | None:
        """Queue work, and start the thread if it is not there."""
        if self._pid != os.getpid():
            self._begin()
        ticket = Ticket(work)
        with self._lock:
            if len(self._waiting) >= self._most:
                return None
            self._waiting.append(ticket)  # type: ignore[arg-type]
            if self._thread is None:
                # A daemon, for an interpreter must not wait for it; _close_all joins it.
                self._thread = threading.Thread(
                    target=self._serve, name="headrace-background", daemon=True
                )
                self._thread.start()
        _started.add(self)
        return ticket

    def look(self, ticket: Ticket[T]) -> bool:
        """Say whether work is done."""
        return ticket.is_done

    def _serve(self) -> None:
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0) + self._nice)
        try:
            while (ticket := self._next()) is not None:
                ticket.perform()
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = self._current = None

    def _next(self) -> Ticket[object] | None:
        with self._lock:
            self._current = self._waiting.popleft() if self._waiting else None
            if self._current is None:
                self._thread = None  # whoever submits now begins another
            return self._current

    def close(self) -> None:
        """Drop what waits, stop what runs, wait for the thread to end."""
        if self._pid != os.getpid():
            self._begin()
            return
        with self._lock:
            dropped, thread = list(self._waiting), self._thread
            self._waiting.clear()
            if self._current is not None:
                dropped.append(self._current)
        for ticket in dropped:
            ticket.drop()
        if thread is not None:
            thread.join()


class InlineBackground(Background):
    """Does work in the thread that looks for it, when a schedule says so; for tests.

    Args:
        is_time: asked at each look whether that work is done now.
    """

    def __init__(self, is_time: Callable[[], bool] = lambda: True) -> None:
        self._is_time = is_time
        self._left: list[Ticket[object]] = []

    def submit(self, work: Work[T]) -> Ticket[T]:
        """Keep work until somebody looks."""
        ticket = Ticket(work)
        self._left.append(ticket)  # type: ignore[arg-type]
        return ticket

    def look(self, ticket: Ticket[T]) -> bool:
        """Do the work if it is time."""
        if not ticket.is_done and self._is_time():
            self._left = [other for other in self._left if other is not ticket]
            ticket.perform()
        return ticket.is_done

    def close(self) -> None:
        """Drop everything."""
        for ticket in self._left:
            ticket.drop()
        self._left = []


_started: weakref.WeakSet[ThreadBackground] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for background in list(_started):
        background.close()
