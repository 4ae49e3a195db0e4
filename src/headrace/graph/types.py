"""From what users write for a type to an Arrow type or schema in stored form.

A schema may be given as Arrow or Polars schema, a dict, a msgspec struct, dataclass,
TypedDict or NamedTuple class, or left to the return annotation of a function.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.records.schema import normalise_schema, normalise_type

_PLAIN: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", tz="UTC"),
    datetime.date: pa.date32(),
    datetime.timedelta: pa.duration("us"),
}
_LISTS = (list, set, frozenset, collections.abc.Sequence)
_MANY = (
    list,
    tuple,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.Collection,
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Generator,
)


def arrow_type(kind: Any) -> pa.DataType:
    """Return the stored Arrow type of a Python, Polars or Arrow type.

    Raises:
        InvalidInputError: a type without one; names it.
    """
    if isinstance(kind, pa.DataType):
        return normalise_type(kind)
    if isinstance(kind, pl.DataType) or (isinstance(kind, type) and issubclass(kind, pl.DataType)):
        return normalise_type(pl.Series([], dtype=kind).to_arrow().type)
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        given = [extra for extra in arguments[1:] if isinstance(extra, pa.DataType)]
        return arrow_type(given[0] if given else arguments[0])
    if origin in (typing.Union, types.UnionType):
        options = [option for option in arguments if option is not type(None)]
        if len(options) == 1:
            return arrow_type(options[0])
    if origin is typing.Literal:
        found = {type(value) for value in arguments if value is not None}
        if len(found) == 1:
            return arrow_type(found.pop())
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        found = {type(member.value) for member in kind}
        if len(found) == 1:
            return arrow_type(found.pop())
    if origin in _LISTS and len(arguments) == 1:
        return pa.list_(arrow_type(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return pa.list_(arrow_type(arguments[0]))
    if isinstance(kind, typing.NewType):
        return arrow_type(kind.__supertype__)
    if is_record(kind):
        return pa.struct(list(_record_schema(kind)))
    hint = " such as pa.decimal128(18, 2)" if kind is decimal.Decimal else ""
    raise InvalidInputError(
        f"{_name(kind)} has no column type; use int, float, str, bytes, bool, a date, datetime "
        f"or timedelta, an enum, a list of these, a record class, or an Arrow type{hint}"
    )


def to_schema(returns: Any) -> pa.Schema:
    """Return the stored schema of what users write for ``returns`` or ``schema``.

    Raises:
        InvalidInputError: it describes no record, or a column has no stored type.
    """
    if isinstance(returns, pa.Schema):
        return normalise_schema(returns)
    if isinstance(returns, Mapping):
        bad = [name for name in returns if not isinstance(name, str)]
        if bad:
            raise InvalidInputError(f"column names must be strings; found {bad}")
        return pa.schema([(name, _column(name, kind)) for name, kind in returns.items()])
    if is_record(returns):
        return _record_schema(returns)
    raise InvalidInputError(
        f"{_name(returns)} describes no record; give a dict of column names and types, an Arrow "
        "schema, or a msgspec struct, dataclass or TypedDict class"
    )


def returned_schema(
    function: Callable[..., Any], names: Mapping[str, Any], *, many: bool = False
) -> pa.Schema | None:
    """Return the schema in a function's return annotation; ``None`` when it has none.

    Args:
        function: the user's; a callable object is read through its ``__call__``.
        names: local names at the user's line, to resolve annotations kept as text.
        many: whether it returns an iterable of records, ``Iterable[T]`` and the like.

    Raises:
        InvalidInputError: the annotation cannot be resolved or describes no record.
    """
    plain = isinstance(function, type) or hasattr(function, "__code__")
    target = function if plain else getattr(function, "__call__", function)  # noqa: B004
    raw = getattr(target, "__annotations__", {}).get("return")
    if raw is None or isinstance(function, type):
        return to_schema(function) if is_record(function) else None
    try:
        hints = typing.get_type_hints(target, localns=dict(names), include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidInputError(f"its annotation {raw!r} cannot be resolved: {error}") from error
    kind = hints["return"]
    if kind in (None, type(None), Any):
        return None
    if many:
        arguments = typing.get_args(kind)
        if typing.get_origin(kind) not in _MANY or not arguments:
            raise InvalidInputError(
                f"its annotation {_name(kind)} is no iterable of records; write Iterable[T]"
            )
        kind = arguments[0]
    return None if kind in (dict, tuple, Any) or _is_bare(kind) else to_schema(kind)


def _is_bare(kind: Any) -> bool:
    """A dict or tuple annotation that names no columns."""
    return typing.get_origin(kind) in (dict, tuple, collections.abc.Mapping)


def is_record(kind: Any) -> bool:
    """Say whether it is a dataclass, msgspec struct, TypedDict or NamedTuple class."""
    if not isinstance(kind, type):
        return False
    if issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind):
        return True
    return typing.is_typeddict(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _record_schema(kind: Any) -> pa.Schema:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidInputError(f"{_name(kind)}: a field's type is unknown: {error}") from error
    return pa.schema([(name, _column(name, hint)) for name, hint in hints.items()])


def _column(name: str, kind: Any) -> pa.DataType:
    try:
        return arrow_type(kind)
    except InvalidInputError as error:
        raise InvalidInputError(f"column {name!r}: {error.message}") from error


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else repr(kind)


def polars_type(kind: pa.DataType) -> pl.DataType:
    """Return the Polars type of a stored Arrow type."""
    return _polars_type(kind)


def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the Polars form of a stored schema."""
    return pl.Schema({field.name: _polars_type(field.type) for field in schema})


@lru_cache(256)
def _polars_type(kind: pa.DataType) -> pl.DataType:
    frame = pl.from_arrow(pa.schema([("x", kind)]).empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.schema["x"]


def arrow_schema(columns: Iterable[tuple[str, pl.DataType]]) -> pa.Schema:
    """Return the stored form of a Polars schema.

    Raises:
        InvalidInputError: a column of a type that has no stored form.
    """
    fields = []
    for name, kind in columns:
        try:
            fields.append((name, normalise_type(pl.Series([], dtype=kind).to_arrow().type)))
        except (pa.ArrowInvalid, pl.exceptions.PolarsError, InvalidInputError) as error:
            raise InvalidInputError(
                f"column {name!r} of type {kind} cannot be stored; cast it to a plain type"
            ) from error
    return pa.schema(fields)
