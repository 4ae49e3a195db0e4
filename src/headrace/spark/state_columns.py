"""The columns of states of PySpark's functions: what a store keeps, and what Spark reads."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from pyspark.sql import types
from pyspark.sql.types import DataType, Row, StructType

from headrace.errors import InvalidInputError

_PLAIN: dict[type[DataType], Any] = {
    types.BooleanType: bool,
    types.ByteType: int,
    types.ShortType: int,
    types.IntegerType: int,
    types.LongType: int,
    types.FloatType: float,
    types.DoubleType: float,
    types.StringType: str,
    types.BinaryType: bytes,
    types.DateType: datetime.date,
    types.TimestampType: datetime.datetime,
    types.TimestampNTZType: datetime.datetime,
    types.DecimalType: decimal.Decimal,
}


class StateTypeError(InvalidInputError):
    """A state of a PySpark function has a type or a value that its declaration does not allow.

    Declare the columns that it has, or update it with a tuple of those.
    """

    code = "HR219"
    move = "declare the columns that the state has, or update it with a tuple of these"


def value_type(kind: DataType) -> Any:
    """Return the Python type that values of a type of Spark are kept as.

    Raises:
        StateTypeError: a type that states cannot have here.
    """
    if isinstance(kind, StructType):
        fields = tuple(value_type(field.dataType) | None for field in kind.fields)
        return tuple[fields]  # type: ignore[valid-type]
    if isinstance(kind, types.ArrayType):
        return list[value_type(kind.elementType) | None]  # type: ignore[misc]
    if isinstance(kind, types.MapType):
        return dict[value_type(kind.keyType), value_type(kind.valueType) | None]  # type: ignore[misc]
    found = _PLAIN.get(type(kind))
    if found is None:
        raise StateTypeError(
            f"a state has the type {kind.simpleString()}, which a store cannot keep; expected one "
            f"of {sorted(one.typeName() for one in _PLAIN)}, or structs, arrays and maps of these"
        )
    return found


def plain(value: Any) -> Any:
    """Return a value without types of NumPy, pandas and Spark."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pd.Timestamp | pd.Timedelta):
        return value.to_pydatetime() if isinstance(value, pd.Timestamp) else value.to_pytimedelta()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list | np.ndarray):
        return list(map(plain, value))
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    return value


Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class StateColumns:
    """The columns of a state, as its store keeps them and as Spark reads them.

    A store has moments of UTC for times. Spark reads times without a zone, those that are moments
    in the zone of the process, and structs in columns as rows.

    Args:
        kind: the type of a tuple of them.
        keeps: makes values of a tuple what the store has; ``None``: they are so already.
        reads: makes them Spark's again; the same.
    """

    kind: Any
    keeps: Convert | None
    reads: Convert | None

    @classmethod
    def of(cls, schema: StructType) -> StateColumns:
        """Return those of a schema.

        Raises:
            StateTypeError: a type that states cannot have here.
        """
        both = (_columns_converter(schema, is_read=is_read) for is_read in (False, True))
        return cls(value_type(schema), *both)

    def stored(self, state: str, value: Any) -> tuple[Any, ...]:
        """Return what a state is updated with as its store keeps it.

        Raises:
            StateTypeError: it does not fit the declared columns.
        """
        try:
            found: tuple[Any, ...] = msgspec.convert(plain(value), self.kind, strict=True)
        except msgspec.ValidationError as error:
            raise StateTypeError(
                f"state {state!r} was updated with {value!r:.200}, and its columns are declared "
                f"otherwise: {error}"
            ) from error
        return found if self.keeps is None else self.keeps(found)

    def seen(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what a store keeps as Spark reads it."""
        return value if self.reads is None else self.reads(value)


def _columns_converter(schema: StructType, *, is_read: bool) -> Convert | None:
    """Return what converts a tuple of columns; ``None``: they stay as they are."""
    each = [_converter(field.dataType, is_read=is_read) for field in schema.fields]
    if not any(each):
        return None
    return lambda values: tuple(map(_converted, each, values))


def _converted(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _converter(kind: DataType, *, is_read: bool) -> Convert | None:
    """Return what converts a value that is not null; ``None``: it stays as it is."""
    if isinstance(kind, types.TimestampType):
        return local_time if is_read else _moment
    if isinstance(kind, types.TimestampNTZType):
        return (lambda at: at.replace(tzinfo=None)) if is_read else _as_utc
    if isinstance(kind, StructType):
        columns = _columns_converter(kind, is_read=is_read)
        if not is_read:
            return columns
        row = Row(*kind.names)
        return lambda values: row(*(values if columns is None else columns(values)))
    if isinstance(kind, types.ArrayType):
        one = _converter(kind.elementType, is_read=is_read)
        return None if one is None else lambda values: [_converted(one, v) for v in values]
    if isinstance(kind, types.MapType):
        by, one = (_converter(of, is_read=is_read) for of in (kind.keyType, kind.valueType))
        if by is None and one is None:
            return None
        return lambda values: {_converted(by, k): _converted(one, v) for k, v in values.items()}
    return None


def local_time(value: datetime.datetime) -> datetime.datetime:
    """Return a moment as Spark shows it in Python: without a zone, in that of the process."""
    return _as_utc(value).astimezone().replace(tzinfo=None)


def _as_utc(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)


def _moment(value: datetime.datetime) -> datetime.datetime:
    return value.astimezone(datetime.UTC)  # which takes one without a zone for the process's
