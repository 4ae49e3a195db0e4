"""Columns to be added to a stream, as people type them: ``note:string``, ``count:int64=0``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.cli.ingest.schema_text import schema_from_words
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from headrace.bus.bus import Stream


def evolve(
    stream: Stream, change: Callable[[pa.Schema], tuple[pa.Schema, Mapping[str, Any]]]
) -> None:
    """Change the columns of a stream, anew where somebody changes them meanwhile.

    Args:
        stream: to be changed.
        change: from its schema to the one that is wanted, and defaults.

    Raises:
        InvalidInputError: a change that cannot be.
    """
    while True:
        known = stream.spec.schema
        try:
            stream.evolve(*change(known))
        except InvalidInputError:
            _ = stream.settings
            if stream.spec.schema.equals(known):
                raise
        else:
            return


def evolved(
    schema: pa.Schema, added: Sequence[str], widened: Sequence[str]
) -> tuple[pa.Schema, dict[str, Any]]:
    """Return a schema with more columns, or wider ones, and the defaults that were given.

    Args:
        schema: of the stream as it is.
        added: ``name:type`` or ``name:type=default``, each.
        widened: ``name:type`` of columns that are there.

    Raises:
        InvalidInputError: words that cannot be read, a column that is there, or is not.
    """
    defaults: dict[str, Any] = {}
    for words in added:
        declared, equals, default = words.partition("=")
        for field in schema_from_words(declared, "--add-column"):
            if field.name in schema.names:
                raise InvalidInputError(
                    f"--add-column: column {field.name!r} is there already, as "
                    f"{schema.field(field.name).type}; add another name, or make it wider with "
                    "--widen-column"
                )
            schema = schema.append(field)
            if equals:
                defaults[field.name] = _value(default, field.type)
    for words in widened:
        for field in schema_from_words(words, "--widen-column"):
            if field.name not in schema.names:
                raise InvalidInputError(
                    f"--widen-column: no column {field.name!r}; found {schema.names}; a new one "
                    "is added with --add-column"
                )
            schema = schema.set(schema.names.index(field.name), field)
    return schema, defaults


def _value(text: str, kind: pa.DataType) -> Any:
    """A default in the words of JSON, or text."""
    if pa.types.is_string(kind):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    types = pa.types
    is_plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return value if is_plain or value is None or isinstance(value, str) else text
