"""The columns that rows of different streams have in common once they are one stream."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.records.evolution import is_wider

_NUMBERS = (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_DIGITS = 38


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that holds every value of two types; ``None``: there is none."""
    if one.equals(other):
        return one
    if is_wider(one, other):
        return other
    if is_wider(other, one):
        return one
    if pa.types.is_list(one) and pa.types.is_list(other):
        value = common_type(one.value_type, other.value_type)
        return None if value is None else pa.list_(value)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = scale + max(one.precision - one.scale, other.precision - other.scale)
        return pa.decimal128(digits, scale) if digits <= _DIGITS else None
    wide = [kind for kind in _NUMBERS if is_wider(one, kind) and is_wider(other, kind)]
    return wide[0] if wide else None


def united(schemas: Mapping[str, pa.Schema]) -> tuple[pa.Schema, list[str]]:
    """Return the columns of several streams as one, and what keeps them apart.

    Columns are told by name and come in the order in which they first appear.

    Args:
        schemas: by what the stream is called, for the sentences.
    """
    kinds: dict[str, pa.DataType] = {}
    first: dict[str, str] = {}
    wrong = []
    for stream, schema in schemas.items():
        for column in schema:
            known = kinds.setdefault(column.name, column.type)
            common = common_type(known, column.type)
            if common is None:
                wrong.append(
                    f"column {column.name!r} is {known} in {first[column.name]!r}, but "
                    f"{column.type} in {stream!r}, and no type holds both without loss: cast or "
                    "rename one with map first"
                )
            else:
                kinds[column.name] = common
            first.setdefault(column.name, stream)
    return pa.schema(list(kinds.items())), wrong


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of a schema: wider types where it has them, missing ones null.

    Args:
        batch: its columns have types that ``schema`` holds; others are left out.
        schema: of the result.
    """
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(at)
            arrays.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
