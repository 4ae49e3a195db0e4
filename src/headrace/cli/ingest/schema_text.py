"""Schemas as people type them: ``id:int64,at:timestamp,tags:list<string>``."""

from __future__ import annotations

import difflib
import re

import pyarrow as pa

from headrace.errors import InvalidInputError

_TYPES = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "duration": pa.duration("us"),
}
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


def schema_from_words(text: str) -> pa.Schema:
    """Read ``name:type`` pairs that commas separate.

    Raises:
        InvalidInputError: a pair or a type that cannot be read, a name given twice.
    """
    fields: list[tuple[str, pa.DataType]] = []
    for part in _split(text):
        name, colon, kind = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and kind):
            raise InvalidInputError(
                f"--schema: found {part.strip()!r}, expected name:type, such as id:int64"
            )
        if name in {known for known, _ in fields}:
            raise InvalidInputError(f"--schema: column {name!r} is given twice; name it once")
        fields.append((name, _type(name, kind)))
    return pa.schema(fields)


def words_of_type(kind: pa.DataType) -> str:
    """Return a stored type in the words that ``schema_from_words`` reads."""
    if pa.types.is_list(kind):
        return f"list<{words_of_type(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name, known in _TYPES.items() if known == kind), str(kind))


def words_of_schema(schema: pa.Schema) -> str:
    """Return a schema in the words that ``schema_from_words`` reads."""
    return ",".join(f"{field.name}:{words_of_type(field.type)}" for field in schema)


def _type(column: str, text: str) -> pa.DataType:
    text = text.lower().replace(" ", "")
    if listed := _LIST.fullmatch(text):
        return pa.list_(_type(column, listed[1]))
    if decimal := _DECIMAL.fullmatch(text):
        return _decimal(column, int(decimal[1]), int(decimal[2]))
    name = _OTHER_NAMES.get(text, text)
    if name in _TYPES:
        return _TYPES[name]
    near = difflib.get_close_matches(text, [*_TYPES, *_OTHER_NAMES], 1)
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join([*_TYPES, "decimal(P,S)", "list<TYPE>"])
    raise InvalidInputError(
        f"--schema: column {column!r} has unknown type {text!r}; {hint}known are {known}"
    )


def _decimal(column: str, precision: int, scale: int) -> pa.DataType:
    if not (1 <= precision <= 38 and scale <= precision):
        raise InvalidInputError(
            f"--schema: column {column!r} is decimal({precision},{scale}); expected 1 to 38 "
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
