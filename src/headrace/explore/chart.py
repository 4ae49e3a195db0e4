"""Charts of plain characters, for terminals and logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from rich.cells import cell_len, set_cell_size

HEIGHT = 10
MOST_BARS = 30
LABEL = 28
LEAST_WIDTH = 20


def chart(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Any]], width: int) -> str:
    """Return a chart of an answer; empty where nothing can be drawn of it.

    Over time it is columns, else bars. The first column that is no number names the rows, and the
    first other column of numbers is drawn.

    Args:
        columns: their names, and whether they are times in ms.
        rows: as JSON has them.
        width: of the terminal.
    """
    numbers = [at for at in range(len(columns)) if not columns[at][1] and _is_numeric(rows, at)]
    labels = [at for at in range(len(columns)) if at not in numbers]
    if not rows or not labels:
        return ""
    drawn = next((at for at in numbers if at > labels[0]), numbers[0] if numbers else None)
    if drawn is None:
        return ""
    if columns[labels[0]][1] and len(labels) == 1:
        return _over_time(columns[drawn][0], rows, labels[0], drawn, width)
    return _bars(columns, rows, labels, drawn, width)


def _is_numeric(rows: Sequence[Sequence[Any]], at: int) -> bool:
    values = [row[at] for row in rows if row[at] is not None]
    return bool(values) and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in values
    )


def number_text(value: float | None) -> str:
    """Return a number as charts have it: four digits or so."""
    if value is None:
        return "-"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _text(value: Any, *, is_time: bool) -> str:
    if value is None:
        return "(none)"
    if is_time and isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    # Nothing in a row may move the cursor.
    return "".join(one if one.isprintable() else "?" for one in str(value))


def _bars(
    columns: Sequence[tuple[str, bool]],
    rows: Sequence[Sequence[Any]],
    labels: Sequence[int],
    drawn: int,
    width: int,
) -> str:
    shown = rows[:MOST_BARS]
    names = [" ".join(_text(row[at], is_time=columns[at][1]) for at in labels) for row in shown]
    values = [row[drawn] for row in shown]
    figures = [number_text(one) for one in values]
    room = min(LABEL, max(map(cell_len, names)))
    figure_room = max(map(len, figures))
    bar_room = max(LEAST_WIDTH, width - room - figure_room - 4)
    most = max((abs(one) for one in values if one is not None), default=0) or 1
    lines = [columns[drawn][0]]
    for name, value, figure in zip(names, values, figures, strict=True):
        size = 0 if value is None else round(abs(value) / most * bar_room)
        bar = "#" * max(size, 1 if value else 0)
        lines.append(f"{set_cell_size(name, room)} {figure:>{figure_room}} |{bar}".rstrip())
    if len(rows) > MOST_BARS:
        lines.append(f"... and {len(rows) - MOST_BARS:,} more")
    return "\n".join(lines)


def _over_time(name: str, rows: Sequence[Sequence[Any]], time: int, drawn: int, width: int) -> str:
    points = sorted((row[time], row[drawn]) for row in rows if None not in (row[time], row[drawn]))
    if not points:
        return ""
    low = min(0, *(value for _, value in points))
    high = max(0, *(value for _, value in points))
    high = high if high > low else low + 1
    marks = [number_text(high), number_text((high + low) / 2), number_text(low)]
    room = max(map(len, marks))
    columns = _columns(points, max(LEAST_WIDTH, width - room - 3))
    lines = [name]
    for line in range(HEIGHT, 0, -1):
        level = low + (high - low) * (line - 0.5) / HEIGHT
        mark = {HEIGHT: marks[0], HEIGHT // 2: marks[1], 1: marks[2]}.get(line, "")
        cells = "".join("#" if one is not None and one >= level else " " for one in columns)
        lines.append(f"{mark:>{room}} |{cells}".rstrip())
    begin, end = _text(points[0][0], is_time=True), _text(points[-1][0], is_time=True)
    gap = max(1, len(columns) - len(begin) - len(end))
    lines.append(f"{'':>{room}} +{'-' * len(columns)}")
    lines.append(f"{'':>{room}}  {begin}{' ' * gap}{end}")
    return "\n".join(lines)


def _columns(points: Sequence[tuple[int, float]], width: int) -> list[float | None]:
    """Return the highest value of each column; ``None`` where there is none."""
    begin, end = points[0][0], points[-1][0]
    steps = sorted({b - a for (a, _), (b, _) in pairwise(points) if b > a})
    count = min(width, max(1, math.ceil((end - begin) / steps[0]) + 1)) if steps else 1
    found: list[float | None] = [None] * count
    for at, value in points:
        place = 0 if end == begin else min(count - 1, (at - begin) * count // (end - begin + 1))
        held = found[place]
        found[place] = value if held is None else max(held, value)
    return found
