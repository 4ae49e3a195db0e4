"""The column types that Headrace stores, their names, and the one normaliser towards them.

A ``TableLayout`` names the columns of a table that a task keeps: its keys, its values, and what
is stored beside them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS
from headrace.errors import InvalidInputError


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
        InvalidInputError: a null, another type, or a time outside the years 1 to 9999.
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
    if len(times) and (times.min() < MIN_EVENT_TIME_MS or times.max() >= MAX_EVENT_TIME_MS):
        at = int(np.flatnonzero((times < MIN_EVENT_TIME_MS) | (times >= MAX_EVENT_TIME_MS))[0])
        raise InvalidInputError(
            f"event time of {origin} is {int(times[at])} ms in row {at}, outside the years 1 to "
            "9999"
        )
    return times.astype(np.int64, copy=False)


def as_milliseconds(column: pa.Array) -> pa.Array:
    """Return integers (milliseconds) or timestamps as int64 milliseconds, nulls kept."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.unit in ("us", "ns"):
            import pyarrow.compute as pc  # noqa: PLC0415 - takes 40 ms, and most commands need none of it

            column = pc.floor_temporal(column, unit="millisecond")
        column = column.cast(pa.timestamp("ms", tz=kind.tz))
    return column.cast(pa.int64())


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as base64 of its Arrow IPC form, for JSON files."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


@lru_cache(maxsize=256)
def schema_from_text(text: str) -> pa.Schema:
    """Read what ``schema_to_text`` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


TYPE_NAMES = {
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


def type_text(kind: pa.DataType) -> str:
    """Return a stored type in the words that ``--schema`` takes."""
    if pa.types.is_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name, known in TYPE_NAMES.items() if known == kind), str(kind))


def schema_text(schema: pa.Schema) -> str:
    """Return a schema in the words that ``--schema`` takes."""
    return ",".join(f"{field.name}:{type_text(field.type)}" for field in schema)


HASH, CLUSTER, WRITTEN, DELETED = "__hash", "__cluster", "__written", "__deleted"
_OWN = frozenset((HASH, CLUSTER, WRITTEN, DELETED))


@dataclass(frozen=True)
class TableLayout:
    """What a table's rows are made of.

    Args:
        keys: the columns that name a row, at least one; nulls are values of their own.
        values: the columns beside them, of any type that can be stored.
        cluster: whether rows are ordered by an integer before their hash, as windows are by
            their end; it is part of the key.
        ttl_ms: how long after it was written a row is there; forever when ``None``.
        by_event: whether rows are written at event times of their own, and gone by the watermark
            instead of the wall clock.
        repeats: whether several rows may have one key; none is laid over another, or deleted.

    Raises:
        InvalidInputError: no key, a name twice, or a type that cannot be stored.
    """

    keys: pa.Schema
    values: pa.Schema
    cluster: bool = False
    ttl_ms: int | None = None
    by_event: bool = False
    repeats: bool = False

    def __post_init__(self) -> None:
        """Check the names, and bring the types to their stored form."""
        names = [*self.keys.names, *self.values.names]
        doubled = sorted({name for name in names if names.count(name) > 1 or name in _OWN})
        if doubled or not self.keys.names:
            raise InvalidInputError(
                f"a table cannot have keys {self.keys.names} and values {self.values.names}: "
                + (f"columns {doubled} are there twice" if doubled else "it needs a key")
                + "; rename or add columns"
            )
        if self.ttl_ms is not None and self.ttl_ms <= 0:
            raise InvalidInputError(f"a table's ttl_ms is {self.ttl_ms}; give at least 1, or None")
        object.__setattr__(self, "keys", normalise_schema(self.keys))
        object.__setattr__(self, "values", normalise_schema(self.values))

    @property
    def first_key(self) -> int:
        """The place of the first key column in a run."""
        return 1 + self.cluster + (self.ttl_ms is not None)

    @property
    def first_value(self) -> int:
        """The place of the first value column in a run."""
        return self.first_key + len(self.keys)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a run without deletions; its metadata has the layout."""
        fields = [pa.field(HASH, pa.uint64())]
        if self.cluster:
            fields.append(pa.field(CLUSTER, pa.int64()))
        if self.ttl_ms is not None:
            fields.append(pa.field(WRITTEN, pa.int64()))
        metadata = {"keys": str(len(self.keys)), "ttl_ms": str(self.ttl_ms or 0)}
        if self.by_event:
            metadata["clock"] = "event"
        if self.repeats:
            metadata["rows"] = "repeat"
        return pa.schema([*fields, *self.keys, *self.values], metadata=metadata)

    @cached_property
    def schema_with_deletes(self) -> pa.Schema:
        """The columns of a run with deletions."""
        return self.schema.append(pa.field(DELETED, pa.bool_()))

    @classmethod
    def of(cls, schema: pa.Schema) -> TableLayout:
        """Return the layout of a run from its schema.

        Raises:
            InvalidInputError: it is no run's schema.
        """
        metadata = schema.metadata or {}
        if b"keys" not in metadata or schema.names[:1] != [HASH]:
            raise InvalidInputError(f"columns {schema.names} are no run of a table")
        own = [name for name in schema.names if name in _OWN]
        begin, keys = len(own) - (DELETED in own), int(metadata[b"keys"])
        fields = [field for field in schema if field.name not in _OWN]
        ttl_ms = int(metadata[b"ttl_ms"]) or None
        assert begin == 1 + (CLUSTER in own) + (ttl_ms is not None)
        by_event = metadata.get(b"clock") == b"event"
        values = pa.schema(fields[keys:])
        repeats = metadata.get(b"rows") == b"repeat"
        return cls(pa.schema(fields[:keys]), values, CLUSTER in own, ttl_ms, by_event, repeats)


def unique_names(names: Sequence[str]) -> list[str]:
    """Number names of columns that come again, for a row has each once."""
    taken: list[str] = []
    for name in names:
        free, number = name, 0
        while free in taken or (number and free in names):
            number += 1
            free = f"{name}_{number}"
        taken.append(free)
    return taken
