"""What a query is answered with: columns with roles, and rows as JSON has them."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa

from headrace.durations import moment_ms
from headrace.records.schema import type_text

Role = Literal["time", "group", "metric", "bucket_low", "bucket_high", "value"]
SAFE = 2**53
"""Integers beyond it are text: browsers cannot hold them."""


class ResultColumn(msgspec.Struct, frozen=True):
    """A column of a result, and what it is for."""

    name: str
    type: str
    role: Role


class Compared(msgspec.Struct, frozen=True):
    """The same at another time."""

    from_ms: int
    to_ms: int
    rows: list[list[Any]]


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a query; ``complete`` is false where rows wait that are not read yet."""

    view: str
    columns: list[ResultColumn]
    rows: list[list[Any]]
    from_ms: int
    to_ms: int
    sampled: bool
    rows_scanned: int
    rows_total: int
    took_ms: int
    as_of_ms: int
    complete: bool
    bucket_ms: int | None = None
    compare: Compared | None = None
    other_groups: int | None = None
    other_label: str | None = None
    warning: str | None = None

    def encoded(self) -> bytes:
        """Return it as JSON, with all fields that are always there."""
        plain = {
            "sampled": self.sampled,
            "rows_scanned": self.rows_scanned,
            "complete": self.complete,
            **msgspec.to_builtins(self),
        }
        return msgspec.json.encode(plain)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: times in ms, bytes in hexadecimal, what is nested as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -SAFE <= value <= SAFE else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        if value == value.to_integral_value():
            return plain(int(value))
        return float(value)
    if isinstance(value, datetime.datetime):
        return moment_ms(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=_inner, ensure_ascii=False)
    return str(value)


def _inner(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


OUT_OF_RANGE = "out of range"
"""Stands for a time that Python has none of: before the year 1, after 9999, infinite."""


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; a time that is out of range is text that says so."""
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        found = [_python_value(one) for one in column]
    return found


def _python_value(one: pa.Scalar) -> Any:
    try:
        return one.as_py()
    except (OverflowError, ValueError):
        return OUT_OF_RANGE


def python_rows(table: pa.Table) -> list[list[Any]]:
    """Return the rows of a table; see ``python_values``."""
    columns = [python_values(column) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else []


def plain_rows(table: pa.Table) -> list[list[Any]]:
    """Return the rows of a table as JSON has them."""
    return [[plain(value) for value in row] for row in python_rows(table)]


def shown_type(kind: pa.DataType) -> str:
    """Return a type as results name it."""
    if pa.types.is_decimal(kind) and not kind.scale:
        return "int64"
    return "null" if pa.types.is_null(kind) else _text(kind)


def _text(kind: pa.DataType) -> str:
    try:
        return type_text(kind)
    except Exception:  # noqa: BLE001 - a type that only DuckDB has
        return str(kind)


def value_columns(schema: Iterable[pa.Field]) -> list[ResultColumn]:
    """Return the columns of rows that are no groups."""
    return [ResultColumn(field.name, shown_type(field.type), "value") for field in schema]


class SqlRows(NamedTuple):
    """The answer to SQL; ``most`` rows count, and one more says that there are more."""

    table: pa.Table
    most: int
    total: int
    is_sampled: bool
    took_ms: int

    @property
    def shown(self) -> pa.Table:
        """The rows that count."""
        return self.table.slice(0, self.most)

    @property
    def warning(self) -> str | None:
        """What to know about them."""
        said = []
        if self.table.num_rows > self.most:
            said.append(f"there are more rows: these are the first {self.most:,}")
        if self.is_sampled:
            said.append("rows are sampled: SUM(_sample_rate) counts all, COUNT(*) those kept")
        return "; ".join(said) or None


def sql_result(found: SqlRows, now_ms: int) -> Result:
    """Return the answer to SQL as a table."""
    rows = found.shown
    return Result(
        "table",
        value_columns(rows.schema),
        plain_rows(rows),
        0,
        now_ms,
        found.is_sampled,
        found.total,
        found.total,
        found.took_ms,
        now_ms,
        found.table.num_rows <= found.most,
        warning=found.warning,
    )
