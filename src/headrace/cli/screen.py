"""What commands print: facts and tables for people, objects for programs.

Values are shown as they are: what looks like markup of the terminal in a name is part of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_NO_EDGE = 10_000
_FACT = 12


def show_json(*values: Any) -> None:
    """Print each value as one line of JSON."""
    for value in values:
        typer.echo(json.dumps(value))


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, one a line."""
    for name, value in facts:
        typer.echo(f"{name:<{_FACT}} {value}")


def new_table(titles: Sequence[str], right: Collection[str] = ()) -> Table:
    """Return an empty table; the columns in ``right`` hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        justify: Any = "right" if title in right else "left"
        table.add_column(Text(title), justify=justify, no_wrap=True)
    return table


def fits(table: Table, console: Console) -> bool:
    """Say whether a terminal is wide enough to show a table without a cut."""
    options = console.options.update(max_width=_NO_EDGE)
    return Measurement.get(console, options, table).maximum <= console.width


def show_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    console: Console | None = None,
) -> None:
    """Print rows as a table; where a terminal would have to cut it, each row as a block of lines.

    Args:
        titles: of the columns.
        rows: a text for each column.
        right: titles of the columns that hold numbers.
        console: of the standard output when left out.
    """
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = _NO_EDGE  # a pipe has no edge at which values may be cut
    held = [[Text(value) for value in row] for row in rows]
    table = new_table(titles, right)
    for row in held:
        table.add_row(*row)
    if fits(table, console):
        console.print(table)
        return
    width = max(map(len, titles))
    for number, row in enumerate(held):
        if number:
            console.print()
        for title, value in zip(titles, row, strict=True):
            console.print(Text.assemble((f"{title:<{width}}  ", "bold"), value))
