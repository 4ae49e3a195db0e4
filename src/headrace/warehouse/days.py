"""Days as numbers from 1970, as names of partitions, and as ranges that users give."""

from __future__ import annotations

from datetime import date, timedelta

from headrace.errors import InvalidInputError

_FIRST = date(1970, 1, 1)
DAY_MS = 86_400_000


def day_name(day: int) -> str:
    """Return a day as in names of partitions: ``2013-01-31``."""
    return (_FIRST + timedelta(days=day)).isoformat()


def day_number(name: str) -> int:
    """Return which day after 1970-01-01 a name is."""
    return (date.fromisoformat(name) - _FIRST).days


def read_days(text: str) -> tuple[str, str]:
    """Read a day, or a range of days with both ends: ``2013-01-01..2013-01-31``.

    Raises:
        InvalidInputError: it is neither.
    """
    first, dots, last = text.partition("..")
    try:
        begin = date.fromisoformat(first.strip())
        end = date.fromisoformat(last.strip()) if dots else begin
    except ValueError as error:
        raise InvalidInputError(
            f"found days {text!r}, expected a day such as 2013-01-31, or the first and the last of "
            "several, such as 2013-01-01..2013-01-31"
        ) from error
    if end < begin:
        raise InvalidInputError(f"found days {text!r}, of which the last is before the first")
    return begin.isoformat(), end.isoformat()
