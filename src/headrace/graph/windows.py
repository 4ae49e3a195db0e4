"""Windows: which messages of a key an aggregate is over. Frozen data.

``window_makers`` has the functions that make them. How each kind is kept and closed is in ``task``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from headrace.graph.durations import duration_text

BOUNDS = ("window_start", "window_end")
LATE = ("drop", "side_output", "update")
LATE_SIDE = "late"
"""The side of a window that late records are sent to, as they came."""

UPDATES = ("replace", "retract", "add")
MAX_OVERLAP = 100_000
"""How many hopping windows a message may be in; each may have a result."""

MAX_STEPS = 10_000
"""How many early results a window may have by event time."""

RETRACTION = "is_retraction"
"""The column that says of a result that it is taken back."""


@dataclass(frozen=True)
class Window(ABC):
    """What all kinds have; ``mistakes`` are those of the arguments that made it.

    ``grace_ms`` is how long after its end, by the watermark, a window still takes records;
    ``late``, one of ``LATE``, what becomes of those that it takes no more, or with ``update`` takes
    after it was sent. Early results come every ``early_ms`` of event time, with each
    ``early_rows`` messages, or once there was none for ``early_idle_ms``. ``updates``, one of
    ``UPDATES``, says how results of a window follow each other.
    """

    grace_ms: int = field(default=0, kw_only=True)
    late: str = field(default="drop", kw_only=True)
    updates: str = field(default="replace", kw_only=True)
    early_ms: int | None = field(default=None, kw_only=True)
    early_rows: int | None = field(default=None, kw_only=True)
    early_idle_ms: int | None = field(default=None, kw_only=True)
    mistakes: tuple[str, ...] = field(default=(), kw_only=True, compare=False, repr=False)

    @property
    def heads(self) -> tuple[str, ...]:
        """The columns of a result beside the key and the aggregates."""
        return BOUNDS

    @property
    def flags(self) -> tuple[str, ...]:
        """Columns of a result, after the aggregates, that say something of the result itself."""
        return (RETRACTION,) if self.updates == "retract" else ()

    @property
    def is_timed(self) -> bool:
        """Whether event time says which messages are in it."""
        return True

    @property
    def is_updated(self) -> bool:
        """Whether late records change results that were sent."""
        return self.late == "update"

    @property
    def is_triggered(self) -> bool:
        """Whether what was sent is kept apart from what came since."""
        return False

    @property
    def width_ms(self) -> int:
        """The length of the buckets in which it is kept; 0: it has none."""
        return 0

    @abstractmethod
    def own(self) -> dict[str, str]:
        """Return what says which messages are in it."""

    @abstractmethod
    def own_text(self) -> str:
        """Return a few words for that."""

    def describe(self) -> dict[str, str]:
        """Return what must not change under old state, by name."""
        late = {"late": self.late} if self.is_updated else {}
        adds = {"updates": "add"} if self.updates == "add" and self.is_triggered else {}
        return self.own() | late | adds | {name: value for name, value, _ in self._early()}

    def text(self) -> str:
        """Return a few words for ``explain``, without the grace."""
        return ", early ".join([self.own_text(), *(text for _, _, text in self._early())])

    def _early(self) -> list[tuple[str, str, str]]:
        """When early results are sent: its name, its value, words for it."""
        found = []
        if self.early_ms is not None:
            every = duration_text(self.early_ms)
            found.append(("early", every, f"every {every}"))
        if self.early_rows is not None:
            rows = f"{self.early_rows}"
            found.append(("early_rows", rows, f"every {rows} messages"))
        if self.early_idle_ms is not None:
            idle = duration_text(self.early_idle_ms)
            found.append(("early_idle", idle, f"after {idle} without any"))
        return found


@dataclass(frozen=True)
class Tumbling(Window):
    """Windows of one size that follow each other without a gap."""

    size_ms: int

    @property
    def is_triggered(self) -> bool:
        """With early results that are not made of panes."""
        by_panes = self.early_ms is not None and not self.is_updated
        return bool(self._early()) and not by_panes

    @property
    def width_ms(self) -> int:
        """The size, or that of the panes of early results."""
        has_panes = self.early_ms is not None and not self.is_updated
        return self.early_ms if has_panes and self.early_ms is not None else self.size_ms

    def own(self) -> dict[str, str]:
        """Return the size."""
        return {"size": duration_text(self.size_ms)}

    def own_text(self) -> str:
        """Return ``window of 1h``."""
        return f"window of {duration_text(self.size_ms)}"


@dataclass(frozen=True)
class Hopping(Window):
    """Windows of one size, a new one every so often."""

    size_ms: int
    every_ms: int

    @property
    def is_triggered(self) -> bool:
        """With early results."""
        return bool(self._early())

    @property
    def width_ms(self) -> int:
        """The panes that windows are made of; the size where they are kept one by one."""
        return self.size_ms if self.is_triggered else math.gcd(self.size_ms, self.every_ms)

    def own(self) -> dict[str, str]:
        """Return size and step."""
        return {
            "windows": "hopping",
            "size": duration_text(self.size_ms),
            "every": duration_text(self.every_ms),
        }

    def own_text(self) -> str:
        """Return ``window of 1h every 5m``."""
        return f"window of {duration_text(self.size_ms)} every {duration_text(self.every_ms)}"


@dataclass(frozen=True)
class Sliding(Window):
    """For each moment that has a message, what lies within a size before it."""

    size_ms: int

    @property
    def width_ms(self) -> int:
        """One moment."""
        return 1

    def own(self) -> dict[str, str]:
        """Return the size."""
        return {"windows": "sliding", "size": duration_text(self.size_ms)}

    def own_text(self) -> str:
        """Return ``sliding window of 1h``."""
        return f"sliding window of {duration_text(self.size_ms)}"


@dataclass(frozen=True)
class Session(Window):
    """Messages of a key that are less than a gap apart."""

    gap_ms: int

    @property
    def is_triggered(self) -> bool:
        """With early results, or such that late records change."""
        return bool(self._early()) or self.is_updated

    @property
    def width_ms(self) -> int:
        """The gap."""
        return self.gap_ms

    def own(self) -> dict[str, str]:
        """Return the gap."""
        return {"windows": "session", "gap": duration_text(self.gap_ms)}

    def own_text(self) -> str:
        """Return ``session window, gap 30m``."""
        return f"session window, gap {duration_text(self.gap_ms)}"


@dataclass(frozen=True)
class CountWindow(Window):
    """Every so many messages of a key."""

    rows: int

    @property
    def heads(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def is_timed(self) -> bool:
        """Return False."""
        return False

    def own(self) -> dict[str, str]:
        """Return how many."""
        return {"windows": "count", "rows": str(self.rows)}

    def own_text(self) -> str:
        """Return ``window of 100 messages``."""
        return f"window of {self.rows} messages"


@dataclass(frozen=True)
class GlobalWindow(Window):
    """All messages of a key; ``rows``, ``every_ms`` or ``idle_ms`` says when results are sent."""

    rows: int | None = None
    every_ms: int | None = None
    idle_ms: int | None = None

    @property
    def heads(self) -> tuple[str, ...]:
        """As of when, where event time says so."""
        return ("at",) if self.is_timed else ()

    @property
    def is_timed(self) -> bool:
        """Whether event time says when results are sent."""
        return self.rows is None and bool(self.every_ms or self.idle_ms)

    @property
    def width_ms(self) -> int:
        """The buckets in which new messages wait."""
        return self.every_ms or self.idle_ms or 0

    def own(self) -> dict[str, str]:
        """Return the kind, and when results are sent."""
        sent = {"sent": when} if (when := self._when()) else {}
        changed = {} if self.updates == "replace" else {"updates": self.updates}
        return {"windows": "global"} | sent | changed

    def own_text(self) -> str:
        """Return ``window over all messages``, and when results are sent."""
        when = self._when()
        return f"window over all messages{f', sent {when}' if when else ''}"

    def _when(self) -> str:
        if self.rows is not None:
            return f"every {self.rows} messages"
        if self.every_ms is not None:
            return f"every {duration_text(self.every_ms)}"
        return "" if self.idle_ms is None else f"after {duration_text(self.idle_ms)} without any"
