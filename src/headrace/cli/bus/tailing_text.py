"""Prints the rows of ``bus tail``: as a table, as lines, as JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import msgspec
import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headrace.bus.spec import StreamSpec
from headrace.cli.bus.tailing import Tailed
from headrace.cli.words import time_text


class Rows(Protocol):
    """What prints groups of rows."""

    def show(self, rows: Sequence[Tailed]) -> None:
        """Print the next rows."""
        ...


class JsonRows:
    """One object a line: partition, offset, row; times in ISO 8601, bytes in base64."""

    def show(self, rows: Sequence[Tailed]) -> None:
        """Print the next rows."""
        for row in rows:
            line = {"partition": row.partition, "offset": row.offset, "row": row.row}
            typer.echo(msgspec.json.encode(line).decode())


class LineRows:
    """One line a row, for pipes, for following, and for more columns than fit."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec

    def show(self, rows: Sequence[Tailed]) -> None:
        """Print the next rows."""
        for row in rows:
            typer.echo(row_line(row, self._spec))


def row_line(row: Tailed, spec: StreamSpec) -> str:
    """Return ``partition/offset`` and ``column=value`` for each column."""
    values = (f"{name}={cell(value, name, spec)}" for name, value in row.row.items())
    return f"{row.partition}/{row.offset}  " + "  ".join(values)


class TableRows:
    """A table, or lines where a table would have to cut values."""

    def __init__(self, spec: StreamSpec, console: Console | None = None) -> None:
        self._spec = spec
        self._console = console or Console(highlight=False)

    def show(self, rows: Sequence[Tailed]) -> None:
        """Print the next rows."""
        if not rows:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("at", style="dim", no_wrap=True)
        for field in self._spec.schema:
            is_number = isinstance(rows[0].row[field.name], int | float | Decimal)
            table.add_column(field.name, justify="right" if is_number else "left", no_wrap=True)
        for row in rows:
            cells = (Text(cell(row.row[f.name], f.name, self._spec)) for f in self._spec.schema)
            table.add_row(f"{row.partition}/{row.offset}", *cells)
        options = self._console.options.update(max_width=10_000)
        if Measurement.get(self._console, options, table).maximum <= self._console.width:
            self._console.print(table)
        else:
            for row in rows:
                self._console.print(Text(row_line(row, self._spec)))


def cell(value: Any, name: str, spec: StreamSpec) -> str:
    """Return a value as text; integer event times as times."""
    if name == spec.time and isinstance(value, int):
        return time_text(value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S") + (
            f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
        )
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, str | int | Decimal | date | timedelta):
        return str(value)
    return msgspec.json.encode(value).decode()
