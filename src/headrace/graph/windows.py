"""Windows: which messages of a key an aggregate is over. Frozen data, made by short functions.

Durations are read when a window is made; what is wrong with them is told by the operator that
gets it. How each kind is kept and closed is in ``task``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from headrace.errors import InvalidInputError
from headrace.graph.durations import Duration, duration_ms, duration_text

BOUNDS = ("window_start", "window_end")
LATE = ("drop", "side_output", "update")
LATE_SIDE = "late"
"""The side of a window that late records are sent to, as they came."""

UPDATES = ("replace", "retract", "add")
MAX_OVERLAP = 100_000
"""How many hopping windows a message may be in; each may have a result."""

RETRACTION = "is_retraction"
"""The column that says of a result that it is taken back."""


@dataclass(frozen=True)
class Window(ABC):
    """What all kinds have; ``mistakes`` are those of the arguments that made it.

    ``grace_ms`` is how long after its end, by the watermark, a window still takes records;
    ``late``, one of ``LATE``, what becomes of those that it takes no more, or with ``update`` takes
    after it was sent.
    """

    grace_ms: int = field(default=0, kw_only=True)
    late: str = field(default="drop", kw_only=True)
    mistakes: tuple[str, ...] = field(default=(), kw_only=True, compare=False, repr=False)

    @property
    def heads(self) -> tuple[str, ...]:
        """The columns of a result beside the key and the aggregates."""
        return BOUNDS

    @property
    def flags(self) -> tuple[str, ...]:
        """Columns of a result, after the aggregates, that say something of the result itself."""
        return ()

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
    """Windows of one size that follow each other without a gap.

    With ``late="update"``, or early results every ``early_ms``, ``updates`` is one of ``UPDATES``.
    """

    size_ms: int
    early_ms: int | None = field(default=None, kw_only=True)
    updates: str = field(default="replace", kw_only=True)

    @property
    def flags(self) -> tuple[str, ...]:
        """Whether a result is one that is taken back, where some are."""
        return (RETRACTION,) if self.updates == "retract" else ()

    @property
    def width_ms(self) -> int:
        """The size, or that of the panes of early results."""
        return self.size_ms if self.early_ms is None else self.early_ms

    def describe(self) -> dict[str, str]:
        """Return the size, whether windows are kept that are out, and early results."""
        late = {"late": self.late} if self.late == "update" else {}
        early = {} if self.early_ms is None else {"early": duration_text(self.early_ms)}
        return {"size": duration_text(self.size_ms), **late, **early}

    def text(self) -> str:
        """Return ``window of 1h``."""
        early = f", early every {duration_text(self.early_ms)}" if self.early_ms else ""
        return f"window of {duration_text(self.size_ms)}{early}"


def tumbling(
    size: Duration,
    grace: Duration = "0s",
    late: str = "drop",
    updates: str = "replace",
    early: Duration | None = None,
) -> Tumbling:
    """Cut event time into windows of one size, beginning at 1970-01-01 UTC.

    Args:
        size: such as ``"1h"``, or a timedelta.
        grace: how long after its end, by the watermark, a window still takes records.
        late: ``drop``: what comes after that is counted. ``side_output``: it is also sent to the
            side ``late`` of the result. ``update``: a result is sent when the watermark passes
            the window's end, and again when records change it that come before its grace is over.
        updates: with ``late="update"`` or ``early``, what is sent. ``replace``: the new result.
            ``retract``: first the old one, with ``is_retraction``, a column that results have then.
            ``add``, with ``early``: only what came since the last result.
        early: send results of the window so far each time the watermark passes so much of it, for
            keys that have changed since the last.
    """
    read = _Reader()
    size_ms, grace_ms = read(size, "window size"), read.grace(grace)
    read.late(late, LATE)
    early_ms = None if early is None else read.early(early, size_ms, late)
    if late == "update" and not grace_ms:
        read.wrong.append(
            'late="update" keeps windows for their grace, but there is none: give one, such as '
            'hr.tumbling("1h", grace="10m", late="update")'
        )
    if updates not in UPDATES:
        read.wrong.append(f"updates is {updates!r}; expected one of {UPDATES}")
    elif updates != "replace" and late != "update" and early is None:
        read.wrong.append(
            f'updates={updates!r} is for late="update" or early=; found late={late!r}'
        )
    elif updates == "add" and early is None:
        read.wrong.append('updates="add" is for early=; give one, or updates="retract"')
    return Tumbling(
        size_ms,
        early_ms=early_ms,
        grace_ms=grace_ms,
        late=late,
        updates=updates,
        mistakes=read.mistakes(),
    )


@dataclass(frozen=True)
class Hopping(Window):
    """Windows of one size, a new one every so often."""

    size_ms: int
    every_ms: int

    @property
    def width_ms(self) -> int:
        """The panes that windows are made of."""
        return math.gcd(self.size_ms, self.every_ms)

    def describe(self) -> dict[str, str]:
        """Return size and step."""
        return {
            "windows": "hopping",
            "size": duration_text(self.size_ms),
            "every": duration_text(self.every_ms),
        }

    def text(self) -> str:
        """Return ``window of 1h every 5m``."""
        return f"window of {duration_text(self.size_ms)} every {duration_text(self.every_ms)}"


def hopping(size: Duration, every: Duration, grace: Duration = "0s", late: str = "drop") -> Hopping:
    """Begin a window every so often, so that windows overlap and a record is in several.

    Args:
        size: of each window, such as ``"1h"``.
        every: from the beginning of one to that of the next, such as ``"5m"``; not more than
            the size. The first begins at 1970-01-01 UTC.
        grace: how long after its end, by the watermark, a window still takes records.
        late: what becomes of records that no window takes: ``drop`` or ``side_output``.
    """
    read = _Reader()
    size_ms, every_ms = read(size, "window size"), read(every, "every")
    if every_ms > size_ms:
        read.wrong.append(
            f"every is {every!r}, more than the size of {size!r}; records would be lost"
        )
    if size_ms // every_ms > MAX_OVERLAP:
        read.wrong.append(
            f"a message would be in {size_ms // every_ms:,} windows; expected at most "
            f"{MAX_OVERLAP:,}: make every longer than {every!r}"
        )
    grace_ms = read.grace(grace)
    read.late(late)
    return Hopping(size_ms, every_ms, grace_ms=grace_ms, late=late, mistakes=read.mistakes())


@dataclass(frozen=True)
class Sliding(Window):
    """For each moment that has a message, what lies within a size before it."""

    size_ms: int

    @property
    def width_ms(self) -> int:
        """One moment."""
        return 1

    def describe(self) -> dict[str, str]:
        """Return the size."""
        return {"windows": "sliding", "size": duration_text(self.size_ms)}

    def text(self) -> str:
        """Return ``sliding window of 1h``."""
        return f"sliding window of {duration_text(self.size_ms)}"


def sliding(size: Duration, grace: Duration = "0s", late: str = "drop") -> Sliding:
    """End a window with each message: one result for each moment at which a key has any.

    It has the messages of the key from ``size`` before, that moment left out, to its own moment.

    Args:
        size: such as ``"1h"``.
        grace: how long after its moment, by the watermark, a result still takes records.
        late: what becomes of records that no result takes: ``drop`` or ``side_output``.
    """
    read = _Reader()
    size_ms, grace_ms = read(size, "window size"), read.grace(grace)
    read.late(late)
    return Sliding(size_ms, grace_ms=grace_ms, late=late, mistakes=read.mistakes())


@dataclass(frozen=True)
class Session(Window):
    """Messages of a key that are less than a gap apart."""

    gap_ms: int

    @property
    def width_ms(self) -> int:
        """The gap."""
        return self.gap_ms

    def describe(self) -> dict[str, str]:
        """Return the gap."""
        return {"windows": "session", "gap": duration_text(self.gap_ms)}

    def text(self) -> str:
        """Return ``session window, gap 30m``."""
        return f"session window, gap {duration_text(self.gap_ms)}"


def session(gap: Duration, grace: Duration = "0s", late: str = "drop") -> Session:
    """Put messages of a key together that are less than ``gap`` apart in event time.

    A session lasts from its first message to ``gap`` after its last. A record further behind the
    watermark of its own partition than ``grace`` is late.

    Args:
        gap: such as ``"30m"``: without a message for so long, a session is over.
        grace: how far behind the watermark a record may come.
        late: what becomes of records further behind: ``drop`` or ``side_output``.
    """
    read = _Reader()
    gap_ms, grace_ms = read(gap, "gap"), read.grace(grace)
    read.late(late)
    return Session(gap_ms, grace_ms=grace_ms, late=late, mistakes=read.mistakes())


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

    def describe(self) -> dict[str, str]:
        """Return how many."""
        return {"windows": "count", "rows": str(self.rows)}

    def text(self) -> str:
        """Return ``window of 100 messages``."""
        return f"window of {self.rows} messages"


def count_window(rows: int) -> CountWindow:
    """Put every so many messages of a key together, in the order in which they arrive.

    A window is sent with the message that fills it; what is left is sent when the inputs end.

    Args:
        rows: how many messages fill a window.
    """
    is_number = isinstance(rows, int) and not isinstance(rows, bool)
    if is_number and rows > 0:
        return CountWindow(rows)
    return CountWindow(1, mistakes=(f"rows is {rows!r}; expected a number above zero",))


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

    def describe(self) -> dict[str, str]:
        """Return the kind, and when results are sent."""
        return {"windows": "global"} | ({"sent": when} if (when := self._when()) else {})

    def text(self) -> str:
        """Return ``window over all messages``, and when results are sent."""
        when = self._when()
        return f"window over all messages{f', sent {when}' if when else ''}"

    def _when(self) -> str:
        if self.rows is not None:
            return f"every {self.rows} messages"
        if self.every_ms is not None:
            return f"every {duration_text(self.every_ms)}"
        return "" if self.idle_ms is None else f"after {duration_text(self.idle_ms)} without any"


def global_window(
    rows: int | None = None, every: Duration | None = None, idle: Duration | None = None
) -> GlobalWindow:
    """Put all messages of a key together; sent when the inputs end, and before that if wanted.

    Each result is of all messages so far. No record is ever late.

    Args:
        rows: send a result with each so many messages of a key, in the order of arrival.
        every: send results of changed keys each time event time passes a multiple of it, with
            column ``at``.
        idle: send the result of a key once it has had no message for so long, by event time, with
            column ``at``.
    """
    read = _Reader()
    given = [name for name, value in (("rows", rows), ("every", every), ("idle", idle)) if value]
    if len(given) > 1:
        read.wrong.append(f"global_window takes one of rows, every and idle; found {given}")
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
        read.wrong.append(f"rows is {rows!r}; expected a number above zero")
        rows = 1
    every_ms = None if every is None else read(every, "every")
    idle_ms = None if idle is None else read(idle, "idle")
    return GlobalWindow(rows, every_ms, idle_ms, mistakes=read.mistakes())


class _Reader:
    """Reads durations and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def __call__(self, value: object, what: str, least: int = 1) -> int:
        try:
            return duration_ms(value, what, least=least)
        except InvalidInputError as error:
            self.wrong.append(error.message)
            return least

    def early(self, value: object, size_ms: int, late: object) -> int:
        """Check the step of early results."""
        step_ms = self(value, "early")
        if step_ms >= size_ms:
            self.wrong.append(f"early is {value!r}; expected less than the size of the window")
        if late == "update":
            self.wrong.append('early= and late="update" cannot both be; leave one out')
        return step_ms

    def grace(self, value: object) -> int:
        return self(value, "grace", least=0)

    def late(self, value: object, ways: tuple[str, ...] = LATE[:2]) -> None:
        """Check what becomes of late records."""
        if value in ways:
            return
        only = "; only tumbling windows are updated" if value == "update" else ""
        self.wrong.append(f"late is {value!r}; expected one of {ways}{only}")

    def mistakes(self) -> tuple[str, ...]:
        return tuple(self.wrong)
