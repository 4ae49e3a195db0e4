"""What PostgreSQL holds as rows of a job again: the way back of ``postgres_rows``."""

from __future__ import annotations

import datetime as dt
import json
from base64 import b64decode
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa


def decoded(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Return rows of a table as the driver of the server gives them, as those of a job.

    Args:
        rows: values in the order of the columns.
        schema: of the job's rows.

    Raises:
        ValueError: a value is none of its column's type; so are the errors of Arrow.
        TypeError: the same.
        ArithmeticError: the same, of numbers.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [
        pa.array([_value(value, field.type) for value in values], field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_nested(kind):
        return _of_json(json.loads(value) if isinstance(value, str) else value, kind)
    if pa.types.is_integer(kind):
        return int(value)  # of a column of numerics it is a decimal
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return value.replace(tzinfo=None)  # in the zone of the session, as it was sent
    return value


def _of_json(value: Any, kind: pa.DataType) -> Any:
    """Return a value as it was before it was written as JSON."""
    types = pa.types
    if value is None:
        return None
    shape = dict if types.is_struct(kind) else list
    if types.is_nested(kind) and not isinstance(value, shape):
        raise TypeError(f"found {type(value).__name__} in JSON for {kind}")
    if types.is_struct(kind):
        return {field.name: _of_json(value.get(field.name), field.type) for field in kind}
    if types.is_map(kind):
        return [(_of_json(k, kind.key_type), _of_json(v, kind.item_type)) for k, v in value]
    if types.is_nested(kind):
        return [_of_json(one, kind.value_type) for one in value]
    if types.is_timestamp(kind):
        return dt.datetime.fromisoformat(value)
    if types.is_date(kind):
        return dt.date.fromisoformat(value)
    if types.is_binary(kind):
        return b64decode(value)
    if types.is_decimal(kind):
        return Decimal(str(value))
    if types.is_floating(kind):
        return float(value)  # of a number without a fraction it is an integer, however large
    return value
