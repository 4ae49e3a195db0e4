"""Windows: which messages of a key an aggregate is over. Frozen data, made by short functions.

Durations are read when a window is made; what is wrong with them is told by the operator that
gets it. How each kind is kept and closed is in ``task``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from headrace.errors import InvalidInputError
from headrace.graph.durations import Duration, duration_ms, duration_text

BOUNDS = ("window_start", "window_end")


@dataclass(frozen=True)
class Window(ABC):
    """What all kinds have; ``mistakes`` are those of the arguments that made it.

    ``grace_ms`` is how long after its end, by the watermark, a window still takes records.
    """

    grace_ms: int = field(default=0, kw_only=True)
    mistakes: tuple[str, ...] = field(default=(), kw_only=True, compare=False, repr=False)

    @property
    def heads(self) -> tuple[str, ...]:
        """The columns of a result beside the key and the aggregates."""
        return BOUNDS

    @property
    def is_timed(self) -> bool:
        """Whether event time says which messages are in it."""
        return True

    @property
    def width_ms(self) -> int:
        """The length of the buckets in which it is kept; 0: it has none."""
        return 0

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Return what must not change under old state, by name."""

    @abstractmethod
    def text(self) -> str:
        """Return a few words for ``explain``, without the grace."""


@dataclass(frozen=True)
class Tumbling(Window):
    """Windows of one size that follow each other without a gap."""

    size_ms: int

    @property
    def width_ms(self) -> int:
        """The size."""
        return self.size_ms

    def describe(self) -> dict[str, str]:
        """Return the size."""
        return {"size": duration_text(self.size_ms)}

    def text(self) -> str:
        """Return ``window of 1h``."""
        return f"window of {duration_text(self.size_ms)}"


def tumbling(size: Duration, grace: Duration = "0s") -> Tumbling:
    """Cut event time into windows of one size, beginning at 1970-01-01 UTC.

    Args:
        size: such as ``"1h"``, or a timedelta.
        grace: how long after its end, by the watermark, a window still takes records.
    """
    read = _Reader()
    return Tumbling(read(size, "window size"), grace_ms=read.grace(grace), mistakes=read.mistakes())


class _Reader:
    """Reads durations and keeps what is wrong with them."""

    def __init__(self) -> None:
        self._wrong: list[str] = []

    def __call__(self, value: object, what: str, least: int = 1) -> int:
        try:
            return duration_ms(value, what, least=least)
        except InvalidInputError as error:
            self._wrong.append(error.message)
            return least

    def grace(self, value: object) -> int:
        return self(value, "grace", least=0)

    def mistakes(self) -> tuple[str, ...]:
        return tuple(self._wrong)
