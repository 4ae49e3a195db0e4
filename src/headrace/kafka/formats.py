"""What is in messages, as columns: raw bytes, or JSON; and the columns that every message has.

Formats whose schemas are in a registry are in modules of their own, and ``kinds`` names them all.

Reading makes of a list of messages only what is asked for: each attribute of a message is a call.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import methodcaller
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bus import StreamSpec
from headrace.errors import InvalidInputError
from headrace.kafka.address import TopicAddress
from headrace.sources.text_rows import BadLine, JsonRowReader, RowChunk

KEY, TIMESTAMP, HEADERS = "_key", "_timestamp", "_headers"
PARTITION, OFFSET, VALUE = "_partition", "_offset", "value"
HEADER_LIST = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
COMMON = pa.schema(
    [
        (KEY, pa.binary()),
        (TIMESTAMP, pa.int64()),
        (HEADERS, HEADER_LIST),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
    ]
)
"""Columns of every message; ``_timestamp`` is milliseconds, and null where a message has none."""

# One call of C for each message, and none of Python.
_KEY, _VALUE = methodcaller("key"), methodcaller("value")
_TIMESTAMP, _OFFSET = methodcaller("timestamp"), methodcaller("offset")

Encoder = Callable[[pa.RecordBatch], pa.Array]
"""Makes the values of messages of rows, as bytes; null for a tombstone."""


class BadMessage(NamedTuple):
    """A message whose value is not as expected: its place in the list, its value, and why."""

    place: int
    value: bytes
    error: InvalidInputError


class Decoded(NamedTuple):
    """Messages as columns, the places in the list that they are of, and those that are not."""

    batch: pa.RecordBatch
    places: Sequence[int] | None
    bad: Sequence[BadMessage]


def common_column(name: str, messages: Sequence[Any]) -> pa.Array:
    """Return a column that every message has."""
    if name == KEY:
        return pa.array(list(map(_KEY, messages)), pa.binary())
    if name == TIMESTAMP:
        # A list of the pairs would have Python's collector look at all messages again and again.
        times = [when if kind else None for kind, when in map(_TIMESTAMP, messages)]
        return pa.array(times, pa.int64())
    if name == HEADERS:
        rows = [
            [{"name": key, "value": value} for key, value in message.headers() or ()]
            for message in messages
        ]
        return pa.array(rows, HEADER_LIST)
    if name == PARTITION:
        return pa.array(np.full(len(messages), messages[0].partition() if messages else 0, "i4"))
    return pa.array(list(map(_OFFSET, messages)), pa.int64())


class MessageDecoder(ABC):
    """Makes columns of messages.

    Args:
        spec: of the stream that a topic is read as.
        address: of the topic.
    """

    def __init__(self, spec: StreamSpec, address: TopicAddress) -> None:
        self.spec, self.address = spec, address

    @abstractmethod
    def decode(self, messages: Sequence[Any], columns: Sequence[str]) -> Decoded:
        """Return messages of one partition as these columns, in their order."""


class RawDecoder(MessageDecoder):
    """Values as they are."""

    def decode(self, messages: Sequence[Any], columns: Sequence[str]) -> Decoded:
        """Return messages of one partition as these columns, in their order."""
        arrays = [
            pa.array(list(map(_VALUE, messages)), pa.binary())
            if name == VALUE
            else common_column(name, messages)
            for name in columns
        ]
        return Decoded(batch_of(columns, arrays, self.spec, len(messages)), None, ())


class ColumnDecoder(MessageDecoder):
    """Values that are rows, each of which has columns.

    A tombstone, which has no value, has nulls in all columns but those of its key.
    """

    @abstractmethod
    def rows(
        self, values: Sequence[bytes], wanted: tuple[str, ...]
    ) -> tuple[pa.RecordBatch, list[tuple[int, InvalidInputError]]]:
        """Return values as these columns, and those that are not such: which, and why.

        Args:
            values: none of them empty.
            wanted: at least one column that is not of every message.
        """

    def kinds(self, wanted: Sequence[str]) -> pa.Schema:
        """Return the schema of some columns."""
        return pa.schema([self.spec.schema.field(name) for name in wanted])

    def decode(self, messages: Sequence[Any], columns: Sequence[str]) -> Decoded:
        """Return messages of one partition as these columns, in their order."""
        wanted = tuple(name for name in columns if name not in COMMON.names)
        if not wanted:
            arrays = [common_column(name, messages) for name in columns]
            return Decoded(batch_of(columns, arrays, self.spec, len(messages)), None, ())
        values = list(map(_VALUE, messages))
        places: list[int] | None = None
        some = values
        if not all(values):
            places = [place for place, value in enumerate(values) if value]
            some = [values[place] for place in places]
        rows, wrong = self.rows(some, wanted)
        bad = [
            BadMessage(places[at] if places else at, some[at], error) for at, error in sorted(wrong)
        ]
        if bad:
            gone = {one.place for one in bad}
            places = [at for at in places or range(len(values)) if at not in gone]
        if places is None:
            return Decoded(self._with_common(columns, rows, messages), None, ())
        return self._with_tombstones(columns, wanted, messages, rows, places, bad)

    def _with_common(
        self, columns: Sequence[str], rows: pa.RecordBatch, messages: Sequence[Any]
    ) -> pa.RecordBatch:
        arrays = [
            common_column(name, messages) if name in COMMON.names else rows.column(name)
            for name in columns
        ]
        return batch_of(columns, arrays, self.spec, len(messages))

    def _with_tombstones(
        self,
        columns: Sequence[str],
        wanted: tuple[str, ...],
        messages: Sequence[Any],
        rows: pa.RecordBatch,
        places: Sequence[int],
        bad: list[BadMessage],
    ) -> Decoded:
        """Put tombstones between rows; one whose key cannot be read is bad."""
        schema = rows.schema
        gone = {one.place for one in bad}
        has_value = set(places)
        empty = [at for at in range(len(messages)) if at not in has_value and at not in gone]
        tombs: list[dict[str, Any]] = []
        kept: list[int] = []
        for at in empty:
            try:
                tombs.append(self._tombstone(messages[at].key(), wanted))
                kept.append(at)
            except InvalidInputError as error:
                bad.append(BadMessage(at, messages[at].key() or b"", error))
        both = pa.concat_batches([rows, pa.RecordBatch.from_pylist(tombs, schema=schema)])
        order = np.argsort(np.array([*places, *kept], np.int64), kind="stable")
        merged = sorted([*places, *kept])
        ordered = both.take(pa.array(order))
        some = [messages[at] for at in merged]
        bad.sort()
        return Decoded(self._with_common(columns, ordered, some), merged, bad)

    def _tombstone(self, key: bytes | None, wanted: tuple[str, ...]) -> dict[str, Any]:
        """Return the columns of a tombstone that its key has."""
        names = self.address.key
        if not names:
            return {}
        if key is None:
            raise InvalidInputError("a message has neither key nor value; expected one of them")
        return {
            name: value
            for name, value in zip(names, key_values(key, names, self.spec), strict=True)
            if name in wanted
        }


class JsonDecoder(ColumnDecoder):
    """Each value is a JSON object; fields that are no columns are left out."""

    def __init__(self, spec: StreamSpec, address: TopicAddress) -> None:
        super().__init__(spec, address)
        self._read: JsonRowReader | None = None
        self._reads: tuple[str, ...] = ()
        self._bad: list[BadLine] = []

    def _reader(self, wanted: tuple[str, ...]) -> JsonRowReader:
        """Read no other columns than those that are asked for."""
        if self._read is None or self._reads != wanted:
            spec = StreamSpec(self.spec.name, self.spec.partitions, self.kinds(wanted))
            self._read = JsonRowReader(
                self.address.said, spec, self._bad.append, ignores_others=True
            )
            self._reads = wanted
        return self._read

    def rows(
        self, values: Sequence[bytes], wanted: tuple[str, ...]
    ) -> tuple[pa.RecordBatch, list[tuple[int, InvalidInputError]]]:
        """Return values as these columns, and those that are not such: which, and why."""
        reader = self._reader(wanted)
        lines = values
        if b"\n".join(values).count(b"\n") >= len(values):  # a value has line breaks of its own
            lines = [line.replace(b"\n", b" ") for line in values]
        self._bad.clear()
        batch = reader.batch(RowChunk(list(lines), range(len(lines))))
        return batch, [(one.line, InvalidInputError(one.message)) for one in self._bad]


def key_values(key: bytes, names: Sequence[str], spec: StreamSpec) -> list[Any]:
    """Return what a key has for columns: one is plain text, several are a JSON array.

    Raises:
        InvalidInputError: the key is not such.
    """
    try:
        text = key.decode()
        parts = [text] if len(names) == 1 else msgspec.json.decode(text, type=list)
        if len(parts) != len(names):
            raise ValueError(f"found {len(parts)} parts")
        return [
            _converted(part, spec.schema.field(name).type)
            for part, name in zip(parts, names, strict=True)
        ]
    except (ValueError, KeyError, msgspec.MsgspecError) as error:
        raise InvalidInputError(
            f"key {key[:60]!r} is not that of columns {', '.join(names)}: {error}"
        ) from error


def _converted(part: Any, kind: pa.DataType) -> Any:
    if isinstance(part, str) and not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return pa.array([part]).cast(kind)[0].as_py()
    return part.encode() if isinstance(part, str) and pa.types.is_binary(kind) else part


def batch_of(
    columns: Sequence[str], arrays: Sequence[pa.Array], spec: StreamSpec, rows: int
) -> pa.RecordBatch:
    """Return columns as a batch, also where there are none."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    schema = pa.schema([spec.schema.field(name) for name in columns])
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)


def json_encoder(schema: pa.Schema, key: Sequence[str]) -> Encoder:
    """Return what makes values of rows as JSON; null for a tombstone."""
    encode = msgspec.json.Encoder(enc_hook=_plain, decimal_format="string").encode
    by_row = values_of(schema, key, lambda row: encode(_finite(row)))
    own = own_names(schema)
    rest = [name for name in own if name not in key]

    def encoded(batch: pa.RecordBatch) -> pa.Array:
        quick = json_of_columns(batch.select(own))
        if quick is None:
            return by_row(batch)
        return without_tombstones(quick, batch.select(rest) if key else None)

    return encoded


def values_of(
    schema: pa.Schema, key: Sequence[str], encode: Callable[[dict[str, Any]], bytes]
) -> Encoder:
    """Return what makes values of rows, one by one; null for a tombstone.

    A row is a tombstone if all its columns but those of the key are null.
    """
    own = own_names(schema)
    rest = [name for name in own if name not in key]

    def encoded(batch: pa.RecordBatch) -> pa.Array:
        rows = batch.select(own).to_pylist()
        can_be_gone = bool(key and rest)
        values = [
            None if can_be_gone and all(row[name] is None for name in rest) else encode(row)
            for row in rows
        ]
        return pa.array(values, pa.binary())

    return encoded


def without_tombstones(values: pa.Array, rest: pa.RecordBatch | None) -> pa.Array:
    """Return the values of rows, with null for those that are tombstones.

    Args:
        values: of rows.
        rest: columns that are no key; ``None``, or none: no row is a tombstone.
    """
    if rest is None or not rest.num_columns or not all(one.null_count for one in rest.columns):
        return values
    gone = reduce(pc.and_, [one.is_null() for one in rest.columns])
    return pc.if_else(gone, pa.scalar(None, values.type), values)


def own_names(schema: pa.Schema) -> list[str]:
    """Return the columns that are of the value of a message."""
    return [name for name in schema.names if name not in COMMON.names]


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if _is_odd(value) else value for name, value in row.items()}


def _is_odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, datetime | time | Decimal):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def raw_encoder(batch: pa.RecordBatch) -> pa.Array:
    """Return what the column ``value`` has."""
    return batch.column(VALUE).cast(pa.binary())


def encoded_keys(batch: pa.RecordBatch, key: Sequence[str]) -> pa.Array:
    """Return the keys of messages: text and numbers as text, several columns as a JSON array."""
    if not key:
        if KEY not in batch.schema.names:
            return pa.nulls(batch.num_rows, pa.binary())
        return batch.column(KEY).cast(pa.binary())
    if len(key) == 1:
        column = batch.column(key[0])
        text = column if pa.types.is_binary(column.type) else column.cast(pa.string())
        return text.cast(pa.binary())
    encode = msgspec.json.Encoder(enc_hook=_plain).encode
    rows = batch.select(list(key)).to_pylist()
    return pa.array([encode([row[name] for name in key]) for row in rows], pa.binary())


def json_of_columns(batch: pa.RecordBatch) -> pa.Array | None:
    """Return each row as a JSON object in bytes; ``None`` where a column needs more care.

    Whole numbers, finite ones of 64 bits, text and booleans need none. It takes a fifth of the time
    of making objects of rows.
    """
    if not batch.num_columns or not all(map(_is_plain, batch.columns)):
        return None
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    made = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series().to_arrow()
    return made.cast(pa.large_binary()).cast(pa.binary())


def _is_plain(column: pa.Array) -> bool:
    kind = column.type
    if kind == pa.float64():
        return pc.all(pc.is_finite(column), min_count=0).as_py() is not False
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )
