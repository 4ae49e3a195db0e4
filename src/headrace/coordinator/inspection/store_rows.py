"""Entries of any store as rows of typed columns, from the catalog's description alone.

A processor's store gives its key and its value's fields, timers give when they are due, an
aggregate gives the key columns and what users see of it, or its partial columns as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.coordinator.catalog import AggregateEntry, StoreEntry
from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS
from headrace.errors import CorruptDataError, InternalError
from headrace.graph.aggregates import Aggregate, Count, Extreme, Mean, Sum, Variance
from headrace.graph.rankings import FirstRows, TopK
from headrace.graph.row_aggregates import Collect, Pick, Unique
from headrace.graph.sketches import Distinct, Frequent, Quantiles
from headrace.plan.stages import TIME
from headrace.records.keys import decode_key
from headrace.records.schema import (
    WRITTEN,
    normalise,
    schema_from_text,
)
from headrace.runtime.async_process import PENDING_KIND as WAITS
from headrace.runtime.timers import WALL
from headrace.runtime.windows.aggregation import PartialCodec
from headrace.runtime.windows.layouts import Clusters
from headrace.state.value_types import ValueSchema, json_text

KNOWN: dict[str, type[Aggregate]] = {
    kind.__name__: kind
    for kind in (
        *(Count, Sum, Mean, Extreme, TopK, Variance, Pick, Collect),
        *(Unique, FirstRows, Distinct, Quantiles, Frequent),
    )
}
_MOMENT = pa.timestamp("us", tz="UTC")
_OF_VALUE: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
}


class KeyShape:
    """The columns that the keys of a processor's store have.

    They are what user code chose. Where they look like the key of the messages, they have its
    names and types, else ``key`` or ``key_0``, ``key_1``; keys of several kinds are JSON text.

    Args:
        keys: schema of the messages' key.
        first: the first key of the store; ``None``: as text.
    """

    def __init__(self, keys: pa.Schema, first: tuple[Any, ...] | None) -> None:
        self._kinds = None if first is None else tuple(map(type, first))
        if first is None:
            self.schema = pa.schema([("key", pa.string())])
        elif len(first) == len(keys) and all(map(_fits, first, keys.types)):
            self.schema = keys
        else:
            names = ["key"] if len(first) == 1 else [f"key_{n}" for n in range(len(first))]
            self.schema = pa.schema(
                [(name, _type_of(value)) for name, value in zip(names, first, strict=True)]
            )

    def columns(self, keys: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        """Return keys as arrays.

        Raises:
            InternalError: one is of another kind than the first.
        """
        if self._kinds is None:
            return [pa.array([json_text(key[0] if len(key) == 1 else key) for key in keys])]
        if any(not self._is_alike(key) for key in keys):
            raise InternalError("a key of another kind than the first of its store")
        columns = list(zip(*keys, strict=True))
        try:
            return [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
        except (pa.ArrowException, OverflowError) as error:
            raise InternalError(f"a key does not fit {self.schema}: {error}") from error

    def _is_alike(self, key: tuple[Any, ...]) -> bool:
        assert self._kinds is not None
        return len(key) == len(self._kinds) and all(
            value is None or type(value) is kind
            for value, kind in zip(key, self._kinds, strict=True)
        )


def _type_of(value: Any) -> pa.DataType:
    return _OF_VALUE.get(type(value)) or pa.scalar(value).type


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    try:
        return pa.scalar(value, kind).as_py() == value and not (
            isinstance(value, bool) ^ pa.types.is_boolean(kind)
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False


_MOMENTS = {
    "windows": ["window_start", "window_end"],
    "periodic": ["at"],
    "panes": ["pane_start", "pane_end"],
    "slices": ["slice_start", "slice_end"],
}


class StoreRows:
    """Turns entries of one store into batches of one schema.

    Args:
        entry: of the catalog.
        first: a full key, if all have the kinds of values that it has; ``None``: a processor's
            keys are text.
        partials: add the partial columns of aggregates.
    """

    def __init__(
        self, entry: StoreEntry, first: bytes | None = None, *, partials: bool = False
    ) -> None:
        self.entry = entry
        self._keys = schema_from_text(entry.keys)
        self._shown = ShownAggregates(entry.aggregates, partials=partials)
        if entry.form == "values":
            self._shape = KeyShape(self._keys, None if first is None else decode_key(first[2:]))
            self._values = ValueSchema(entry.value, self._shape.schema.names)
            fields = [*self._shape.schema, *self._values.schema]
        elif entry.form == "timers":
            heads = [("due", _MOMENT), ("clock", pa.string()), ("name", pa.string())]
            taken = {name for name, _ in heads}
            keys = [(f"key.{f.name}" if f.name in taken else f.name, f.type) for f in self._keys]
            fields = [pa.field(name, kind) for name, kind in (*heads, *keys)]
        elif entry.form in ("rows", "latest"):
            self._columns = schema_from_text(entry.columns)
            times = [pa.field(TIME, _MOMENT)] if entry.form == "rows" else []
            fields = [*times, *self._keys, *self._columns]
        else:
            fields = [*self._moment_fields(), *self._keys, *self._shown.schema]
        self.schema = pa.schema(fields)

    def _moment_fields(self) -> list[pa.Field]:
        fields = [pa.field(name, _MOMENT) for name in _MOMENTS.get(self.entry.form, [])]
        return [*fields, pa.field("is_sent", pa.bool_())] if self.entry.waits else fields

    def batch(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        """Return entries as rows; shape (n,).

        Args:
            keys: full keys.
            values: as stored, without the stamp of a time to live.

        Raises:
            InternalError: a key of another kind than ``first``.
            CorruptDataError: a value does not fit the description.
        """
        decoded = [decode_key(key[2:]) for key in keys]
        if self.entry.form == "values":
            columns = [*self._shape.columns(decoded), *self._values.columns(values)]
        elif self.entry.form == "timers":
            columns = self._timers(decoded)
        else:
            partials = self._shown.decode(values)
            skipped = 0 if self.entry.form in ("totals", "ids") else 1
            heads = self._moments([key[0] for key in decoded]) if skipped else []
            rest = [key[skipped:] for key in decoded]
            columns = [*heads, *_typed(rest, self._keys), *self._shown.columns(partials)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @property
    def partial_names(self) -> list[str]:
        """The partial columns of a table."""
        return self._shown.names

    def encode_partials(self, frame: pl.DataFrame) -> list[bytes]:
        """Return partial columns as a key-value store would hold them."""
        return self._shown.encode(frame)

    def table_batch(self, ends: pa.Array | None, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a columnar store as rows of this schema; shape (n,).

        Args:
            ends: of the rows' buckets, ms, null for totals; ``None`` without buckets.
            batch: key columns and partial columns, among others.
        """
        keys = [batch.column(name) for name in self._keys.names]
        if self.entry.form in ("rows", "latest"):
            keys += [batch.column(name) for name in self._columns.names]
            times = [_moment_array(batch.column(WRITTEN))] if self.entry.form == "rows" else []
            return pa.RecordBatch.from_arrays([*times, *keys], schema=self.schema)
        heads = [] if ends is None else bucket_moments(self.entry, ends)
        partials = pl.from_arrow(batch.select(self._shown.names))
        assert isinstance(partials, pl.DataFrame)
        columns = [*heads, *keys, *self._shown.columns(partials)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def table_keys(self, ends: pa.Array | None, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the moments and keys of rows of totals or windows, as ``table_batch`` has them."""
        heads = [] if ends is None else bucket_moments(self.entry, ends)
        columns = [*heads, *(batch.column(name) for name in self._keys.names)]
        return pa.RecordBatch.from_arrays(
            columns, schema=pa.schema(list(self.schema)[: len(columns)])
        )

    def dicts(self, entries: Sequence[tuple[bytes, bytes]]) -> Iterator[dict[str, Any]]:
        """Yield entries as rows of Python values, by column."""
        if entries:
            keys, values = zip(*entries, strict=True)
            yield from self.batch(keys, values).to_pylist()

    def _moments(self, ends: Sequence[int | None]) -> list[pa.Array]:
        return bucket_moments(self.entry, pa.array(ends, pa.int64()))

    def _timers(self, decoded: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        """When timers are due; and the messages that wait for calls, which are kept with them."""
        nothing = (None,) * len(self._keys)
        rows = [
            (None, "call", f"of epoch {key[1]}", nothing)
            if key[0] == WAITS
            else (key[1], "wall" if key[0] == WALL else "event", key[2], key[3:])
            for key in decoded
        ]
        return [
            _moment_array(pa.array([row[0] for row in rows], pa.int64())),
            pa.array([row[1] for row in rows], pa.string()),
            pa.array([row[2] for row in rows], pa.string()),
            *_typed([row[3] for row in rows], self._keys),
        ]


def bucket_moments(entry: StoreEntry, ends: pa.Array) -> list[pa.Array]:
    """Return the moment columns of buckets by their ends, ms; null: the totals so far."""
    if entry.form == "periodic":
        return [_moment_array(ends)]
    if entry.waits:
        kept, numbers = Clusters(*entry.waits), ends.to_numpy()
        ends, is_sent = pa.array(kept.read(numbers)[0]), pa.array(kept.is_sent(numbers))
        if entry.form == "whole":
            return [is_sent]
        starts = pc.subtract(ends, entry.width_ms)
        return [_moment_array(starts), _moment_array(ends), is_sent]
    if entry.form == "panes":
        ends = pc.shift_right(ends, 1)  # odd: rows of a single window, too late for the others
    if entry.form in _MOMENTS:
        return [_moment_array(pc.subtract(ends, entry.width_ms)), _moment_array(ends)]
    return []


def _moment_array(moments_ms: pa.Array) -> pa.Array:
    shown = pc.min_element_wise(moments_ms, MAX_EVENT_TIME_MS - 1, skip_nulls=False)
    shown = pc.max_element_wise(shown, MIN_EVENT_TIME_MS, skip_nulls=False)
    return pc.multiply(shown, 1000).cast(_MOMENT)


def _typed(keys: Sequence[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    columns = list(zip(*keys, strict=True)) if keys else [()] * len(schema)
    try:
        return [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise CorruptDataError(f"stored keys are not those of the plan: {error}") from error


class ShownAggregates:
    """What users see of stored partial results.

    Headrace's own aggregates are made again from their description. One that the user wrote
    is shown as its state, for its functions are code: ``<name>.state``, as JSON.

    Args:
        entries: of the catalog.
        partials: add the partial columns.
    """

    def __init__(self, entries: Sequence[AggregateEntry], *, partials: bool = False) -> None:
        self._types: dict[str, pa.DataType] = {}
        self._exprs: list[pl.Expr] = []
        fields: list[pa.Field] = []
        for entry in entries:
            own = schema_from_text(entry.partials)
            self._types.update(zip(own.names, own.types, strict=True))
            kind = KNOWN.get(entry.kind)
            if kind is None:
                fields += [pa.field(name, pa.string()) for name in own.names]
                self._exprs += [_as_json(name) for name in own.names]
                continue
            source = schema_from_text(entry.source)
            made = kind(**_arguments(entry)).bind(source)
            fields.append(pa.field(entry.name, made.result_type(source)))
            self._exprs.append(made.result(f"{entry.name}.").alias(entry.name))
            if partials:
                new = [field for field in own if field.name != entry.name]
                fields += new
                self._exprs += [pl.col(field.name) for field in new]
        self.schema = pa.schema(fields)
        self._codec = PartialCodec(self._types) if self._types else None

    @property
    def names(self) -> list[str]:
        """The partial columns, as they are stored."""
        return list(self._types)

    def decode(self, values: Sequence[bytes]) -> pl.DataFrame:
        """Return stored values as partial columns; ids have none."""
        if self._codec is None:
            return pl.DataFrame()
        try:
            return self._codec.decode(values)
        except (ValueError, msgspec.DecodeError, pl.exceptions.PolarsError) as error:
            raise CorruptDataError(f"stored partial results cannot be read: {error}") from error

    def encode(self, partials: pl.DataFrame) -> list[bytes]:
        """Return partial columns as stored values."""
        return [] if self._codec is None else self._codec.encode(partials)

    def columns(self, partials: pl.DataFrame) -> list[pa.Array]:
        """Return what is shown of partial columns."""
        shown = normalise(partials.select(self._exprs).to_arrow(), self.schema)
        return list(shown.columns)


def _arguments(entry: AggregateEntry) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in entry.arguments.items()
        if name != "type"
    }


def _as_json(name: str) -> pl.Expr:
    def show(states: pl.Series) -> pl.Series:
        found = [json_text(msgspec.msgpack.decode(state)) for state in states.to_list()]
        return pl.Series(name, found, dtype=pl.String)

    return pl.col(name).map_batches(show, return_dtype=pl.String)
