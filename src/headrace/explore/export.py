"""Answers as files: CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import InvalidInputError
from headrace.explore.results import Result, python_rows

FORMS = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the begin of a formula."""


def check_form(form: str) -> str:
    """Return the type of what a form is sent as.

    Raises:
        InvalidInputError: it is not known.
    """
    if form not in FORMS:
        raise InvalidInputError(f"format is {form!r}; expected csv or parquet")
    return FORMS[form]


def export_rows(result: Result, form: str) -> bytes:
    """Return a result as a file; times are UTC.

    Args:
        result: of a query.
        form: ``csv`` or ``parquet``.

    Raises:
        InvalidInputError: another form.
    """
    check_form(form)
    names = unique([one.name for one in result.columns])
    is_time = [one.role == "time" for one in result.columns]
    rows = [
        [_moment(value) if of_time else value for value, of_time in zip(row, is_time, strict=True)]
        for row in result.rows
    ]
    if form == "csv":
        return csv_bytes(names, rows)
    arrays = [pa.array(_one_type([row[at] for row in rows])) for at in range(len(names))]
    return parquet_bytes(pa.table(arrays, names))


def export_table(table: pa.Table, form: str) -> bytes:
    """Return the answer to SQL as a file; see ``export_rows``."""
    check_form(form)
    table = table.rename_columns(unique(table.column_names))
    if form == "parquet":
        return parquet_bytes(table)
    return csv_bytes(table.column_names, python_rows(table))


def unique(names: list[str]) -> list[str]:
    """Return names of which none is there twice."""
    found: list[str] = []
    for name in names:
        shown, number = name, 1
        while shown in found:
            number += 1
            shown = f"{name}_{number}"
        found.append(shown)
    return found


def csv_bytes(names: list[str], rows: list[list[Any]]) -> bytes:
    """Return rows as CSV; text that a spreadsheet would compute gets a quote before it."""
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow([_cell(name) for name in names])
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return held.getvalue().encode()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value


def _moment(value: Any) -> Any:
    return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else value


def _one_type(values: list[Any]) -> list[Any]:
    """Return values of one type: integers beyond 2^53 are text among numbers in a result."""
    if any(isinstance(one, str) for one in values):
        return [None if one is None else str(one) for one in values]
    return values


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(memoryview(sink.getvalue()))
