"""Batches as typed messages, and messages as batches.

A message is a frozen msgspec struct with one attribute for each column: as quick to make
as a tuple, typed, and unable to run code. Users may return structs, dataclasses, dicts or
tuples; what comes back must fit the declared schema.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import FunctionResultError, InvalidInputError

_MOMENT = pa.timestamp("us", tz="UTC")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SPAN = partial(datetime.timedelta, 0, 0)
_BARE = frozenset(
    (str, bytes, int, float, bool, Decimal, datetime.datetime, datetime.date, datetime.timedelta)
)
"""What a function may return as it is where there is one column; what is missing is no value."""
_WHOLE = frozenset((int, type(None)))
_OWN = (bytes, bytearray, Decimal, datetime.datetime, datetime.date, datetime.timedelta)


def message_type(name: str, schema: pa.Schema) -> type[msgspec.Struct]:
    """Return a struct class with the columns of a schema as attributes, in order."""
    bad = [column for column in schema.names if not column.isidentifier()]
    if bad:
        raise InvalidInputError(f"columns {bad} cannot be attributes of a message; rename them")
    fields = [(column, Any) for column in schema.names]
    return msgspec.defstruct(name, fields, frozen=True, gc=False)


def columns_to_lists(batch: pa.RecordBatch) -> list[list[Any]]:
    """Return each column as a list of Python values, the quick way where there is one."""
    return list(map(_listed, batch.columns))


def key_values(columns: pa.RecordBatch) -> list[Any]:
    """Return the key of each row as users have it: a value, or a tuple of several columns."""
    lists = columns_to_lists(columns)
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


def _listed(column: pa.Array) -> list[Any]:
    kind = column.type
    found: list[Any]
    if column.null_count:
        found = column.to_pylist()
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        found = column.to_numpy().tolist()
    elif kind == _MOMENT:
        found = _moments(column.cast(pa.int64()).to_numpy().tolist())
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        found = _records(column)
    else:
        found = column.to_pylist()
    return found


def _records(column: pa.ListArray) -> list[list[Any]]:
    """Lists of dicts: Arrow takes several times as long to make them."""
    records = column.flatten()
    names = [field.name for field in records.type]
    # msgspec takes some names with "__" for its own or Python's
    is_plain = all(name.isidentifier() and not name.startswith("__") for name in names)
    if records.null_count or not names or not is_plain:
        found: list[list[Any]] = column.to_pylist()
        return found
    kind = message_type("Record", pa.schema(list(records.type)))
    dicts = list(map(msgspec.structs.asdict, map(kind, *map(_listed, records.flatten()))))
    return _in_lists(dicts, column)


def nested_messages(column: pa.ListArray) -> list[list[Any]]:
    """Return each list of structs as a list of messages; nothing in it is null."""
    records = column.flatten()
    names = [field.name for field in records.type]
    batch = pa.RecordBatch.from_struct_array(records)
    return _in_lists(to_messages(batch, _nested_type(tuple(names))), column)


@lru_cache(maxsize=256)
def _nested_type(names: tuple[str, ...]) -> type[msgspec.Struct]:
    return message_type("Message", pa.schema([(name, pa.null()) for name in names]))


def _in_lists(items: list[Any], column: pa.ListArray) -> list[list[Any]]:
    import pyarrow.compute as pc  # noqa: PLC0415 - takes 40 ms, and most commands need none of it

    ends = np.cumsum(pc.list_value_length(column).to_numpy()).tolist()
    return [items[begin:end] for begin, end in pairwise([0, *ends])]


def _moments(microseconds: list[int]) -> list[datetime.datetime]:
    """Moments since 1970, UTC: Arrow takes several times as long to make them."""
    return list(map(_EPOCH.__add__, map(_SPAN, microseconds)))


def to_messages(
    batch: pa.RecordBatch, kind: type[msgspec.Struct], nested: str | None = None
) -> list[Any]:
    """Return one message for each row.

    Args:
        batch: the rows.
        kind: from ``message_type`` of its schema.
        nested: the column whose lists of structs become lists of messages, too.
    """
    if batch.num_columns == 0:
        return [kind() for _ in range(batch.num_rows)]
    lists = list(map(_listed, batch.columns)) if nested is None else _nested(batch, nested)
    return list(map(kind, *lists))


def _nested(batch: pa.RecordBatch, nested: str) -> list[list[Any]]:
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return [
        nested_messages(column) if name == nested else _listed(column) for name, column in columns
    ]


def from_messages(messages: Sequence[Any], schema: pa.Schema, operator: str) -> pa.RecordBatch:
    """Return the batch of what a user's function returned.

    Args:
        messages: structs, dataclasses, mappings or tuples; or the bare values of a single column.
        schema: declared by the operator.
        operator: its name, for errors.

    Raises:
        FunctionResultError: a value of another kind, or one that does not fit its column.
    """
    columns = _columns(messages, schema.names, operator)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            arrays.append(_array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as error:
            found = next((v for v in values if not _fits(v, field.type)), values[0])
            raise FunctionResultError(
                f"operator {operator!r} returned {found!r} for column {field.name!r}; "
                f"expected {field.type}",
                operator=operator,
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column; records within messages, sets and enums as what Arrow takes."""
    found = set(map(type, values))
    is_nested = pa.types.is_nested(kind)
    if is_nested or (not found <= _BARE and any(issubclass(one, Enum) for one in found)):
        with contextlib.suppress(TypeError):  # reported by Arrow, or accepted by it
            values = msgspec.to_builtins(values, builtin_types=_OWN)
            found = set(map(type, values))
    if _loses_within(kind, values) if is_nested else _loses(kind, found):
        raise ValueError("Arrow would take it, and lose a part")
    return pa.array(values, kind)


def _loses_within(kind: pa.DataType, values: Sequence[Any]) -> bool:
    """Say whether Arrow would drop a part of a value, or of what is inside of one."""
    if not pa.types.is_nested(kind):
        return _loses(kind, set(map(type, values)))
    there = [value for value in values if value is not None]
    if pa.types.is_list(kind):
        return _loses_within(kind.value_type, [item for items in there for item in items])
    records = [value for value in there if isinstance(value, Mapping)]
    names = [field.name for field in kind]
    return any(set(record).difference(names) for record in records) or any(
        _loses_within(field.type, [record.get(field.name) for record in records]) for field in kind
    )


def _loses(kind: pa.DataType, found: set[type]) -> bool:
    """Say whether Arrow would drop fractions or times of day, or guess a number's unit."""
    if pa.types.is_integer(kind):
        return not found <= _WHOLE and any(
            issubclass(one, float | Decimal | np.floating) for one in found
        )
    if not pa.types.is_temporal(kind):
        return False
    numbers = any(issubclass(one, int | float | np.number) for one in found)
    return numbers or (pa.types.is_date(kind) and datetime.datetime in found)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        _array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        return False
    return True


def _columns(messages: Sequence[Any], names: list[str], operator: str) -> list[Sequence[Any]]:
    """The values of each column; of messages of one kind without a step of Python for each."""
    kinds = set(map(type, messages))
    if len(names) == 1 and kinds <= _BARE:
        return [messages]
    if len(kinds) == 1 and names:
        kind = kinds.pop()
        keys: Iterable[Any] = names
        take: Callable[[Any], Callable[[Any], Any]] | None = None
        is_record = issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
        if is_record:
            take = attrgetter
        elif (kind is dict or issubclass(kind, tuple)) and set(map(len, messages)) == {len(names)}:
            take, keys = itemgetter, names if kind is dict else range(len(names))
        if take is not None:
            with contextlib.suppress(AttributeError, KeyError):  # reported below, with the message
                return [list(map(take(key), messages)) for key in keys]
    rows = [_row(message, names, operator) for message in messages]
    return list(zip(*rows, strict=True)) if rows else [()] * len(names)


def _row(message: Any, names: list[str], operator: str) -> tuple[Any, ...]:
    if isinstance(message, msgspec.Struct) or dataclasses.is_dataclass(message):
        try:
            return tuple([getattr(message, name) for name in names])
        except AttributeError as error:
            raise _unfit(message, names, operator) from error
    if isinstance(message, Mapping):
        if len(message) != len(names) or any(name not in message for name in names):
            raise _unfit(message, names, operator)
        return tuple([message[name] for name in names])
    if isinstance(message, tuple) and len(message) == len(names):
        return message
    if len(names) == 1 and type(message) in _BARE:
        return (message,)
    raise _unfit(message, names, operator)


def _unfit(message: Any, names: list[str], operator: str) -> FunctionResultError:
    found = "None" if message is None else f"a {type(message).__name__} {message!r}"
    return FunctionResultError(
        f"operator {operator!r} returned {found:.200}; expected a message with columns {names}",
        operator=operator,
    )
