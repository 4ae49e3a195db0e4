"""How the calls of a processor are made that need not end before the next begins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from headrace.graph.arguments import attempt
from headrace.graph.calls import CALLBACK, ORDERS, THREAD, Calls, call_style
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.operators import StoreSpec
from headrace.graph.processors import contract_of


class Callback(Protocol):
    """Ends a call of ``process_async``; from any thread, the first time counts."""

    def complete(self) -> None:
        """The message is processed: what the call sent, wrote and set takes effect."""
        ...

    def fail(self, error: BaseException) -> None:
        """It cannot be: nothing of the call takes effect, and ``on_error`` decides."""
        ...


class AsyncProcessor(ABC):
    """A processor whose calls may be under way at the same time; deriving from it is optional.

    ``open``, ``close`` may be coroutines too; ``on_timer`` is a plain method.
    """

    @abstractmethod
    async def process(self, message: Any, context: Any) -> None:
        """Process a message; what it sends, writes and sets takes effect when it returns."""


def checked_calls(
    wrong: list[str],
    factory: Any,
    keys: tuple[str, ...] | None,
    *,
    max_concurrency: int | None,
    order: str | None,
    timeout: Duration | None,
    callback_timeout: Duration | None,
    threads: int | None,
) -> Calls | None:
    """Return how calls are made, or ``None`` where each ends before the next; notes mistakes."""
    style = call_style(factory)
    given = {
        "max_concurrency": max_concurrency,
        "order": order,
        "timeout": timeout,
        "callback_timeout": callback_timeout,
    }
    if style is None and threads is None:
        wrong += [
            f"{name}= is for async def process, process_async, or process(..., threads=n)"
            for name, value in given.items()
            if value is not None
        ]
        return None
    if style is not None and threads is not None:
        wrong.append("threads= is for a plain process method; this one is asynchronous already")
    if contract_of(factory) is not None:
        wrong.append("hr.StatelessProcessor and its like are called plainly: leave threads= out")
    style = style or THREAD
    for name, value in (("max_concurrency", max_concurrency), ("threads", threads)):
        if value is not None and (type(value) is not int or value < 1):
            wrong.append(f"{name}={value!r}; expected a whole number from 1 on")
    order = order or "in"
    if order not in ORDERS:
        wrong.append(f"order={order!r}; expected one of {ORDERS}")
    elif order == "key" and keys is None:
        wrong.append('order="key" needs a key: put partition_by before process')
    if callback_timeout is not None and style != CALLBACK:
        wrong.append("callback_timeout= is for process_async; give timeout=")
    if timeout is not None and style == CALLBACK:
        wrong.append("timeout= is for async def process and threads; give callback_timeout=")
    chosen = callback_timeout if style == CALLBACK else timeout
    name = "callback_timeout" if style == CALLBACK else "timeout"
    timeout_ms: int | None = None
    if chosen is not None:
        timeout_ms = attempt(wrong, lambda: duration_ms(chosen, name), None)
    most = max_concurrency or threads
    return Calls(style, most, order, timeout_ms, threads or 0)


def check_local(wrong: list[str], stores: tuple[StoreSpec, ...]) -> None:
    """Refuse remote stores, whose reads would hold up all calls of the process."""
    if any(spec.kind == "remote" for spec in stores):
        wrong.append(
            "an asynchronous process has local and broadcast stores only: ask remote ones with a "
            "client of your own, or use a plain process method and context.get_later"
        )
