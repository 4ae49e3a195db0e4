"""``headrace warehouse``: list, describe, compact and query the tables that jobs write by day."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.options import Config, Home, Json, Set, settings_of
from headrace.cli.screen import show_facts, show_json, show_table
from headrace.cli.words import count_text, size_text, time_text

if TYPE_CHECKING:
    from headrace.warehouse import Table

app = typer.Typer(
    name="warehouse", help="Look at the tables that jobs write by day.", no_args_is_help=True
)
Name = Annotated[
    str, typer.Argument(metavar="TABLE", help="Name of the table.", show_default=False)
]
Days = Annotated[
    str | None,
    typer.Option(
        "--days",
        metavar="DAY..DAY",
        help="Only these: 2013-01-31, or 2013-01-01..2013-01-31.",
        show_default=False,
    ),
]


def _summary(table: Table) -> dict[str, Any]:
    days = table.days
    return {
        "table": table.name,
        "format": "delta" if table.is_delta else "parquet",
        "job": table.job,
        "days": len(days),
        "complete": sum(day.is_complete for day in days),
        "rows": sum(day.rows for day in days),
        "files": sum(day.files for day in days),
        "bytes": sum(day.bytes for day in days),
        "first": days[0].day if days else None,
        "last": days[-1].day if days else None,
    }


@app.command()
def ls(
    as_json: Json = False, home: Home = None, config: Config = None, overrides: Set = None
) -> None:
    """List the tables of the warehouse."""
    from headrace.warehouse import readable_tables

    warehouse = settings_of(home, config, overrides).warehouse_dir
    tables, failed = readable_tables(warehouse)
    found = [_summary(table) for table in tables]
    if as_json:
        show_json(*found, *({"table": name, "error": str(e)} for name, e in failed.items()))
        return
    for error in failed.values():
        typer.echo(f"passed over: {error}", err=True)
    if not found and failed:
        return
    if not found:
        typer.echo(f"no tables in {warehouse}; a job makes one with g.output_table")
        return
    titles = (
        "table",
        "format",
        "job",
        "days",
        "complete",
        "rows",
        "files",
        "size",
        "first",
        "last",
    )
    rows = [
        (
            one["table"],
            one["format"],
            one["job"],
            *(f"{one[name]:,}" for name in ("days", "complete", "rows", "files")),
            size_text(one["bytes"]),
            one["first"] or "-",
            one["last"] or "-",
        )
        for one in found
    ]
    right = {"days", "complete", "rows", "files", "size"}
    show_table(titles, rows, right, ("format", "first"))


@app.command()
def describe(
    table: Name,
    days: Days = None,
    as_json: Json = False,
    home: Home = None,
    config: Config = None,
    overrides: Set = None,
) -> None:
    """Show the columns of a table and its days: rows, files, complete, late."""
    from headrace.records.type_words import words_of_schema
    from headrace.warehouse import named_table
    from headrace.warehouse.days import read_days

    warehouse = settings_of(home, config, overrides).warehouse_dir
    found = named_table(warehouse, table)
    first, last = ("", "~") if days is None else read_days(days)
    shown = [day for day in found.days if first <= day.day <= last]
    columns = words_of_schema(found.schema)
    if as_json:
        head = {**_summary(found), "columns": columns, "time": found.time}
        head |= {"version": found.version, "watermark": found.watermark}
        show_json({**head, "partitions": [asdict(day) for day in shown]})
        return
    show_facts(
        (
            ("table", f"{found.name}, {'Delta' if found.is_delta else 'Parquet'} by day"),
            ("job", found.job),
            ("columns", columns),
            ("day of", found.time),
            ("version", f"{found.version:,}"),
            ("watermark", time_text(found.watermark)),
            ("read", _pattern(warehouse / table, found)),
        )
    )
    rows = [
        (
            day.day,
            f"{day.rows:,}",
            f"{day.files:,}",
            size_text(day.bytes),
            "yes" if day.is_complete else "-",
            f"{day.late_rows:,}",
        )
        for day in shown
    ]
    titles = ("day", "rows", "files", "size", "complete", "late rows")
    show_table(titles, rows, {"rows", "files", "size", "late rows"})


def _pattern(folder: Path, table: Table) -> str:
    """Say what other programs read; files of Delta may be there that no version names."""
    return f"{folder}, as a Delta table" if table.is_delta else f"{folder}/*/*.parquet"


@app.command()
def compact(
    table: Name,
    as_json: Json = False,
    home: Home = None,
    config: Config = None,
    overrides: Set = None,
) -> None:
    """Merge the small files of a table; its job may run, readers may read."""
    from headrace.clock import SystemClock
    from headrace.files import Files
    from headrace.warehouse import named_table
    from headrace.warehouse.maintenance import compact as merge
    from headrace.warehouse.sink import aims_of

    settings = settings_of(home, config, overrides)
    named_table(settings.warehouse_dir, table)
    folder = settings.warehouse_dir / table
    before, after = merge(folder, aims_of(settings), Files(), SystemClock())
    if as_json:
        show_json({"table": table, "files_before": before, "files": after})
    else:
        typer.echo(f"table {table}: {count_text(before, 'file')} before, {after:,} now")


@app.command()
def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Tables by their names.", show_default=False)
    ],
    engine: Annotated[
        Literal["duckdb", "spark"], typer.Option("--engine", help="What runs it.")
    ] = "duckdb",
    as_json: Json = False,
    home: Home = None,
    config: Config = None,
    overrides: Set = None,
) -> None:
    """Run a query over the newest snapshot of each table."""
    from headrace.cli.warehouse.sql import on_duckdb, on_spark

    settings = settings_of(home, config, overrides)
    if engine == "spark":
        rows = on_spark(query, settings)
    else:
        rows = on_duckdb(query, settings.warehouse_dir)
    if as_json:
        for row in rows:
            show_json({name: _plain(value) for name, value in row.items()})
        return
    found = list(rows)
    if not found:
        typer.echo("no rows")
        return
    titles = tuple(found[0])
    right = {name for name in titles if isinstance(found[0][name], int | float)}
    show_table(titles, [[_text(row[name]) for name in titles] for row in found], right)


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: moments as ISO 8601, what it has no type for as text."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
