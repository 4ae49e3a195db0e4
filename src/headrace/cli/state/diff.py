"""What changed in a store between two epochs: added, removed, changed with both values."""

from __future__ import annotations

from collections import Counter

import typer

from headrace.cli.screen import show_table
from headrace.cli.state.text import cell, json_row
from headrace.coordinator.inspection.store_view import Change, StoreView


def show_changes(before: StoreView, after: StoreView, *, as_json: bool) -> dict[str, int]:
    """Print the changes as they are found; returns how many of each kind there are.

    A changed row is shown twice in a table, as it was and as it is; as JSON it is one object
    with ``before`` and ``after``.
    """
    counts: Counter[str] = Counter()
    for changes in after.changes_since(before):
        counts.update(change.kind for change in changes)
        if as_json:
            for change in changes:
                typer.echo(_line(change))
            continue
        rows = [row for change in changes for row in _rows(change)]
        names = ["", *(changes[0].before or changes[0].after or {})]
        show_table(names, rows)
    return {kind: counts[kind] for kind in ("added", "removed", "changed")}


def _rows(change: Change) -> list[list[str]]:
    marks = {"added": ("", "+"), "removed": ("-", ""), "changed": ("<", ">")}[change.kind]
    sides = zip(marks, (change.before, change.after), strict=True)
    return [[mark, *map(cell, row.values())] for mark, row in sides if row is not None]


def _line(change: Change) -> str:
    before = "null" if change.before is None else json_row(change.before)
    after = "null" if change.after is None else json_row(change.after)
    return f'{{"change": "{change.kind}", "before": {before}, "after": {after}}}'
