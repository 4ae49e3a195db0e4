"""Rows as PostgreSQL's COPY reads them, and the types of columns that hold each of ours."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.errors import InvalidInputError
from headrace.files import Bytes

_YEAR_1_S, _YEAR_10000_S = -62_135_596_800, 253_402_300_800
_DAY_S = 86_400
_INTEGERS = ("smallint", "integer", "bigint", "numeric")


def column_types(kind: pa.DataType) -> tuple[str, ...]:
    """Return the server's types that hold every value of a type, the first is for new tables.

    A decimal's has its digits; empty: there is none.
    """
    types = pa.types
    if types.is_integer(kind):
        bits = kind.bit_width + (1 if types.is_unsigned_integer(kind) else 0)
        return _INTEGERS[0 if bits <= 16 else 1 if bits <= 32 else 2 if bits <= 64 else 3 :]
    if types.is_decimal(kind):
        return (f"numeric({kind.precision},{kind.scale})", "numeric")
    if types.is_nested(kind):
        return ("jsonb", "json", "text")
    for test, names in (
        (types.is_float32, ("real", "double precision")),
        (types.is_float64, ("double precision",)),
        (types.is_boolean, ("boolean",)),
        (types.is_string, ("text", "character varying")),
        (types.is_binary, ("bytea",)),
        (types.is_timestamp, ("timestamp with time zone",)),
        (types.is_date32, ("date",)),
    ):
        if test(kind):
            return names
    return ()


def encode_rows(table: pa.Table, name: str) -> list[Bytes]:
    """Return rows in COPY's form ``csv``, columns in their order.

    Args:
        table: of types that ``column_types`` knows.
        name: of the server's table, for errors.

    Raises:
        InvalidInputError: a value that the server would refuse.
    """
    columns = [
        _plain(table.column(at), table.schema.field(at), name) for at in range(len(table.schema))
    ]
    sink = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False)
    csv.write_csv(pa.table(columns, names=table.schema.names), sink, options)
    return [sink.getvalue()]


def _plain(column: pa.ChunkedArray, field: pa.Field, name: str) -> pa.ChunkedArray:
    kind = field.type
    if pa.types.is_nested(kind):
        column = pa.chunked_array([_json(column)])
        _refuse(pc.match_substring(column, "\\u0000"), field, name, "holds the character NUL")
    elif pa.types.is_string(kind):
        _refuse(pc.match_substring(column, "\0"), field, name, "holds the character NUL")
    elif pa.types.is_binary(kind):
        column = _hex(column)
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    elif pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        each = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
        unit = each[kind.unit] if pa.types.is_timestamp(kind) else 1 / _DAY_S
        whole = column.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
        outside = pc.or_(
            pc.less(whole, int(_YEAR_1_S * unit)),
            pc.greater_equal(whole, int(_YEAR_10000_S * unit)),
        )
        _refuse(outside, field, name, "is outside the years 1 to 9999")
    return column


def _refuse(wrong: pa.ChunkedArray, field: pa.Field, name: str, what: str) -> None:
    if pc.any(wrong).as_py():
        at = pc.index(wrong, True).as_py()
        raise InvalidInputError(
            f"column {field.name!r} of row {at} of what is sent to table {name} {what}, which "
            "PostgreSQL cannot keep; filter such rows, or change them"
        )


def _json(column: pa.ChunkedArray) -> pa.Array:
    def text(value: Any) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    return pa.array([text(value) for value in column.to_pylist()], pa.string())


def _hex(column: pa.ChunkedArray) -> pa.ChunkedArray:
    values = pl.from_arrow(column)
    assert isinstance(values, pl.Series)
    return pa.chunked_array([("\\x" + values.bin.encode("hex")).to_arrow().cast(pa.string())])
