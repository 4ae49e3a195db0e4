"""What commands print: facts, tables and figures for people, objects for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS


def time_text(ms: int | None, *, with_ms: bool = True) -> str:
    """Return an event time as UTC; ``-`` when there is none or it is no time of the calendar."""
    if ms is None or not MIN_EVENT_TIME_MS <= ms < MAX_EVENT_TIME_MS:
        return "-"
    stamp = datetime.fromtimestamp(ms // 1000, UTC).replace(tzinfo=None)
    part = f".{ms % 1000:03d}" if with_ms and ms % 1000 else ""
    return f"{stamp.isoformat(sep=' ')}{part}"


def size_text(size: float) -> str:
    """Return a number of bytes with three digits or fewer."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def rate_text(rows: float, seconds: float) -> str:
    """Return rows per second; ``-`` when no time has passed."""
    return f"{rows / seconds:,.0f} rows/s" if seconds > 0 else "-"


def seconds_text(seconds: float) -> str:
    """Return a duration: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``10 min``, ``2 h 4 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    large, small = ("min", "s") if whole < 3600 else ("h", "min")
    count, rest = divmod(whole if whole < 3600 else whole // 60, 60)
    return f"{count} {large} {rest} {small}" if rest else f"{count} {large}"


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


_NO_EDGE = 10_000
_FACT = 12


class Output(Console):
    """The standard output of a command, which styles nothing by itself."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Raise, for ``main`` knows how a command ends that nobody reads."""
        raise BrokenPipeError


def terminal_width() -> int:
    """Return how wide the terminal is; a pipe has no edge."""
    console = Output()
    return console.width if console.is_terminal else _NO_EDGE


def show_json(*values: Any) -> None:
    """Print each value as one line of JSON."""
    for value in values:
        typer.echo(json.dumps(value))


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, one a line; in a terminal long ones are wrapped."""
    for name, value in facts:
        show_wrapped(f"{name:<{_FACT}} ", value)


def show_wrapped(head: str, text: str, style: str = "") -> None:
    """Print a text that continues below its own begin where a terminal has no more room.

    Args:
        head: stands before its first line.
        text: what is wrapped.
        style: of the head.
    """
    console = Output()
    room = console.width - len(head)
    is_short = not console.is_terminal or len(text) <= room or room < _FACT
    lines = (
        [text]
        if is_short
        else textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False)
    )
    console.print(Text(head, style=style).append(lines[0], style="not bold"), soft_wrap=True)
    for line in lines[1:]:
        console.print(Text(" " * len(head) + line), soft_wrap=True)


def show_line(text: str) -> None:
    """Print a sentence, wrapped between its words in a terminal."""
    show_wrapped("", text)


def show_answer(facts: Any, line: str, *, as_json: bool) -> None:
    """Print what a command has done: as JSON, or as a sentence."""
    if as_json:
        show_json(facts)
    else:
        show_line(line)


def fits(table: Table, console: Console) -> bool:
    """Say whether a terminal is wide enough to show a table without a cut."""
    options = console.options.update(max_width=_NO_EDGE)
    return Measurement.get(console, options, table).maximum <= console.width


def show_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    spare: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Print rows as a table that a terminal shows without a cut.

    Where it is too wide, first the columns that can be spared are left out; where that is not
    enough, each row is a block of lines.

    Args:
        titles: of the columns.
        rows: a text for each column.
        right: titles of the columns that hold numbers.
        spare: titles of the columns that can be left out, in this order.
        console: of the standard output when left out.
    """
    console = console or Output()
    held = [dict(zip(titles, row, strict=True)) for row in rows]
    if not console.is_terminal:
        _show_lines(titles, held, right)
        return
    for left_out in range(len(spare) + 1):
        shown = [title for title in titles if title not in spare[:left_out]]
        table = new_table(shown, right)
        for row in held:
            table.add_row(*(Text(row[title]) for title in shown))
        if fits(table, console):
            console.print(table)
            return
    width = max(map(len, titles))
    for number, row in enumerate(held):
        if number:
            console.print()
        for title, value in row.items():
            console.print(Text.assemble((f"{title:<{width}}  ", "bold"), value))


def _show_lines(
    titles: Sequence[str], rows: Sequence[dict[str, str]], right: Collection[str]
) -> None:
    """Print a table for a pipe, which has no edge at which values may be cut, nor one to fill."""
    lines = [dict(zip(titles, titles, strict=True)), *rows]
    widths = {title: max(cell_len(line[title]) for line in lines) for title in titles}
    for line in lines:
        cells = []
        for title, value in line.items():
            room = " " * (widths[title] - cell_len(value))
            cells.append(room + value if title in right else value + room)
        typer.echo("  ".join(cells).rstrip())


def new_table(titles: Sequence[str], right: Collection[str] = ()) -> Table:
    """Return an empty table; the columns in ``right`` hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        justify: Any = "right" if title in right else "left"
        table.add_column(Text(title), justify=justify, no_wrap=True)
    return table
