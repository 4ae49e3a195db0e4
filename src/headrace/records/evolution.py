"""How columns of stored rows may change, and the columns that different streams have in common.

Says which types are wider, what older rows have in a new column, and casts batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace.errors import InvalidInputError

_MANTISSA_BITS = {32: 24, 64: 53}
_TAKES: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, int | float),
    (pa.types.is_decimal, int | str),
    (pa.types.is_string, str),
    (pa.types.is_binary, str),
    (pa.types.is_temporal, str),
)


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Say whether each value of a type is also one of another type, which can hold more."""
    types = pa.types
    if types.is_integer(old) and types.is_integer(new):
        signed = types.is_signed_integer(new)
        if types.is_signed_integer(old) and not signed:
            return False
        return bool(new.bit_width > old.bit_width)
    if types.is_integer(old) and types.is_floating(new):
        return bool(old.bit_width <= _MANTISSA_BITS.get(new.bit_width, 0))
    if types.is_floating(old) and types.is_floating(new):
        return bool(new.bit_width > old.bit_width)
    if types.is_decimal(old) and types.is_decimal(new):
        whole = new.precision - new.scale >= old.precision - old.scale
        return bool(whole and new.scale >= old.scale and new != old)
    return False


def default_scalar(column: str, kind: pa.DataType, default: Any) -> pa.Scalar:
    """Return what rows without a column have in it.

    Args:
        column: its name, for the error.
        kind: its type.
        default: null, a number, a truth value, or text; text also for times and dates.

    Raises:
        InvalidInputError: it is none of these, or does not fit the type.
    """
    if default is None:
        return pa.scalar(None, kind)
    if any(test(kind) and isinstance(default, takes) for test, takes in _TAKES):
        try:
            # A cast refuses what it would have to cut off; to make a scalar of a type does not.
            made = pa.scalar(default).cast(kind)
        except (pa.ArrowException, OverflowError):
            pass
        else:
            if not isinstance(default, float) or math.isfinite(default):
                return made
    raise InvalidInputError(
        f"column {column!r} cannot have the default {default!r:.100}: expected one of {kind}, as a "
        "number, truth value or text, such as 2013-01-31T05:15:00Z; or none, which is null"
    )


def with_defaults(
    batch: pa.RecordBatch | pa.Table, schema: pa.Schema, defaults: Mapping[str, Any]
) -> pa.RecordBatch | pa.Table:
    """Return a batch with those columns of a schema that it lacks and that have a default.

    Args:
        batch: columns in any order.
        schema: has the types of the columns.
        defaults: by column; others stay missing. Those of columns that came to the stream after
            the schema are passed over.
    """
    for name, default in defaults.items():
        if name in schema.names and name not in batch.schema.names:
            field = schema.field(name)
            batch = batch.append_column(
                field, default_column(name, field.type, default, batch.num_rows)
            )
    return batch


def default_values(schema: pa.Schema, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults as Python values of the columns' types."""
    return {
        name: default_scalar(name, schema.field(name).type, default).as_py()
        for name, default in defaults.items()
    }


def default_column(column: str, kind: pa.DataType, default: Any, rows: int) -> pa.Array:
    """Return a column of a default; shape (rows,)."""
    if default is None:
        return pa.nulls(rows, kind)
    return pa.repeat(default_scalar(column, kind, default), rows)


def cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in a wider type, or in one of before it was made wider.

    Raises:
        pa.ArrowInvalid: the type cannot hold a value; to cast floats alone would round it.
    """
    if column.type.equals(kind):
        return column
    made = column.cast(kind)
    if pa.types.is_floating(column.type) and pa.types.is_floating(kind):
        import pyarrow.compute as pc  # noqa: PLC0415 - takes 40 ms, and most commands need none of it

        is_same = pc.or_kleene(pc.equal(made.cast(column.type), column), pc.is_nan(column))
        if pc.all(is_same).as_py() is False:
            raise pa.ArrowInvalid(f"found values of {column.type} that {kind} would round")
    return made


def cast_to_plan(batch: pa.RecordBatch, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """Return columns in the types that a job was planned with, should they be wider by now.

    Args:
        batch: some columns of the stream.
        schema: the stream's when the job was planned.
        stream: its name, for the error.

    Raises:
        InvalidInputError: a value that the narrower type cannot hold.
    """
    for index, field in enumerate(batch.schema):
        at = schema.get_field_index(field.name)
        planned = field if at < 0 else schema.field(at)
        if planned.type.equals(field.type):
            continue
        try:
            column = cast_column(batch.column(index), planned.type)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"column {field.name!r} of stream {stream!r} was made wider since this job was "
                f"started, to {field.type}, and has values that {planned.type} cannot hold; start "
                "the job again: it then takes the wider type",
                stream=stream,
            ) from error
        batch = batch.set_column(index, planned, column)
    return batch


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


def unify_schemas(schemas: Mapping[str, pa.Schema]) -> tuple[pa.Schema, list[str]]:
    """Return the columns of several streams as one, and what keeps them apart.

    Columns go by name and come in the order in which they first appear.

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


def cast_to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
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
