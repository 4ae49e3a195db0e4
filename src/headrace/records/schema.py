"""The column types that Headrace stores, and the one normaliser towards them.

Polars, Spark and Arrow disagree on large strings, dictionaries, views and time zones.
Batches are normalised once where they enter; inside, a type has one form.
"""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidInputError

MAX_EVENT_TIME_MS = 253_402_300_800_000  # the year 10000


def normalise_type(kind: pa.DataType) -> pa.DataType:
    """Return the stored form of a type: strings, binaries and UTC microseconds have one each.

    Raises:
        InvalidInputError: a type that has no stored form.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return normalise_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if types.is_date64(kind):
        return pa.date32()
    if types.is_large_list(kind) or types.is_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(normalise_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, normalise_type(field.type)) for field in kind])
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_string)
    others = (types.is_binary, types.is_date32, types.is_decimal128, types.is_duration)
    if any(test(kind) for test in plain + others):
        return kind
    raise InvalidInputError(f"columns of type {kind} cannot be stored; cast to a plain type")


def normalise_schema(schema: pa.Schema) -> pa.Schema:
    """Return the stored form of a schema, without metadata; names must differ."""
    names = schema.names
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInputError(f"columns {doubled} appear more than once; rename them")
    return pa.schema([(field.name, normalise_type(field.type)) for field in schema])


def normalise(batch: pa.RecordBatch | pa.Table, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Return one batch in stored form.

    Args:
        batch: rows from Arrow, Polars, pandas or Spark; chunks are joined.
        schema: a stored schema to fit: columns are put in its order and cast safely.

    Raises:
        InvalidInputError: a column is missing, extra, or does not fit without loss.
    """
    if schema is not None and batch.schema.equals(schema) and isinstance(batch, pa.RecordBatch):
        return batch
    target = normalise_schema(batch.schema) if schema is None else schema
    missing = [name for name in target.names if name not in batch.schema.names]
    extra = [name for name in batch.schema.names if name not in target.names]
    if missing or extra:
        raise InvalidInputError(
            f"columns do not fit: missing {missing}, not expected {extra}; expected {target.names}"
        )
    arrays = []
    for field in target:
        column = batch.column(field.name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = pa.concat_arrays(column.chunks)
        arrays.append(_cast(column, field))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"column {field.name!r}: found {column.type}, expected {field.type}: {reason}"
        ) from error


def event_times(column: pa.Array, origin: str) -> npt.NDArray[np.int64]:
    """Return event times as int64 milliseconds since the epoch, UTC; shape (n,).

    Args:
        column: integers (milliseconds) or timestamps.
        origin: stream and partition, for the error.

    Raises:
        InvalidInputError: a null, another type, or a time outside the years 1970 to 9999.
    """
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        raise InvalidInputError(
            f"event time of {origin}: found {kind}, expected a timestamp or integer milliseconds"
        )
    if column.null_count:
        at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidInputError(f"event time of {origin} is null in row {at} of the batch")
    times: npt.NDArray[np.int64] = as_milliseconds(column).to_numpy()
    if len(times) and (times.min() < 0 or times.max() >= MAX_EVENT_TIME_MS):
        at = int(np.flatnonzero((times < 0) | (times >= MAX_EVENT_TIME_MS))[0])
        raise InvalidInputError(
            f"event time of {origin} is {int(times[at])} ms in row {at}, outside 1970 to 9999"
        )
    return times.astype(np.int64, copy=False)


def as_milliseconds(column: pa.Array) -> pa.Array:
    """Return integers (milliseconds) or timestamps as int64 milliseconds, nulls kept."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.unit in ("us", "ns"):
            column = pc.floor_temporal(column, unit="millisecond")
        column = column.cast(pa.timestamp("ms", tz=kind.tz))
    return column.cast(pa.int64())


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as base64 of its Arrow IPC form, for JSON files."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Read what ``schema_to_text`` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
