"""Durations as users write them: ``"10s"``, ``"1h30m"``, ``"10 seconds"``, a timedelta."""

from __future__ import annotations

import datetime
import re

from headrace.errors import InvalidInputError

MIN_EVENT_TIME_MS = -62_135_596_800_000  # the year 1
MAX_EVENT_TIME_MS = 253_402_300_800_000  # the year 10000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WORDS = {
    **dict.fromkeys(("millisecond", "milliseconds", "millis"), "ms"),
    **dict.fromkeys(("second", "seconds", "sec", "secs"), "s"),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), "m"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("week", "weeks"), "w"),
}
_PART = re.compile(r"(\d+)\s*([a-z]+)")
_WHOLE = re.compile(r"(?:\d+\s*[a-z]+\s*)+")

Duration = str | datetime.timedelta


def moment_ms(at: datetime.datetime) -> int:
    """Return a moment in whole milliseconds since 1970, rounded down; UTC where it has no zone."""
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
    return (zoned - _EPOCH) // datetime.timedelta(milliseconds=1)


def duration_ms(value: object, what: str, *, least: int = 1) -> int:
    """Return a duration in milliseconds.

    Args:
        value: text such as ``"10s"``, ``"1h30m"`` or ``"10 seconds"``, or a timedelta of whole
            milliseconds.
        what: what it is for, for the error.
        least: the least that is allowed, ms.

    Raises:
        InvalidInputError: not a duration, not whole milliseconds, or too small.
    """
    parts = _parts(value) if isinstance(value, str) else []
    if isinstance(value, datetime.timedelta):
        whole, rest = divmod(value, datetime.timedelta(milliseconds=1))
        if rest:
            raise InvalidInputError(f"{what} is {value}; expected whole milliseconds")
    elif parts:
        whole = sum(number * _UNITS[unit] for number, unit in parts)
    else:
        raise InvalidInputError(
            f"{what} is {value!r}; expected a duration such as '10s', '1h', '10 seconds' "
            "or a timedelta"
        )
    if whole < least:
        wanted = "more than zero" if least == 1 else f"at least {duration_text(least)}"
        raise InvalidInputError(f"{what} is {value!r}; expected {wanted}")
    return whole


def _parts(text: str) -> list[tuple[int, str]]:
    """Return the numbers and units of a duration; none where the text is not one."""
    if not _WHOLE.fullmatch(text.strip()):
        return []
    found = [(int(number), _WORDS.get(unit, unit)) for number, unit in _PART.findall(text)]
    return found if all(unit in _UNITS for _, unit in found) else []


def duration_text(milliseconds: int) -> str:
    """Return the shortest text of a duration, such as ``1h30m``."""
    if milliseconds == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


__all__ = ["Duration", "duration_ms", "duration_text"]
