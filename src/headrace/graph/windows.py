"""Windows: which messages of a key an aggregate is over, and when its results are sent.

The classes are frozen data. The functions that users call (``tumbling``, ``hopping``, ``sliding``,
``session``, ``count_window``, ``global_window``, ``on_count_or_time``) read durations; mistakes are
kept in the window until an operator takes it, so that all of a graph are reported at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from headrace.durations import Duration, duration_ms, duration_text
from headrace.errors import InvalidInputError
from headrace.graph.introspection import renamed_arguments

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
class CountOrTime:
    """When early results are sent: with ``rows`` messages, or ``within_ms`` after the last result.

    ``within`` is what the user wrote; ``mistakes`` are those of the arguments.
    """

    rows: int
    within_ms: int
    within: object = field(default=None, compare=False, repr=False)
    mistakes: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Window(ABC):
    """What all kinds have; ``mistakes`` are those of the arguments that made it.

    ``grace_ms`` is how long after its end, by the watermark, a window still takes records;
    ``late``, one of ``LATE``, what happens to those that it takes no more, or with ``update`` takes
    after it was sent. Early results come every ``early_ms`` of event time, with each
    ``early_rows`` messages, or once there was none for ``early_idle_ms``. ``updates``, one of
    ``UPDATES``, says how results of a window follow each other. With ``early_rows``,
    ``early_within_ms`` sends those that have changed at the latest so long after the last one.
    """

    grace_ms: int = field(default=0, kw_only=True)
    late: str = field(default="drop", kw_only=True)
    updates: str = field(default="replace", kw_only=True)
    early_ms: int | None = field(default=None, kw_only=True)
    early_rows: int | None = field(default=None, kw_only=True)
    early_idle_ms: int | None = field(default=None, kw_only=True)
    early_within_ms: int | None = field(default=None, kw_only=True)
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

    @property
    def span_ms(self) -> int:
        """How far its end can be beyond a record in it."""
        return self.width_ms

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
        if self.early_within_ms is not None:
            within = duration_text(self.early_within_ms)
            found.append(("early_within", within, f"within {within} of the last result"))
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
    def span_ms(self) -> int:
        """The size."""
        return self.size_ms

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
    def span_ms(self) -> int:
        """The size."""
        return self.size_ms

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
    def span_ms(self) -> int:
        """The gap."""
        return self.gap_ms

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


@renamed_arguments(grace="allowed_lateness")
def tumbling(
    size: Duration,
    allowed_lateness: Duration = "0s",
    late: str = "drop",
    updates: str = "replace",
    early: Duration | CountOrTime | None = None,
    early_rows: int | None = None,
    early_idle: Duration | None = None,
) -> Tumbling:
    """Divide event time into windows of one size, from 1970-01-01 UTC on.

    Args:
        size: such as ``"1h"``, or a timedelta.
        allowed_lateness: how long after its end, by the watermark, a window still accepts records.
        late: ``drop``: later records are counted. ``side_output``: they also go to the side output
            ``late`` of the result. ``update``: a result is emitted when the watermark passes the
            window's end, and again when records change it within its allowed lateness.
        updates: with ``late="update"`` or early results, what is emitted. ``replace``: the new
            result. ``retract``: first the old one, with the column ``is_retraction``. ``add``,
            with early results: only what arrived since the last result.
        early: emit results of the window so far each time the watermark passes this much of it,
            for keys that have changed since the last result; or as ``hr.on_count_or_time`` says.
        early_rows: emit them with the epoch in which this many messages have arrived since the
            last result.
        early_idle: emit them after the key had no message in the window for this long, by event
            time.
    """
    read = _WindowArguments()
    size_ms, grace_ms = read(size, "window size"), read.allowed_lateness(allowed_lateness)
    triggers = read.triggers(early, early_rows, early_idle, size_ms, "the size of the window")
    return Tumbling(size_ms, **read.fields(grace_ms, late, updates, triggers))


@renamed_arguments(grace="allowed_lateness")
def hopping(
    size: Duration,
    every: Duration,
    allowed_lateness: Duration = "0s",
    late: str = "drop",
    updates: str = "replace",
    early: Duration | CountOrTime | None = None,
    early_rows: int | None = None,
    early_idle: Duration | None = None,
) -> Hopping:
    """Begin a window at a fixed interval, so that windows overlap and a record is in several.

    Args:
        size: of each window, such as ``"1h"``.
        every: from the start of one window to that of the next, such as ``"5m"``; at most the
            size. The first starts at 1970-01-01 UTC.
        allowed_lateness: how long after its end, by the watermark, a window still accepts records.
        late: as for ``tumbling``.
        updates: as for ``tumbling``.
        early: emit results of windows so far each time event time passes a multiple of it, for
            keys that have changed since the last result; or as ``hr.on_count_or_time`` says.
        early_rows: as for ``tumbling``.
        early_idle: as for ``tumbling``.
    """
    read = _WindowArguments()
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
    grace_ms = read.allowed_lateness(allowed_lateness)
    triggers = read.triggers(early, early_rows, early_idle, size_ms, "the size of the window")
    return Hopping(size_ms, every_ms, **read.fields(grace_ms, late, updates, triggers))


@renamed_arguments(grace="allowed_lateness")
def sliding(
    size: Duration, allowed_lateness: Duration = "0s", late: str = "drop", updates: str = "replace"
) -> Sliding:
    """End a window with each message: one result for each moment with messages of a key.

    A result covers the messages of the key in the last ``size``, up to its own moment, without the
    moment ``size`` before. There are no early results, because a window ends with the message that
    creates it.

    Args:
        size: such as ``"1h"``.
        allowed_lateness: how long after its moment, by the watermark, a result still accepts
            records.
        late: as for ``tumbling``; with ``update``, a late record changes the results of all
            moments up to ``size`` after its own.
        updates: with ``late="update"``, ``replace`` or ``retract``.
    """
    read = _WindowArguments()
    size_ms, grace_ms = read(size, "window size"), read.allowed_lateness(allowed_lateness)
    return Sliding(size_ms, **read.fields(grace_ms, late, updates, {}))


@renamed_arguments(grace="allowed_lateness")
def session(
    gap: Duration,
    allowed_lateness: Duration = "0s",
    late: str = "drop",
    updates: str = "replace",
    early: Duration | CountOrTime | None = None,
    early_rows: int | None = None,
    early_idle: Duration | None = None,
) -> Session:
    """Group messages of a key that are less than ``gap`` apart in event time.

    A session lasts from its first message to ``gap`` after its last. A record that is behind the
    watermark of its own partition by more than ``allowed_lateness`` is late. A result replaces all
    results of its key within its bounds: two sessions that a record joins become one.

    Args:
        gap: such as ``"30m"``: without a message for this long, a session is over.
        allowed_lateness: how far behind the watermark a record can be.
        late: as for ``tumbling``; a late record can join sessions that were emitted.
        updates: as for ``tumbling``; ``retract`` retracts all results that a new one replaces.
        early: emit changed sessions so far each time event time passes a multiple of it; or as
            ``hr.on_count_or_time`` says.
        early_rows: emit them with the epoch in which this many messages have arrived since the
            last result.
        early_idle: emit them after the key had no message for this long, by event time; less than
            the gap.
    """
    read = _WindowArguments()
    gap_ms, grace_ms = read(gap, "gap"), read.allowed_lateness(allowed_lateness)
    triggers = read.triggers(early, early_rows, early_idle, gap_ms, "the gap", is_session=True)
    for option, name, value in (
        ("early_ms", "early", early),
        ("early_idle_ms", "early_idle", early_idle),
    ):
        if option in triggers and gap_ms + grace_ms > MAX_STEPS * triggers[option]:
            read.wrong.append(
                f"{name} is {value!r}; expected at least gap and allowed lateness by {MAX_STEPS:,}"
            )
    return Session(gap_ms, **read.fields(grace_ms, late, updates, triggers))


def count_window(rows: int, updates: str = "replace", early_rows: int | None = None) -> CountWindow:
    """Group a fixed number of messages of a key, in the order of arrival.

    A window is emitted with the message that fills it; the rest is emitted when the inputs end.

    Args:
        rows: how many messages fill a window.
        updates: with ``early_rows``, what is emitted; as for ``tumbling``.
        early_rows: emit the result so far each time this many messages have arrived.
    """
    read = _WindowArguments()
    rows = read.rows(rows, "rows")
    triggers: dict[str, int] = {}
    if early_rows is not None:
        triggers["early_rows"] = read.rows(early_rows, "early_rows")
        if not read.wrong and early_rows >= rows:
            read.wrong.append(f"early_rows is {early_rows}; expected less than rows, {rows}")
    read.updates(updates, "drop", triggers)
    step = triggers.get("early_rows")
    return CountWindow(rows, updates=updates, early_rows=step, mistakes=read.mistakes())


def global_window(
    rows: int | None = None,
    every: Duration | None = None,
    idle: Duration | None = None,
    updates: str = "replace",
) -> GlobalWindow:
    """Group all messages of a key; emitted when the inputs end, and earlier on request.

    Each result covers all messages so far, unless ``updates`` says otherwise. No record is ever
    late.

    Args:
        rows: emit a result after each of this many messages of a key, in the order of arrival.
        every: emit results of changed keys each time event time passes a multiple of it, with
            column ``at``.
        idle: emit the result of a key after it had no message for this long, by event time, with
            column ``at``.
        updates: with one of these, what is emitted. ``replace``: the new result. ``retract``:
            first the previous one, with the column ``is_retraction``. ``add``: only what arrived
            since the last result.
    """
    read = _WindowArguments()
    given = [name for name, value in (("rows", rows), ("every", every), ("idle", idle)) if value]
    if len(given) > 1:
        read.wrong.append(f"global_window takes one of rows, every and idle; found {given}")
    if rows is not None:
        rows = read.rows(rows, "rows")
    every_ms = None if every is None else read(every, "every")
    idle_ms = None if idle is None else read(idle, "idle")
    if updates not in UPDATES:
        read.wrong.append(f"updates is {updates!r}; expected one of {UPDATES}")
    elif updates != "replace" and not given:
        read.wrong.append(f"updates={updates!r} is for rows, every or idle; give one of them")
    return GlobalWindow(rows, every_ms, idle_ms, updates=updates, mistakes=read.mistakes())


def on_count_or_time(rows: int, within: Duration) -> CountOrTime:
    """Emit early results for a number of messages or after a time, whichever is first.

    For the argument ``early`` of ``tumbling``, ``hopping`` and ``session``. Only windows with new
    messages emit a result.

    Args:
        rows: emit a result with the epoch in which this many messages have arrived since the last
            result of the window.
        within: emit it at the latest this long after the last result, by event time; the first
            result this long after the first message. Less than the size of the window, or the gap.
    """
    read = _WindowArguments()
    rows, within_ms = read.rows(rows, "rows of on_count_or_time"), read(within, "within")
    return CountOrTime(rows, within_ms, within, read.mistakes())


class _WindowArguments:
    """Reads arguments and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def __call__(self, value: object, what: str, least: int = 1) -> int:
        try:
            return duration_ms(value, what, least=least)
        except InvalidInputError as error:
            self.wrong.append(error.message)
            return least

    def rows(self, value: object, what: str) -> int:
        """Check a number of messages."""
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self.wrong.append(f"{what} is {value!r}; expected a number above zero")
        return 1

    def triggers(
        self,
        early: object,
        rows: object,
        idle: object,
        below_ms: int,
        below: str,
        *,
        is_session: bool = False,
    ) -> dict[str, int]:
        """Check when early results are sent; return it as fields of a window."""
        given = {"early": early, "early_rows": rows, "early_idle": idle}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            self.wrong.append(f"a window takes one of {', '.join(given)}; found {names}")
        found: dict[str, int] = {}
        if isinstance(early, CountOrTime):
            self.wrong += early.mistakes
            if early.within_ms >= below_ms:
                self.wrong.append(f"within is {early.within!r}; expected less than {below}")
            found |= {"early_rows": early.rows, "early_within_ms": early.within_ms}
        elif early is not None:
            found["early_ms"] = self(early, "early")
            if not is_session and found["early_ms"] >= below_ms:
                self.wrong.append(f"early is {early!r}; expected less than {below}")
            elif not is_session and below_ms > MAX_STEPS * found["early_ms"]:
                self.wrong.append(
                    f"early is {early!r}; expected at least the size by {MAX_STEPS:,}"
                )
        if rows is not None:
            found["early_rows"] = self.rows(rows, "early_rows")
        if idle is not None:
            found["early_idle_ms"] = self(idle, "early_idle")
            if found["early_idle_ms"] >= below_ms:
                self.wrong.append(f"early_idle is {idle!r}; expected less than {below}")
            elif below_ms > MAX_STEPS * found["early_idle_ms"]:
                self.wrong.append(
                    f"early_idle is {idle!r}; expected at least {below} by {MAX_STEPS:,}"
                )
        return found

    def allowed_lateness(self, value: object) -> int:
        return self(value, "allowed_lateness", least=0)

    def fields(
        self, grace_ms: int, late: str, updates: str, triggers: dict[str, int]
    ) -> dict[str, Any]:
        """Check what happens to late records and what is emitted; return all fields of a window."""
        if late not in LATE:
            self.wrong.append(f"late is {late!r}; expected one of {LATE}")
        elif late == "update" and not grace_ms:
            self.wrong.append(
                'late="update" keeps windows for their allowed lateness, but there is none: give '
                'it, such as hr.tumbling("1h", allowed_lateness="10m", late="update")'
            )
        self.updates(updates, late, triggers)
        own: dict[str, Any] = {"grace_ms": grace_ms, "late": late, "updates": updates}
        return own | triggers | {"mistakes": self.mistakes()}

    def updates(self, value: object, late: object, triggers: dict[str, int]) -> None:
        """Check how results of a window follow each other."""
        if value not in UPDATES:
            self.wrong.append(f"updates is {value!r}; expected one of {UPDATES}")
        elif value != "replace" and late != "update" and not triggers:
            self.wrong.append(
                f'updates={value!r} is for late="update" or early results; found late={late!r}'
            )
        elif value == "add" and not triggers:
            self.wrong.append(
                'updates="add" is for early results; give early= or another, or updates="retract"'
            )

    def mistakes(self) -> tuple[str, ...]:
        return tuple(self.wrong)
