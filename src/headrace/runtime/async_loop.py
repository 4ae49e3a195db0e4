"""The event loop of a process: all asynchronous calls of all its tasks make progress on it.

Calls that block run in threads; one that never returns does not keep its process from ending. Time
on the loop is that of the injected clock.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from headrace.clock import Clock, SystemClock
from headrace.runtime.user_calls import time_limit, with_rare_gc

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


_REAL_WAIT_S = 0.02
_ASK_S = 0.05
_CLOSE_S = 1.0
Owner = tuple[str, str, int, str]
"""Job, stage, task and operator."""


class LoopClient(Protocol):
    """What makes progress on the loop: the calls of one operator of one task."""

    progress: int
    """Goes up with each call that begins or takes effect."""

    def pump(self, now_s: float, *, may_begin: bool) -> bool:
        """Do what is to be done now; says whether there is anything left to wait for."""
        ...

    def deadline(self) -> float | None:
        """Return when ``pump`` has something to do although no call has ended."""
        ...


class _Selector(selectors.DefaultSelector):
    """Waits as the clock does: one that stands still is moved on while nothing else can happen."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self._is_real = clock, isinstance(clock, SystemClock)
        self.is_idle = False
        self.outside = self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.is_idle = True
        self.turns += 1
        try:
            return self._waited(timeout)
        finally:
            self.is_idle = False

    def _waited(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._is_real or timeout == 0:
            return super().select(timeout)
        has_others = self.outside > 0 or len(self.get_map()) > 1
        real = _REAL_WAIT_S if has_others or timeout is None else 0.0
        found = super().select(real if timeout is None else min(real, timeout))
        if not found and timeout:
            self._clock.sleep(max(0.001, min(real, timeout) if has_others else timeout))
        return found


class _Loop(asyncio.SelectorEventLoop):
    """An event loop in which time is that of a clock, and continues only while it runs.

    What a service has answered meanwhile is not too late because nobody could take it.
    """

    def __init__(self, clock: Clock) -> None:
        self.waits = _Selector(clock)
        self._clock = clock
        self._zero = self._left = clock.monotonic()
        super().__init__(self.waits)

    def run_until_complete(self, future: Any) -> Any:
        self._zero += self._clock.monotonic() - self._left
        try:
            return super().run_until_complete(future)
        finally:
            self._left = self._clock.monotonic()

    def time(self) -> float:  # from 0 on, for timers are compared to a billionth of a second
        return self._clock.monotonic() - self._zero

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        self.waits.outside += 1
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, _: object) -> None:
        self.waits.outside -= 1


class CallLoop:
    """One event loop and its thread pools; made when the first call needs them.

    Args:
        clock: of the process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop: _Loop | None = None
        self._woken: asyncio.Event | None = None
        self._pools: dict[str, Threads] = {}
        self._posted: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._thread = 0
        self.strays: dict[Owner, Counter[str]] = {}

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self._made()

    def _made(self) -> _Loop:
        if self._loop is None:
            self._loop = _Loop(self._clock)
            self._woken = asyncio.Event()
            self._thread = threading.get_ident()
        return self._loop

    @property
    def is_here(self) -> bool:
        """Say whether the caller is in the thread of the loop."""
        return threading.get_ident() == self._thread

    def settle(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, as ``open`` and ``close`` of the user's may be."""
        loop = self._made()
        self._thread = threading.get_ident()
        return loop.run_until_complete(coroutine)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let a coroutine run while the loop does."""
        return self._made().create_task(coroutine)

    def submit(self, operator: str, size: int, call: Callable[[], object]) -> None:
        """Run a call in a thread of the operator's pool."""
        pool = self._pools.get(operator)
        if pool is None:
            pool = self._pools[operator] = Threads(f"headrace-{operator}", size)
        pool.submit(call)

    def outside(self, change: int) -> None:
        """Count calls that continue outside of the loop; a clock of a test waits for them."""
        self._made().waits.outside += change

    def post(self, act: Callable[[], object]) -> None:
        """Have something done in the thread of the loop, when it runs next; from any thread."""
        with self._lock:
            self._posted.append(act)
            loop = self._loop
            if len(self._posted) == 1 and loop is not None:
                with suppress(RuntimeError):  # it was closed: nobody waits any more
                    loop.call_soon_threadsafe(self._serve)

    def _serve(self) -> None:
        with self._lock:
            acts, self._posted = self._posted, deque()
        for act in acts:
            act()
        self.wake()

    def wake(self) -> None:
        """Have the pumps look again."""
        if self._woken is not None:
            self._woken.set()

    def run(
        self,
        pumped: Iterable[LoopClient],
        *,
        begin_s: float | None,
        wait_s: float | None,
        limit_s: float | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run until all calls have taken effect, or a bound is reached.

        Args:
            pumped: what makes progress.
            begin_s: how long calls begin; ``None``: as long as there are any.
            wait_s: how long nothing may happen; ``None``: as long as it takes.
            limit_s: how long one step of the user's may hold the loop up.
            should_stop: asked now and then: no call begins any more, and nothing is waited for.
        """
        known = list(pumped)
        if not known:
            return
        loop = self._made()
        self._thread = threading.get_ident()

        def progress() -> object:
            return object() if loop.waits.is_idle else loop.waits.turns

        with self._lock:
            if self._posted:
                loop.call_soon(self._serve)
        with time_limit(limit_s, progress), with_rare_gc():
            driven = loop.create_task(self._driven(known, begin_s, wait_s, should_stop))
            try:
                loop.run_until_complete(driven)
            finally:
                driven.cancel()  # where what is no call's ended the loop, it must not continue

    async def _driven(
        self,
        known: list[LoopClient],
        begin_s: float | None,
        wait_s: float | None,
        should_stop: Callable[[], bool],
    ) -> None:
        assert self._woken is not None
        loop, woken = self._made(), self._woken
        began = last = loop.time()
        seen, stops, asked = -1, False, began - _ASK_S
        while True:
            now = loop.time()
            woken.clear()
            if now - asked >= _ASK_S:
                stops, asked = should_stop(), now
            may_begin = not stops and (begin_s is None or now - began < begin_s)
            # All of them: what one releases may be what another waits for.
            waiting = [one for one in known if one.pump(now, may_begin=may_begin)]
            if not waiting or stops:
                return
            progress = sum(one.progress for one in known)
            if progress != seen:
                seen, last = progress, now
            if wait_s is not None:
                over = last + wait_s
                if begin_s is not None:
                    over = min(over, began + begin_s + wait_s)
                if now >= over:
                    return
            else:
                over = None
            await self._sleep_until(woken, _earliest(over, waiting))

    async def _sleep_until(self, woken: asyncio.Event, at: float | None) -> None:
        loop = self._made()
        timer = None if at is None else loop.call_at(at, woken.set)
        try:
            await woken.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def stray(self, owner: Owner, what: str) -> None:
        """Count what came for calls that nobody waits for, by operator."""
        self.strays.setdefault(owner, Counter())[what] += 1

    def close(self) -> None:
        """End what still runs; threads of the user's that do not end are left alone."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:  # what does not let itself be cancelled is left alone, too
            loop.run_until_complete(asyncio.wait(left, timeout=_CLOSE_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        self._loop = None  # not before: a call that ends meanwhile would make another loop


def _earliest(over: float | None, waiting: Iterable[LoopClient]) -> float | None:
    known = [at for one in waiting if (at := one.deadline()) is not None]
    return min(known if over is None else [over, *known], default=None)
