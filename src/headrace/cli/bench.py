"""``headrace bench``: measurements that users can repeat."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from headrace.cli.options import Home, Json, settings_of

app = typer.Typer(name="bench", help="Measure this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure this machine."""


@app.command()
def readwrite(
    rows: Annotated[int, typer.Option(min=1, help="Messages.")] = 2_000_000,
    ids: Annotated[int, typer.Option(min=1, help="Different keys.")] = 1_000_000,
    store: Annotated[
        Literal["rocksdb", "memory"], typer.Option(help="Kind of the store.")
    ] = "rocksdb",
    path: Annotated[
        Literal["message", "batch"],
        typer.Option(help="A Python function per message, or an aggregate per batch."),
    ] = "message",
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of the keyed stage.")] = 4,
    compare: Annotated[
        Literal["pyspark"] | None,
        typer.Option(help="Count the same with PySpark's own ways too.", show_default=False),
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Count messages per id, exactly once: the paper's ReadWrite."""
    from headrace.bench.readwrite import main

    result = main(
        {
            "rows": rows,
            "ids": ids,
            "store": store,
            "path": path,
            "tasks": tasks,
            "compare": compare,
            "home": settings_of(home).home,
        }
    )
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, value in result.items():
        typer.echo(f"{name:<16} {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items())
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.4g}"
    return str(value)
