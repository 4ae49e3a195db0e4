"""Holds values to the type that their store declares, before they are committed.

A value of another type would be stored, and could not be read any more. What has the declared
class is taken as right; all else is read back once.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.errors import InvalidInputError

_SHOWN = 100


def right_types(declared: Any) -> frozenset[type] | None:
    """Return the types that values of a declared type have; ``None``: any may be."""
    if declared in (Any, object):
        return None
    if declared is None:
        return frozenset((type(None),))
    if declared is float:
        return frozenset((float, int))
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        return right_types(arguments[0])
    if origin in (typing.Union, types.UnionType):
        options = [right_types(one) for one in arguments]
        return None if None in options else frozenset().union(*(one for one in options if one))
    if typing.is_typeddict(declared):
        return frozenset((dict,))
    kind = origin or declared
    return frozenset((kind,)) if isinstance(kind, type) else frozenset()


def check_declared(
    store: str,
    declared: Any,
    right: frozenset[type],
    values: Iterable[tuple[Any, bytes | None]],
    decode: Callable[[bytes], Any],
) -> None:
    """Read values of types that are not known to be right back.

    Args:
        store: its name.
        declared: the type of its values.
        right: from ``right_types``.
        values: with their encodings; ``None``: deleted.
        decode: to the declared type.

    Raises:
        InvalidInputError: a value that would not read as the declared type.
    """
    for value, raw in values:
        if raw is None or type(value) in right:
            continue
        try:
            decode(raw)
        except msgspec.DecodeError as error:
            wanted = declared.__name__ if isinstance(declared, type) else str(declared)
            shown = f"{value!r}"[:_SHOWN]
            raise InvalidInputError(
                f"store {store!r} was given {shown}, a {type(value).__name__}; its values are "
                f"declared as {wanted}: put such a value, or declare another type ({error})"
            ) from error
