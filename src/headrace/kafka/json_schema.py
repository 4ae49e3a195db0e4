"""Values in JSON with a schema in a registry: its number is before the JSON.

A default in JSON Schema is a remark, and nothing that a reader puts in: a field that is missing is
null. Values are checked by the columns that they are read as.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.kafka.formats import JsonDecoder
from headrace.kafka.registered import Wrong
from headrace.kafka.registry import HEAD_BYTES, Registered, is_headed, not_headed

_PLAIN = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}


class JsonSchemaDecoder(JsonDecoder):
    """Reads JSON behind the number of its schema."""

    def rows(
        self, values: Sequence[bytes], wanted: tuple[str, ...]
    ) -> tuple[pa.RecordBatch, Wrong]:
        """Return values as these columns, and those that are not such: which, and why."""
        places = [at for at, value in enumerate(values) if is_headed(value)]
        wrong = [(at, not_headed(value)) for at, value in enumerate(values) if not is_headed(value)]
        batch, bad = super().rows([values[at][HEAD_BYTES:] for at in places], wanted)
        return batch, wrong + [(places[at], error) for at, error in bad]


def columns(schema: Registered) -> pa.Schema:
    """Return the columns of values of a schema.

    Raises:
        InvalidInputError: it is not one of an object, or no column can have a field's type.
    """
    try:
        found = json.loads(schema.text)
    except ValueError as error:
        raise InvalidInputError(f"schema {schema.number} is no JSON: {error}") from error
    kind = _type(found, "value", found)
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise InvalidInputError(f"schema {schema.number} is not one of an object with properties")
    return pa.schema(list(kind))


def _type(part: Any, name: str, whole: Mapping[str, Any]) -> pa.DataType:
    if not isinstance(part, Mapping):
        part = {}
    part = _followed(part, whole)
    for union in ("oneOf", "anyOf"):
        some = [one for one in part.get(union, ()) if one != {"type": "null"}]
        if len(some) == 1:
            return _type(some[0], name, whole)
    kind = part.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "array":
        return pa.list_(_type(part.get("items"), name, whole))
    if kind == "object" and part.get("properties"):
        properties = part["properties"].items()
        return pa.struct([(one, _type(its, f"{name}.{one}", whole)) for one, its in properties])
    raise InvalidInputError(
        f"{name} has no type in the JSON schema that a column can have; name the columns that are "
        "wanted in schema="
    )


def _followed(part: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(10):  # references to references, and not in a circle
        place = part.get("$ref")
        if not isinstance(place, str) or not place.startswith("#/"):
            break
        found: Any = whole
        for step in place.removeprefix("#/").split("/"):
            found = found.get(step, {}) if isinstance(found, Mapping) else {}
        part = found
    return part


def mistakes(schema: pa.Schema) -> list[str]:
    """Return what rows of a schema cannot be written as: nothing, as all can be in JSON."""
    del schema
    return []


def text_of(schema: pa.Schema, name: str, newest: Registered | None) -> str:
    """Return the schema of rows: each field can be null.

    Args:
        schema: of the rows.
        name: the title where none is registered.
        newest: the newest one that is.
    """
    title = json.loads(newest.text).get("title", name) if newest is not None else name
    return json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": title,
            "type": "object",
            "properties": {field.name: _written(field.type) for field in schema},
        }
    )


def _written(kind: pa.DataType) -> dict[str, Any]:
    types = pa.types
    if types.is_list(kind):
        return {"type": ["array", "null"], "items": _written(kind.value_type)}
    if types.is_struct(kind):
        return {
            "type": ["object", "null"],
            "properties": {one.name: _written(one.type) for one in kind},
        }
    if types.is_boolean(kind):
        return {"type": ["boolean", "null"]}
    if types.is_integer(kind):
        return {"type": ["integer", "null"]}
    if types.is_floating(kind) or types.is_duration(kind):
        return {"type": ["number", "null"]}
    return {"type": ["string", "null"]}
