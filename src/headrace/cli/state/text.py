"""Rows of stores on the screen: a table in a terminal, lines of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import typer

from headrace.cli.screen import show_table
from headrace.cli.words import size_text
from headrace.state.value_types import json_text, plain

TABLE_ROWS = 1000
"""Rows that a table is made of; what follows gets another table below."""


def json_row(row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON: moments as ISO 8601, bytes as base64."""
    return json.dumps({name: plain(_pairs(value)) for name, value in row.items()})


def _pairs(value: Any) -> Any:
    """A map column comes as pairs; show it as an object."""
    if isinstance(value, list) and value and all(isinstance(i, tuple) for i in value):
        return dict(value)
    return value


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    shown = plain(_pairs(value))
    return shown if isinstance(shown, str) else json_text(shown)


def show_batches(batches: Iterable[pa.RecordBatch], *, as_json: bool) -> int:
    """Print rows as they come; returns how many."""
    total = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, TABLE_ROWS):
            rows = batch.slice(begin, TABLE_ROWS).to_pylist()
            if as_json:
                for row in rows:
                    typer.echo(json_row(row))
            else:
                show_table(batch.schema.names, [[cell(v) for v in row.values()] for row in rows])
        total += batch.num_rows
    return total


def show_stores(job: str, head: Mapping[str, Any], stores: Sequence[Mapping[str, Any]]) -> None:
    """Print the stores of a job, by stage."""
    typer.echo(
        f"job {job}, epoch {head['epoch']}; kept are epochs {head['oldest']} to {head['newest']}"
    )
    numbers = ("tasks", "entries", "bytes", "files", "changed")
    rows = [
        [
            store["stage"],
            store["store"],
            store["kind"],
            store["form"],
            str(store["tasks"]),
            ("" if store["exact"] else "≤ ") + f"{store['entries']:,}",
            size_text(store["bytes"]),
            f"{store['snapshots']} + {store['segments']}",
            "-" if store["changed"] is None else str(store["changed"]),
        ]
        for store in stores
    ]
    titles = ("stage", "store", "kind", "holds", *numbers)
    show_table(titles, rows, right=numbers, spare=("files", "holds", "changed", "stage"))
