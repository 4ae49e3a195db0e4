"""Durations as users write them: ``"500ms"``, ``"10s"``, ``"1h30m"``, ``"2d"``, a timedelta."""

from __future__ import annotations

import datetime
import re

from headrace.errors import InvalidInputError

MIN_EVENT_TIME_MS = -62_135_596_800_000  # the year 1
MAX_EVENT_TIME_MS = 253_402_300_800_000  # the year 10000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d|w)")
_WHOLE = re.compile(r"(?:\d+(?:ms|s|m|h|d|w))+")

Duration = str | datetime.timedelta


def moment_ms(at: datetime.datetime) -> int:
    """Return a moment in whole milliseconds since 1970, rounded down; UTC where it has no zone."""
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
    return (zoned - _EPOCH) // datetime.timedelta(milliseconds=1)


def duration_ms(value: object, what: str, *, least: int = 1) -> int:
    """Return a duration in milliseconds.

    Args:
        value: text such as ``"10s"``, or a timedelta of whole milliseconds.
        what: what it is for, for the error.
        least: the least that is allowed, ms.

    Raises:
        InvalidInputError: not a duration, not whole milliseconds, or too small.
    """
    if isinstance(value, datetime.timedelta):
        whole, rest = divmod(value, datetime.timedelta(milliseconds=1))
        if rest:
            raise InvalidInputError(f"{what} is {value}; expected whole milliseconds")
    elif isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        whole = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise InvalidInputError(
            f"{what} is {value!r}; expected a duration such as '10s', '1h' or a timedelta"
        )
    if whole < least:
        wanted = "more than zero" if least == 1 else f"at least {duration_text(least)}"
        raise InvalidInputError(f"{what} is {value!r}; expected {wanted}")
    return whole


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
