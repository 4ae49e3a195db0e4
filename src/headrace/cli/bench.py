"""``headrace bench``: measurements that users can repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.cli.options import Home, Json, settings_of

app = typer.Typer(name="bench", help="Measure this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure this machine."""


@app.command()
def readwrite(  # noqa: PLR0913, PLR0917 - one for each option
    rows: Annotated[int, typer.Option(min=1, help="Messages.")] = 4_000_000,
    ids: Annotated[int, typer.Option(min=1, help="Different keys.")] = 1_000_000,
    store: Annotated[
        Literal["columnar", "rocksdb", "memory"] | None,
        typer.Option(help="Kind of the store; by default that of the path.", show_default=False),
    ] = None,
    path: Annotated[
        Literal["message", "batch"],
        typer.Option(help="A Python function per message, or an aggregate per batch."),
    ] = "message",
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of the keyed stage.")] = 4,
    key: Annotated[Literal["int", "string"], typer.Option(help="Type of the ids.")] = "int",
    whole: Annotated[
        bool, typer.Option("--whole", help="Send whole messages by key, not only the id.")
    ] = False,
    epoch_rows: Annotated[int, typer.Option(min=1, help="Messages of an epoch.")] = 1_000_000,
    compare: Annotated[
        Literal["pyspark"] | None,
        typer.Option(help="Count the same with PySpark's own ways too.", show_default=False),
    ] = None,
    loop: Annotated[
        Literal["direct", "query"],
        typer.Option(help="Drive epochs by a loop, or by a Structured Streaming query."),
    ] = "direct",
    master: Annotated[
        str, typer.Option(help="Of Spark; local-cluster[2,1,2048]: two executors of one core.")
    ] = "local[2]",
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
            "key": key,
            "whole": whole,
            "epoch_rows": epoch_rows,
            "compare": compare,
            "loop": loop,
            "master": master,
            "home": settings_of(home).home,
        }
    )
    _print(result, as_json)


@app.command()
def idle(
    loop: Annotated[
        Literal["direct", "query"],
        typer.Option(help="Empty epochs in a loop, or one-record epochs under a query."),
    ] = "direct",
    epochs: Annotated[int, typer.Option(min=2, help="How many are measured.")] = 50,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of the keyed stage.")] = 4,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Time epochs that have nothing, or one record, to do."""
    from headrace.bench.idle import main

    options = {"loop": loop, "epochs": epochs, "tasks": tasks, "home": settings_of(home).home}
    _print(main(options), as_json)


@app.command()
def tasks(
    rows: Annotated[int, typer.Option(min=1, help="Messages.")] = 4_000_000,
    path: Annotated[
        Literal["message", "batch"],
        typer.Option(help="A Python function per message, or an aggregate per batch."),
    ] = "message",
    few: Annotated[int, typer.Option(min=1, help="Tasks of the first run.")] = 4,
    many: Annotated[int, typer.Option(min=1, help="Tasks of the second run.")] = 64,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Count the same messages with few tasks and with many."""
    from headrace.bench.idle import compare_tasks

    options = {
        "rows": rows,
        "path": path,
        "few": few,
        "many": many,
        "home": settings_of(home).home,
    }
    _print(compare_tasks(options), as_json)


@app.command()
def stores(
    quick: Annotated[
        bool, typer.Option("--quick", help="A look in a minute instead of a measurement.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this store; as often as needed.")
    ] = None,
    workload: Annotated[
        Literal["readwrite", "readonly"] | None, typer.Option(help="Only this job.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the JSON and the figures.", show_default=False)
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Compare all kinds of stores: the paper's Figures 8, 9 and 10."""
    from headrace.bench.stores.command import main
    from headrace.bench.stores.report import lines

    result = main(
        {
            "quick": quick,
            "only": only,
            "workload": workload,
            "out": out,
            "home": settings_of(home).home,
        },
        lambda line: typer.echo(line, err=True),
    )
    if as_json:
        typer.echo(json.dumps(result))
        return
    for line in lines(result):
        typer.echo(line)


def _print(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
        return
    for line in figures(result):
        typer.echo(line)


def figures(result: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the figures of a measurement, one a line; those of a table indented below it."""
    for name, value in result.items():
        if isinstance(value, Mapping):
            if value:
                yield f"{indent}{name}"
                yield from figures(value, indent + "  ")
        elif value is not None:
            yield f"{indent}{name:<{26 - len(indent)}} {_shown(value)}"


def _shown(value: object) -> str:
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.4g}"
    return str(value)
