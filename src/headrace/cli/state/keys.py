"""Keys as people type them: words made values by the key's columns."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.records.type_words import words_of_type


def typed_key(words: Sequence[str], schema: pa.Schema) -> tuple[Any, ...]:
    """Return a key of the columns of a schema.

    Args:
        words: one for each column; ``null`` is null where the column is no string.
        schema: of the key.

    Raises:
        InvalidInputError: another number of words, or one that does not fit its column.
    """
    if len(words) != len(schema):
        expected = ", ".join(f"{f.name} ({words_of_type(f.type)})" for f in schema)
        raise InvalidInputError(
            f"found a key of {len(words)}, expected {len(schema)}: {expected}; write one word for "
            "each"
        )
    return tuple(_value(word, field) for word, field in zip(words, schema, strict=True))


def free_key(words: Sequence[str]) -> tuple[Any, ...]:
    """Return a key that user code chose: each word as JSON, or text where it is no JSON."""
    return tuple(map(_free, words))


def _free(word: str) -> Any:
    try:
        value = msgspec.json.decode(word)
    except msgspec.DecodeError:
        return word
    return word if isinstance(value, dict | list) else value


def _value(word: str, field: pa.Field) -> Any:
    kind, types = field.type, pa.types
    if word == "null" and not types.is_string(kind):
        return None
    try:
        if types.is_string(kind):
            return word
        if types.is_boolean(kind):
            return {"true": True, "false": False}[word.lower()]
        if types.is_integer(kind):
            return int(word)
        if types.is_floating(kind):
            return float(word)
        if types.is_timestamp(kind):
            return moment(word)
        if types.is_date(kind):
            return datetime.date.fromisoformat(word)
        if types.is_binary(kind):
            return base64.b64decode(word, validate=True)
    except (ValueError, KeyError) as error:
        raise InvalidInputError(
            f"key column {field.name!r}: found {word!r}, expected {words_of_type(kind)}"
        ) from error
    raise InvalidInputError(f"key column {field.name!r} of type {kind} cannot be typed; use scan")


def moment(word: str) -> datetime.datetime:
    """Return a moment from ISO 8601, UTC where no zone is given, or milliseconds since 1970."""
    if word.lstrip("-").isdigit():
        return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
            milliseconds=int(word)
        )
    found = datetime.datetime.fromisoformat(word)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
