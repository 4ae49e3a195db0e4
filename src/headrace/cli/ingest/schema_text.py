"""Schemas as people type them: ``id:int64,at:timestamp,tags:list<string>``."""

from __future__ import annotations

import difflib
import re

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.records.type_words import TYPES

_OTHER_NAMES = {
    "boolean": "bool",
    "int": "int64",
    "long": "int64",
    "bigint": "int64",
    "float": "float64",
    "double": "float64",
    "str": "string",
    "text": "string",
    "bytes": "binary",
    "date32": "date",
    "datetime": "timestamp",
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_LIST = re.compile(r"list<(.+)>")


def schema_from_words(text: str, option: str = "--schema") -> pa.Schema:
    """Read ``name:type`` pairs that commas separate.

    Args:
        text: the words.
        option: where they were given, for errors.

    Raises:
        InvalidInputError: a pair or a type that cannot be read, a name given twice.
    """
    fields: list[tuple[str, pa.DataType]] = []
    for part in _split(text):
        name, colon, kind = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and kind):
            raise InvalidInputError(
                f"{option}: found {part.strip()!r}, expected name:type, such as id:int64"
            )
        if name in {known for known, _ in fields}:
            raise InvalidInputError(f"{option}: column {name!r} is given twice; name it once")
        fields.append((name, _type(name, kind, option)))
    return pa.schema(fields)


def _type(column: str, text: str, option: str) -> pa.DataType:
    text = text.lower().replace(" ", "")
    if listed := _LIST.fullmatch(text):
        return pa.list_(_type(column, listed[1], option))
    if decimal := _DECIMAL.fullmatch(text):
        return _decimal(column, int(decimal[1]), int(decimal[2]), option)
    name = _OTHER_NAMES.get(text, text)
    if name in TYPES:
        return TYPES[name]
    near = difflib.get_close_matches(text, [*TYPES, *_OTHER_NAMES], 1)
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join([*TYPES, "decimal(P,S)", "list<TYPE>"])
    raise InvalidInputError(
        f"{option}: column {column!r} has unknown type {text!r}; {hint}known are {known}"
    )


def _decimal(column: str, precision: int, scale: int, option: str) -> pa.DataType:
    if not (1 <= precision <= 38 and scale <= precision):
        raise InvalidInputError(
            f"{option}: column {column!r} is decimal({precision},{scale}); expected 1 to 38 "
            "digits, of which no more behind the point"
        )
    return pa.decimal128(precision, scale)


def _split(text: str) -> list[str]:
    """Cut at commas that are in no brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "(<") - (char in ")>")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts if parts[-1].strip() or len(parts) == 1 else parts[:-1]
