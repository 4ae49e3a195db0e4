"""The functions that make windows. Durations are read here; mistakes wait for the operator.

What is wrong with the arguments is told by the operator that gets the window, with all else that is
wrong with the graph.
"""

from __future__ import annotations

from headrace.errors import InvalidInputError
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.windows import (
    LATE,
    MAX_OVERLAP,
    MAX_STEPS,
    UPDATES,
    CountWindow,
    GlobalWindow,
    Hopping,
    Session,
    Sliding,
    Tumbling,
)


def tumbling(
    size: Duration,
    grace: Duration = "0s",
    late: str = "drop",
    updates: str = "replace",
    early: Duration | None = None,
    early_rows: int | None = None,
    early_idle: Duration | None = None,
) -> Tumbling:
    """Cut event time into windows of one size, beginning at 1970-01-01 UTC.

    Args:
        size: such as ``"1h"``, or a timedelta.
        grace: how long after its end, by the watermark, a window still takes records.
        late: ``drop``: what comes after that is counted. ``side_output``: it is also sent to the
            side ``late`` of the result. ``update``: a result is sent when the watermark passes
            the window's end, and again when records change it that come before its grace is over.
        updates: with ``late="update"`` or early results, what is sent. ``replace``: the new result.
            ``retract``: first the old one, with ``is_retraction``, a column that results have then.
            ``add``, with early results: only what came since the last result.
        early: send results of the window so far each time the watermark passes so much of it, for
            keys that have changed since the last.
        early_rows: send them with the epoch in which so many messages have come since the last.
        early_idle: send them once the key had no message in the window for so long, by event time.
    """
    read = _Reader()
    size_ms, grace_ms = read(size, "window size"), read.grace(grace)
    triggers = read.triggers(early, early_rows, early_idle, size_ms, "the size of the window")
    read.late(late, grace_ms, LATE)
    read.updates(updates, late, triggers)
    return Tumbling(
        size_ms,
        grace_ms=grace_ms,
        late=late,
        updates=updates,
        **triggers,
        mistakes=read.mistakes(),
    )


def hopping(
    size: Duration,
    every: Duration,
    grace: Duration = "0s",
    late: str = "drop",
    updates: str = "replace",
    early: Duration | None = None,
    early_rows: int | None = None,
    early_idle: Duration | None = None,
) -> Hopping:
    """Begin a window every so often, so that windows overlap and a record is in several.

    Args:
        size: of each window, such as ``"1h"``.
        every: from the beginning of one to that of the next, such as ``"5m"``; not more than
            the size. The first begins at 1970-01-01 UTC.
        grace: how long after its end, by the watermark, a window still takes records.
        late: as for ``tumbling``.
        updates: as for ``tumbling``.
        early: send results of windows so far each time event time passes a multiple of it, for
            keys that have changed since the last.
        early_rows: as for ``tumbling``.
        early_idle: as for ``tumbling``.
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
    triggers = read.triggers(early, early_rows, early_idle, size_ms, "the size of the window")
    read.late(late, grace_ms, LATE)
    read.updates(updates, late, triggers)
    return Hopping(
        size_ms,
        every_ms,
        grace_ms=grace_ms,
        late=late,
        updates=updates,
        **triggers,
        mistakes=read.mistakes(),
    )


def sliding(
    size: Duration, grace: Duration = "0s", late: str = "drop", updates: str = "replace"
) -> Sliding:
    """End a window with each message: one result for each moment at which a key has any.

    It has the messages of the key from ``size`` before, that moment left out, to its own moment. So
    there are no early results: nothing of it comes before its end.

    Args:
        size: such as ``"1h"``.
        grace: how long after its moment, by the watermark, a result still takes records.
        late: as for ``tumbling``; with ``update`` a late record changes the results of all moments
            up to ``size`` after its own.
        updates: with ``late="update"``, ``replace`` or ``retract``.
    """
    read = _Reader()
    size_ms, grace_ms = read(size, "window size"), read.grace(grace)
    read.late(late, grace_ms, LATE)
    read.updates(updates, late, {})
    mistakes = read.mistakes()
    return Sliding(size_ms, grace_ms=grace_ms, late=late, updates=updates, mistakes=mistakes)


def session(
    gap: Duration,
    grace: Duration = "0s",
    late: str = "drop",
    updates: str = "replace",
    early: Duration | None = None,
    early_rows: int | None = None,
    early_idle: Duration | None = None,
) -> Session:
    """Put messages of a key together that are less than ``gap`` apart in event time.

    A session lasts from its first message to ``gap`` after its last. A record further behind the
    watermark of its own partition than ``grace`` is late. A result takes the place of all those of
    its key that lie within its bounds: so two sessions that a record joins become one.

    Args:
        gap: such as ``"30m"``: without a message for so long, a session is over.
        grace: how far behind the watermark a record may come.
        late: as for ``tumbling``; a late record may join sessions that were sent.
        updates: as for ``tumbling``; ``retract`` takes back all that a result takes the place of.
        early: send sessions so far each time event time passes a multiple of it, those that have
            changed since the last.
        early_rows: send them with the epoch in which so many messages have come since the last.
        early_idle: send them once the key had no message for so long, by event time; less than
            the gap.
    """
    read = _Reader()
    gap_ms, grace_ms = read(gap, "gap"), read.grace(grace)
    triggers = read.triggers(early, early_rows, early_idle, gap_ms, "the gap", is_session=True)
    for field, name, value in (
        ("early_ms", "early", early),
        ("early_idle_ms", "early_idle", early_idle),
    ):
        if field in triggers and gap_ms + grace_ms > MAX_STEPS * triggers[field]:
            read.wrong.append(
                f"{name} is {value!r}; expected at least gap and grace by {MAX_STEPS:,}"
            )
    read.late(late, grace_ms, LATE)
    read.updates(updates, late, triggers)
    return Session(
        gap_ms,
        grace_ms=grace_ms,
        late=late,
        updates=updates,
        **triggers,
        mistakes=read.mistakes(),
    )


def count_window(rows: int, updates: str = "replace", early_rows: int | None = None) -> CountWindow:
    """Put every so many messages of a key together, in the order in which they arrive.

    A window is sent with the message that fills it; what is left is sent when the inputs end.

    Args:
        rows: how many messages fill a window.
        updates: with ``early_rows``, what is sent; as for ``tumbling``.
        early_rows: send the window so far with each so many messages of it.
    """
    read = _Reader()
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
    """Put all messages of a key together; sent when the inputs end, and before that if wanted.

    Each result is of all messages so far, unless ``updates`` says otherwise. No record is ever
    late.

    Args:
        rows: send a result with each so many messages of a key, in the order of arrival.
        every: send results of changed keys each time event time passes a multiple of it, with
            column ``at``.
        idle: send the result of a key once it has had no message for so long, by event time, with
            column ``at``.
        updates: with one of these, what is sent. ``replace``: the new result. ``retract``: first
            the one before, with ``is_retraction``, a column that results have then. ``add``: only
            what came since the last result.
    """
    read = _Reader()
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


class _Reader:
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
        if early is not None:
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

    def grace(self, value: object) -> int:
        return self(value, "grace", least=0)

    def late(self, value: object, grace_ms: int, ways: tuple[str, ...]) -> None:
        """Check what becomes of late records."""
        if value not in ways:
            self.wrong.append(f"late is {value!r}; expected one of {ways}")
        elif value == "update" and not grace_ms:
            self.wrong.append(
                'late="update" keeps windows for their grace, but there is none: give one, such as '
                'hr.tumbling("1h", grace="10m", late="update")'
            )

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
