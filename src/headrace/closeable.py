"""What lasts as long as a ``with`` block: something that is closed, or a thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


class Closeable(ABC):
    """Something with a ``close``, which leaving a block calls."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; closing twice is fine."""

    def __enter__(self) -> Self:
        """Return this, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


@contextmanager
def running_beside(
    name: str, work: Callable[[threading.Event], None], wait_s: float | None = None
) -> Iterator[None]:
    """Run a function in a thread of its own while a block runs.

    Args:
        name: of the thread.
        work: is to return once the event that it is given is set: the block has ended.
        wait_s: how long to wait for that; ``None``: as long as it takes.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(wait_s)
