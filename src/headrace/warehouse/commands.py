"""``headrace warehouse``: list, describe, compact and query the tables that jobs write by day.

Queries run on DuckDB, or on Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace import extras
from headrace.cli.options import Config, Home, Json, Set, settings_of
from headrace.cli.output import count_text, show_facts, show_json, show_table, size_text, time_text
from headrace.errors import InvalidInputError
from headrace.remote import address_of

if TYPE_CHECKING:
    from headrace.config import Settings
    from headrace.warehouse import Table


Row = dict[str, Any]


def on_duckdb(query: str, warehouse: Path) -> Iterator[Row]:
    """Yield the rows of a query, on DuckDB in this process.

    Raises:
        InvalidInputError: it is no query of these tables, or DuckDB is not installed.
    """
    from headrace.records.schema import unique_names
    from headrace.warehouse import readable_tables
    from headrace.warehouse.table import missing_tables

    duckdb = extras.load("duckdb", "warehouse sql", "give --engine spark")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        tables, failed = readable_tables(warehouse)
        for table in tables:
            if not table.is_remote or table.name.lower() in query.lower():  # else it is fetched
                _view(connection, table)
        try:
            if not connection.extract_statements(query):
                raise InvalidInputError(
                    "there is no query; expected SQL such as 'select * from TABLE'"
                )
            found = connection.execute(query)
        except duckdb.Error as error:
            message = f"DuckDB: {str(error).splitlines()[0]}"
            raise InvalidInputError(missing_tables(message, failed)) from error
        names = unique_names([column[0] for column in found.description])
        while rows := found.fetchmany(1000):
            yield from (dict(zip(names, row, strict=True)) for row in rows)


def _view(connection: Any, table: Table) -> None:
    from headrace.graph.sinks import PARTITION

    name = '"' + table.name.replace('"', '""') + '"'
    if files := table.files():
        listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        # The day is taken from the file's own folder: folders above may look like partitions.
        day = f"regexp_extract(__file, '{PARTITION}=([^/]*)/[^/]*$', 1)"
        connection.execute(
            f"CREATE VIEW {name} AS SELECT * EXCLUDE (__file), CAST({day} "
            f"AS DATE) AS {PARTITION} FROM read_parquet([{listed}], hive_partitioning = false, "
            "filename = '__file', union_by_name = true)"
        )
        return
    connection.register(table.name, table.to_arrow())


def on_spark(query: str, spark: Any, warehouse: Path) -> Iterator[Row]:
    """Yield the rows of a query, on Spark.

    Raises:
        InvalidInputError: it is no query of these tables.
    """
    from headrace.spark.dataframes import query_rows, register_tables
    from headrace.warehouse.table import missing_tables

    failed = register_tables(spark, warehouse, query)
    try:
        yield from query_rows(spark, query)
    except InvalidInputError as error:
        raise InvalidInputError(missing_tables(error.message, failed)) from error


def _session(settings: Settings) -> Any:
    from headrace.spark.sessions import build_session

    log = settings.home / "spark" / "spark.log"
    return build_session(settings.spark.master, "headrace", log, settings.spark.conf)


app = typer.Typer(
    name="warehouse", help="Inspect the tables that jobs write by day.", no_args_is_help=True
)
Name = Annotated[
    str, typer.Argument(metavar="TABLE", help="Name of the table.", show_default=False)
]
Days = Annotated[
    str | None,
    typer.Option(
        "--days",
        metavar="DAY..DAY",
        help="Days to show, such as 2013-01-31 or 2013-01-01..2013-01-31.",
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
    """List the tables of the warehouse.

    Shows job, days, complete days, rows, files, size, first day and last day.

    Guide: warehouse.

    For example:

        headrace warehouse ls
    """
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
        typer.echo(f"no tables in {address_of(warehouse)}; a job makes one with g.output_table")
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
    """Show the columns of a table and its days: rows, files, size, whether complete, late rows.

    Guide: warehouse.

    For example:

        headrace warehouse describe visits --days 2013-01-01..2013-01-31
    """
    from headrace.records.schema import schema_text
    from headrace.warehouse import named_table
    from headrace.warehouse.snapshot import read_days

    warehouse = settings_of(home, config, overrides).warehouse_dir
    found = named_table(warehouse, table)
    first, last = ("", "~") if days is None else read_days(days)
    shown = [day for day in found.days if first <= day.day <= last]
    columns = schema_text(found.schema)
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
    if table.is_remote:
        return f"hr.warehouse.Table({address_of(folder)!r})"
    return f"{folder}, as a Delta table" if table.is_delta else f"{folder}/*/*.parquet"


@app.command()
def compact(
    table: Name,
    as_json: Json = False,
    home: Home = None,
    config: Config = None,
    overrides: Set = None,
) -> None:
    """Merge the small files of all days of a table, however few.

    The table's job can run meanwhile, and readers can read.

    Guide: warehouse.

    For example:

        headrace warehouse compact visits
    """
    from headrace.coordinator.epoch_clock import driver_clock
    from headrace.files import Files
    from headrace.warehouse import named_table
    from headrace.warehouse.sink import compact_table as merge
    from headrace.warehouse.sink import size_targets_of

    settings = settings_of(home, config, overrides)
    named_table(settings.warehouse_dir, table)
    folder = settings.warehouse_dir / table
    before, after = merge(folder, size_targets_of(settings), Files(), driver_clock(settings))
    if as_json:
        show_json({"table": table, "files_before": before, "files": after})
    else:
        typer.echo(f"table {table}: {count_text(before, 'file')} before, {after:,} now")


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL query.", show_default=False)],
    engine: Annotated[
        Literal["duckdb", "spark"],
        typer.Option("--engine", help="Engine that runs the query; DuckDB needs `headrace[sql]`."),
    ] = "duckdb",
    as_json: Json = False,
    home: Home = None,
    config: Config = None,
    overrides: Set = None,
) -> None:
    """Run an SQL query over the tables of the warehouse.

    Tables have their names, and the day as the column `ds`. The query sees complete epochs: the
    latest snapshot of each table. DuckDB runs in this process, Spark as in the settings.

    Guide: warehouse.

    For example:

        headrace warehouse sql "select count(*) from visits where ds = date '2013-01-01'"
    """
    settings = settings_of(home, config, overrides)
    if engine == "spark":
        rows = on_spark(query, _session(settings), settings.warehouse_dir)
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
