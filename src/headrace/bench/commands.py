"""``headrace bench``: measurements that users can repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.cli.options import Home, Json, settings_of

app = typer.Typer(name="bench", help="Measure Headrace on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure Headrace on this machine."""


@app.command()
def readwrite(  # noqa: PLR0913, PLR0917 - one for each option
    rows: Annotated[int, typer.Option(min=1, help="Number of messages.")] = 4_000_000,
    ids: Annotated[int, typer.Option(min=1, help="Number of different keys.")] = 1_000_000,
    store: Annotated[
        Literal["columnar", "rocksdb", "memory"] | None,
        typer.Option(
            help="Kind of the store; columnar only with --path batch. Default: rocksdb, "
            "for batches columnar.",
            show_default=False,
        ),
    ] = None,
    path: Annotated[
        Literal["message", "batch"],
        typer.Option(help="A Python function for each message, or an aggregate for each batch."),
    ] = "message",
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of the keyed stage.")] = 4,
    key: Annotated[Literal["int", "string"], typer.Option(help="Type of the ids.")] = "int",
    whole: Annotated[
        bool, typer.Option("--whole", help="Send complete messages by key, not only the id.")
    ] = False,
    epoch_rows: Annotated[int, typer.Option(min=1, help="Messages of an epoch.")] = 1_000_000,
    compare: Annotated[
        Literal["pyspark"] | None,
        typer.Option(help="Also count with PySpark's own APIs.", show_default=False),
    ] = None,
    master: Annotated[
        str,
        typer.Option(help="Spark master; `local-cluster[2,1,2048]` has two executors of one core."),
    ] = "local[2]",
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Count messages by id, exactly once: the paper's ReadWrite.

    Guide: performance.

    For example:

        headrace bench readwrite --path batch --rows 16000000
    """
    from headrace.bench.readwrite import measure_readwrite

    result = measure_readwrite(
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
            "master": master,
            "home": settings_of(home).home,
        }
    )
    _print(result, as_json)


@app.command()
def idle(
    epochs: Annotated[int, typer.Option(min=2, help="Epochs to measure.")] = 50,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of the keyed stage.")] = 4,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Measure epochs that have nothing to do.

    Guide: performance.

    For example:

        headrace bench idle --epochs 100
    """
    from headrace.bench.readwrite import measure_idle

    options = {"epochs": epochs, "tasks": tasks, "home": settings_of(home).home}
    _print(measure_idle(options), as_json)


@app.command()
def tasks(
    rows: Annotated[int, typer.Option(min=1, help="Number of messages.")] = 4_000_000,
    path: Annotated[
        Literal["message", "batch"],
        typer.Option(help="A Python function for each message, or an aggregate for each batch."),
    ] = "message",
    few: Annotated[int, typer.Option(min=1, help="Tasks of the first run.")] = 4,
    many: Annotated[int, typer.Option(min=1, help="Tasks of the second run.")] = 64,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Count the same messages with few tasks and with many.

    Guide: performance.

    For example:

        headrace bench tasks --few 4 --many 64
    """
    from headrace.bench.readwrite import compare_tasks

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
        bool, typer.Option("--quick", help="A quick look in a minute instead of a measurement.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this store.")] = None,
    workload: Annotated[
        Literal["readwrite", "readonly"] | None, typer.Option(help="Only this job.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the JSON and the figures.", show_default=False)
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Compare all kinds of stores: the paper's Figures 8, 9 and 10.

    Runs the paper's ReadWrite and ReadOnly with every kind of store: in memory, on disk, with and
    without changelog, without caches, columnar, and on a Redis server that it starts itself (this
    needs `redis-server` and the extras `demo` and `remote`). Takes about ten minutes. `--out` gets
    `stores.json` and the figures as PNG.

    For example:

        headrace bench stores --quick
    """
    from headrace.bench.stores import compare_stores, lines

    result = compare_stores(
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
