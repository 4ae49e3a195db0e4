"""Graphs of jobs as pictures for notebooks: an SVG that needs nothing else, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple, Protocol

_WIDTH, _GAP, _ROW = 230, 24, 16
_LETTERS = 34
_SHOWN_ROWS = 3


class Drawable(Protocol):
    """What is drawn: an operator."""

    @property
    def name(self) -> str:
        """Unique in the graph."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of those that it reads."""

    def describe(self) -> list[str]:
        """Return what it does, a line each."""


class _Box(NamedTuple):
    operator: Drawable
    rows: Sequence[str]
    left: int
    top: int

    @property
    def height(self) -> int:
        return _ROW * len(self.rows) + 10


def before(operators: Mapping[str, Drawable], name: str) -> list[Drawable]:
    """Return an operator and all that it reads from, each after the ones it reads."""
    wanted = {name}
    for operator in reversed(list(operators.values())):
        if operator.name in wanted:
            wanted.update(operator.inputs)
    return [operator for operator in operators.values() if operator.name in wanted]


def drawn(operators: Iterable[Drawable], title: str) -> str:
    """Return operators as boxes, and what they read from each other as arrows.

    Args:
        operators: each after the ones it reads.
        title: stands above them.
    """
    boxes = _placed(operators)
    width = max((box.left + _WIDTH for box in boxes.values()), default=_WIDTH)
    height = max((box.top + box.height for box in boxes.values()), default=0)
    lines = [
        f"<div><b>{escape(title)}</b></div>",
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2}" height="{height + 2}" '
        f'viewBox="-1 -1 {width + 2} {height + 2}" font-family="sans-serif" font-size="12" '
        'fill="none" stroke="currentColor">',
    ]
    for box in boxes.values():
        lines += [_arrow(boxes[name], box) for name in box.operator.inputs if name in boxes]
        lines += _drawn(box)
    return "".join([*lines, "</svg>"])


def _placed(operators: Iterable[Drawable]) -> dict[str, _Box]:
    levels: dict[str, int] = {}
    rows: list[list[Drawable]] = []
    for operator in operators:
        level = 1 + max((levels[name] for name in operator.inputs if name in levels), default=-1)
        levels[operator.name] = level
        if level == len(rows):
            rows.append([])
        rows[level].append(operator)
    boxes: dict[str, _Box] = {}
    top = 0
    for row in rows:
        for column, operator in enumerate(row):
            says = [operator.name, *operator.describe()[:_SHOWN_ROWS]]
            boxes[operator.name] = _Box(operator, says, column * (_WIDTH + _GAP), top)
        top += max(boxes[operator.name].height for operator in row) + _GAP
    return boxes


def _drawn(box: _Box) -> list[str]:
    name = escape(box.operator.name)
    shape = f'<rect x="{box.left}" y="{box.top}" width="{_WIDTH}" height="{box.height}" rx="4"/>'
    texts = []
    for number, row in enumerate(box.rows):
        text = row if len(row) <= _LETTERS else f"{row[: _LETTERS - 1]}…"
        weight = ' font-weight="bold"' if number == 0 else ""
        texts.append(
            f'<text x="{box.left + 8}" y="{box.top + _ROW * (number + 1)}" fill="currentColor" '
            f'stroke="none"{weight}>{escape(text)}</text>'
        )
    return [f"<g><title>{name}</title>", shape, *texts, "</g>"]


def _arrow(source: _Box, target: _Box) -> str:
    x1, y1 = source.left + _WIDTH // 2, source.top + source.height
    x2, y2 = target.left + _WIDTH // 2, target.top
    head = f"M{x2 - 4},{y2 - 6} L{x2},{y2} L{x2 + 4},{y2 - 6}"
    return f'<path d="M{x1},{y1} L{x2},{y2} {head}"/>'
