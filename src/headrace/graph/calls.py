"""How the calls of a processor are made, where one need not end before the next begins."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

COROUTINE, CALLBACK, THREAD = "coroutine", "callback", "thread"
IN, OUT, KEY = "in", "out", "key"
ORDERS = (IN, OUT, KEY)


@dataclass(frozen=True)
class Calls:
    """How calls of a processor are made.

    Args:
        style: ``coroutine``: ``async def process``; ``callback``: ``process_async``;
            ``thread``: ``process`` in a thread.
        most: calls that may be open in a task; ``None``: as the settings say.
        order: ``in``, ``out`` or ``key``.
        timeout_ms: how long one may be open; ``None``: as the settings say.
        threads: of the pool, for ``thread``.
    """

    style: str = COROUTINE
    most: int | None = None
    order: str = "in"
    timeout_ms: int | None = None
    threads: int = 0


def call_style(factory: Any) -> str | None:
    """Return how a class wants to be called; ``None``: one message after the other."""
    kind = getattr(factory, "func", factory)
    if inspect.iscoroutinefunction(getattr(kind, "process", None)):
        return COROUTINE
    return CALLBACK if callable(getattr(kind, "process_async", None)) else None
