"""``headrace explore``: one query of the streams that are kept, with a chart in the terminal."""

from headrace.errors import InvalidInputError


def explore() -> None:
    """Answer one SELECT."""
    raise InvalidInputError("not there yet")
