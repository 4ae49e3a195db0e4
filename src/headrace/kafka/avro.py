"""Values in Avro: read by the schema of their number and the newest of the topic, and written.

Resolution is Avro's: fields by name and alias, defaults of the newest schema for those that a
writer did not have, wider numbers. Unions are of null and one type; a map is a list of structs.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace import extras
from headrace.errors import InvalidInputError
from headrace.kafka.registered import Reader, RegisteredDecoder, Wrong, rows_of, unwritable
from headrace.kafka.registry import Registered, headed

ENTRY = ("key", "value")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UTC = pa.timestamp("us", tz="UTC")
_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": _UTC,
    "timestamp-micros": _UTC,
    "local-timestamp-millis": _UTC,
    "local-timestamp-micros": _UTC,
}
_WRITTEN = {
    pa.bool_(): "boolean",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()), "int"),
    **dict.fromkeys((pa.int64(), pa.uint32()), "long"),
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    _UTC: {"type": "long", "logicalType": "timestamp-micros"},
}


def _avro() -> Any:
    return extras.load("fastavro", "a topic with Avro")


def parsed(schema: Registered) -> Any:
    """Return a schema of Avro as its library has it, whose logical types all fit columns.

    Raises:
        InvalidInputError: it is not one of a record.
    """
    library = _avro()
    try:
        named: dict[str, Any] = {}
        for text in schema.imports.values():
            library.parse_schema(json.loads(text), named)
        found = library.parse_schema(_kept(json.loads(schema.text)), named)
    except (ValueError, KeyError, TypeError, library.schema.SchemaParseException) as error:
        raise InvalidInputError(f"schema {schema.number} is not one of Avro: {error}") from error
    if not isinstance(found, dict) or found.get("type") != "record":
        raise InvalidInputError(f"schema {schema.number} is not that of a record: {schema.text}")
    return found


def _kept(schema: Any) -> Any:
    """Leave out logical types that no column has: their plain values are read."""
    if isinstance(schema, list):
        return [_kept(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _kept(one) if name in ("type", "items", "values", "fields") else one
        for name, one in schema.items()
    }
    if kept.get("logicalType") not in (*_LOGICAL, "decimal"):
        kept.pop("logicalType", None)
    return kept


def columns(schema: Registered) -> pa.Schema:
    """Return the columns of values of a schema.

    Raises:
        InvalidInputError: a field has a type that no column can have.
    """
    found = parsed(schema)
    known: dict[str, Any] = {}
    return pa.schema(
        [(one["name"], _type(one["type"], one["name"], known)) for one in found["fields"]]
    )


def _type(kind: Any, name: str, known: dict[str, Any]) -> pa.DataType:
    if isinstance(kind, list):
        some = [one for one in kind if one != "null"]
        if len(some) != 1:
            raise InvalidInputError(
                f"field {name!r} is a union of {len(some)} types, and a column has one; name the "
                "columns that are wanted in schema="
            )
        return _type(some[0], name, known)
    if isinstance(kind, str):
        if kind in known:
            return _named(known[kind], name, known)
        if kind not in _PLAIN:
            raise InvalidInputError(f"field {name!r} is of type {kind!r}, which no column can have")
        return _PLAIN[kind]
    if kind.get("name"):
        known[kind["name"]] = kind
    return _named(kind, name, known)


def _named(kind: Mapping[str, Any], name: str, known: dict[str, Any]) -> pa.DataType:
    what, logical = kind["type"], kind.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if what == "array":
        return pa.list_(_type(kind["items"], name, known))
    if what == "map":
        value = _type(kind["values"], name, known)
        return pa.list_(pa.struct([(ENTRY[0], pa.string()), (ENTRY[1], value)]))
    if what == "record":
        known.pop(kind["name"], None)  # a record within itself has no end
        found = pa.struct(
            [
                (one["name"], _type(one["type"], f"{name}.{one['name']}", known))
                for one in kind["fields"]
            ]
        )
        known[kind["name"]] = kind
        return found
    return _type(what, name, known)


class AvroDecoder(RegisteredDecoder):
    """Reads Avro."""

    libraries = ("fastavro",)

    def reader(self, schema: Registered, newest: Registered | None, kinds: pa.Schema) -> Reader:
        """Return what reads values of a schema."""
        writer = parsed(schema)
        target = None if newest is None else parsed(newest)
        if target is not None and not _has_all(target, writer, kinds.names):
            target = None  # a column that the newest one no longer has
        read = _avro().schemaless_reader
        plain = {field.name: _plainer(field.type) for field in kinds}
        return lambda values: _read(read, values, writer, target, kinds, plain)


def _read(
    read: Any,
    values: Sequence[bytes],
    writer: Any,
    target: Any,
    kinds: pa.Schema,
    plain: Mapping[str, Callable[[Any], Any] | None],
) -> tuple[pa.RecordBatch, Wrong]:
    records: list[Any] = []
    wrong: Wrong = []
    for at, value in enumerate(values):
        try:
            records.append(read(io.BytesIO(value), writer, target))
        except Exception as error:  # noqa: BLE001 - bytes that are not of the schema raise anything
            said = str(error) or type(error).__name__
            wrong.append(
                (at, InvalidInputError(f"it does not have the form of its schema: {said}"))
            )
            records.append(None)

    def get(record: Any, name: str) -> Any:
        found, change = record.get(name), plain[name]
        return found if change is None or found is None else change(found)

    return rows_of(records, kinds, get, wrong)


def _has_all(target: Any, writer: Any, names: Sequence[str]) -> bool:
    has = {one["name"] for one in target["fields"]}
    has |= {alias for one in target["fields"] for alias in one.get("aliases", ())}
    return all(one["name"] in has for one in writer["fields"] if one["name"] in names)


def _plainer(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes the form of a column's value of Avro's: a map is a list of structs."""
    if pa.types.is_list(kind):
        inner = _plainer(kind.value_type)
        item = kind.value_type
        value = None
        if pa.types.is_struct(item) and item.names == list(ENTRY):
            value = _plainer(item.field(1).type)
        return lambda found: (
            [{ENTRY[0]: one, ENTRY[1]: _changed(its, value)} for one, its in found.items()]
            if isinstance(found, dict)
            else [_changed(one, inner) for one in found]
        )
    if pa.types.is_struct(kind):
        fields = {one.name: _plainer(one.type) for one in kind}
        if any(fields.values()):
            return lambda found: {
                name: _changed(found.get(name), change) for name, change in fields.items()
            }
    return None


def _changed(value: Any, change: Callable[[Any], Any] | None) -> Any:
    return value if change is None or value is None else change(value)


def mistakes(schema: pa.Schema) -> list[str]:
    """Return what rows of a schema cannot be written as."""
    return unwritable(schema, "Avro", _NAME, _written)


def text_of(schema: pa.Schema, name: str, newest: Registered | None) -> str:
    """Return the schema of rows: each field can be null, which is its default.

    Args:
        schema: of the rows.
        name: of the record where none is registered.
        newest: the newest one that is.
    """
    made: dict[str, Any] = {"type": "record", "name": name}
    if newest is not None:
        made["name"] = parsed(newest)["name"]
    made["fields"] = [
        {"name": field.name, "type": ["null", _written(field.type, field.name)], "default": None}
        for field in schema
    ]
    return json.dumps(made)


def _written(kind: pa.DataType, name: str) -> Any:
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    if pa.types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _written(kind.value_type, f"{name}_item")]}
    if pa.types.is_struct(kind):
        fields = [
            {
                "name": one.name,
                "type": ["null", _written(one.type, f"{name}_{one.name}")],
                "default": None,
            }
            for one in kind
        ]
        return {"type": "record", "name": f"{name}_record", "fields": fields}
    raise InvalidInputError(f"column {name!r} is {kind}, which Avro does not have; cast it")


def row_writer(schema: Registered) -> Callable[[dict[str, Any]], bytes]:
    """Return what writes a row by a schema, with the number before it."""
    form, head, library = parsed(schema), headed(schema.number), _avro()

    def write(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        out.write(head)
        try:
            library.schemaless_writer(out, form, row)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise InvalidInputError(
                f"a row does not fit schema {schema.number} of Avro: {error}"
            ) from error
        return out.getvalue()

    return write
