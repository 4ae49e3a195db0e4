"""Where reading begins, as users write it: ``earliest``, ``latest`` or a time."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.errors import InvalidInputError

EARLIEST, LATEST = "earliest", "latest"
Start = str | int


def read_start(value: object, what: str = "start") -> Start:
    """Return ``earliest``, ``latest``, or milliseconds since 1970, UTC.

    Args:
        value: one of the words, a datetime, or its text such as ``2013-01-31T05:15``; without
            a zone it is UTC.
        what: what it is for, for the error.

    Raises:
        InvalidInputError: none of these.
    """
    if value in (EARLIEST, LATEST):
        return str(value)
    at = value
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            at = None
    if not isinstance(at, datetime):
        raise InvalidInputError(
            f"{what} is {value!r}; expected earliest, latest, or a time such as 2013-01-31T05:15"
        )
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)
