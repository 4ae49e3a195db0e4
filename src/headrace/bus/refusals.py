"""What a bus says of names that it does not have, or that are taken: one wording for all."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from headrace.errors import InvalidInputError


def unknown_stream(name: str, names: Sequence[str]) -> InvalidInputError:
    """Return the error for a stream that is not there, with those that may be meant."""
    near = difflib.get_close_matches(name, names, 3)
    found = f"found {list(names)[:10]};" if names else "there are none yet;"
    there = f"did you mean {' or '.join(map(repr, near))}?" if near else found
    how = f'headrace bus create {name} --schema "column:type,..."'
    return InvalidInputError(f"no stream {name!r}; {there} to create it: {how}", stream=name)


def alias_taken(name: str, stream: str) -> InvalidInputError:
    """Return the error for a new stream with the name of an alias."""
    return InvalidInputError(
        f"{name!r} is an alias of stream {stream!r} and cannot name a new stream; use another "
        "name, or remove the alias",
        stream=name,
    )


def stream_taken(name: str) -> InvalidInputError:
    """Return the error for an alias with the name of a stream."""
    return InvalidInputError(
        f"{name!r} is a stream and cannot be an alias too; use another name", stream=name
    )
