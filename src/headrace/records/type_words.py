"""Stored types in the words that people type: ``int64``, ``timestamp``, ``list<string>``."""

from __future__ import annotations

import pyarrow as pa

TYPES = {
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


def words_of_type(kind: pa.DataType) -> str:
    """Return a stored type in the words that ``--schema`` takes."""
    if pa.types.is_list(kind):
        return f"list<{words_of_type(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name, known in TYPES.items() if known == kind), str(kind))


def words_of_schema(schema: pa.Schema) -> str:
    """Return a schema in the words that ``--schema`` takes."""
    return ",".join(f"{field.name}:{words_of_type(field.type)}" for field in schema)
