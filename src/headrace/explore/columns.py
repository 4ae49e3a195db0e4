"""The columns that a stream can be asked for, and how each is written in DuckDB's SQL.

Besides the columns of a stream there are those inside its JSON and its structs, by dotted names:
``payload.user.id``. They are opened when they are asked for; which there are is seen in rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.queries.text import near
from headrace.records.schema import type_text

Kind = Literal["number", "string", "bool", "time", "json", "bytes"]
LOOKED_AT = 200
"""Rows in which the columns inside JSON are looked for."""

MOST_INSIDE = 100
DEEPEST = 4


class Column(msgspec.Struct, frozen=True):
    """A column as users see it."""

    name: str
    type: str
    kind: Kind


class Source(msgspec.Struct, frozen=True):
    """How a column is read: the column that is stored, the SQL of its value, and what it is."""

    stored: str
    sql: str
    kind: Kind
    arrow: pa.DataType | None = None


def quoted(name: str) -> str:
    """Return a name as DuckDB's SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """Return a text as DuckDB's SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def kind_of(kind: pa.DataType) -> Kind:
    """Return what users can do with a type."""
    types = pa.types
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    if types.is_binary(kind):
        return "bytes"
    return "json" if types.is_nested(kind) else "string"


def find_column(name: str, schema: pa.Schema, time: str | None) -> Source:
    """Return how a column is read.

    Args:
        name: of the stream, or dotted for what is inside JSON or a struct.
        schema: the columns of the stream.
        time: the column with the time of a row, which may be an integer.

    Raises:
        InvalidInputError: there is none; names the nearest one.
    """
    if name in schema.names:
        kind = schema.field(name).type
        shown = "time" if name == time else kind_of(kind)
        return Source(name, quoted(name), shown, kind)
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        outer = ".".join(parts[:count])
        if outer in schema.names:
            return _inside(outer, parts[count:], schema.field(outer).type)
    raise InvalidInputError(f"no column {name!r}; {near(name, schema.names)}")


def _inside(outer: str, path: Sequence[str], kind: pa.DataType) -> Source:
    sql = quoted(outer)
    for at, part in enumerate(path):
        if pa.types.is_string(kind):
            place = "$" + "".join(f".{_json_key(one)}" for one in path[at:])
            return Source(outer, f"json_extract_string({sql}, {text_literal(place)})", "json")
        index = kind.get_field_index(part) if pa.types.is_struct(kind) else -1
        if index < 0:
            raise InvalidInputError(
                f"column {outer!r} has nothing called {'.'.join(path)!r} inside: it is "
                f"{type_text(kind)}"
            )
        sql, kind = f"struct_extract({sql}, {text_literal(part)})", kind.field(index).type
    return Source(outer, sql, kind_of(kind), kind)


def _json_key(part: str) -> str:
    """Return a key as DuckDB's paths have it; a quote in a key cannot be written there."""
    if '"' in part or "\0" in part:
        raise InvalidInputError(f"a key of JSON with a quote, {part!r}, cannot be asked for")
    return f'"{part}"'


def listed(schema: pa.Schema, time: str | None, rows: Iterable[dict[str, Any]]) -> list[Column]:
    """Return all columns of a stream, those inside others behind these.

    Args:
        schema: of the stream.
        time: the column with the time of a row.
        rows: newest ones, in which JSON is looked at.
    """
    seen = list(rows)
    found = []
    for field in schema:
        kind: Kind = "time" if field.name == time else kind_of(field.type)
        inner: list[Column] = []
        if pa.types.is_struct(field.type):
            inner = list(_of_struct(field.name, field.type, 1))
        elif pa.types.is_string(field.type):
            inner = list(_of_json(field.name, [row.get(field.name) for row in seen]))
            kind = "json" if inner else kind
        found += [Column(field.name, type_text(field.type), kind), *inner[:MOST_INSIDE]]
    return found


def _of_struct(prefix: str, kind: pa.DataType, depth: int) -> Iterator[Column]:
    for field in kind:
        name = f"{prefix}.{field.name}"
        yield Column(name, type_text(field.type), kind_of(field.type))
        if pa.types.is_struct(field.type) and depth < DEEPEST:
            yield from _of_struct(name, field.type, depth + 1)


def _of_json(name: str, values: Sequence[str | None]) -> Iterator[Column]:
    """Yield what is inside a column if all that was seen of it are objects of JSON."""
    held = [value for value in values if value is not None]
    if not held or not all(value.lstrip()[:1] == "{" for value in held):
        return
    kinds: dict[str, set[Kind]] = {}
    for value in held:
        try:
            opened = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return
        _open(name, opened, 1, kinds)
    for inner, seen in sorted(kinds.items()):
        kind: Kind = next(iter(seen)) if len(seen) == 1 else "string"
        yield Column(inner, "json", kind)


def _open(prefix: str, value: dict[str, Any], depth: int, kinds: dict[str, set[Kind]]) -> None:
    for key, inner in value.items():
        if '"' in key or len(kinds) >= MOST_INSIDE:
            continue
        name = f"{prefix}.{key}"
        if inner is None:
            continue
        if isinstance(inner, dict):
            kinds.setdefault(name, set()).add("json")
            if depth < DEEPEST:
                _open(name, inner, depth + 1, kinds)
        elif isinstance(inner, bool):
            kinds.setdefault(name, set()).add("bool")
        elif isinstance(inner, int | float):
            kinds.setdefault(name, set()).add("number")
        else:
            kinds.setdefault(name, set()).add("json" if isinstance(inner, list) else "string")
