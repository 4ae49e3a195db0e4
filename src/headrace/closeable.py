"""The base class of what is closed at the end of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
