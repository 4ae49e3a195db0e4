"""``headrace bus``: create, fill and look at streams."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.bus import append, changes
from headrace.cli.options import (
    Home,
    Json,
    KeyColumns,
    Partition,
    StreamName,
    TimeColumn,
    Where,
    column_names,
    open_home_bus,
    settings_of,
)
from headrace.cli.screen import show_json

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer(name="bus", help="Create, fill and look at streams.", no_args_is_help=True)


@app.command()
def create(  # noqa: PLR0913, PLR0917 - one for each option
    name: StreamName,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions.")] = 1,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS", help='Columns: "id:int64,at:timestamp,...".', show_default=False
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Columns of a Parquet file.", show_default=False),
    ] = None,
    time: TimeColumn = None,
    key: KeyColumns = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Only the last record of each key has to be kept.")
    ] = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="The same stream may be there already.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Create a stream."""
    from headrace.bus.spec import StreamSpec
    from headrace.cli.bus.listing import describe
    from headrace.cli.words import count_text
    from headrace.records.type_words import words_of_schema

    columns = _schema(schema, like)
    spec = StreamSpec(name, partitions, columns, time, column_names(key), compact=compact)
    with open_home_bus(settings_of(home)) as bus:
        bus.create(spec, exist_ok=exist_ok)
        if as_json:
            show_json(describe(bus, name))
            return
    typer.echo(
        f"stream {name}: {count_text(partitions, 'partition')}, {words_of_schema(spec.schema)}"
    )


def _schema(words: str | None, like: Path | None) -> pa.Schema:
    from headrace.cli.ingest.schema_text import schema_from_words
    from headrace.errors import InvalidInputError

    if (words is None) == (like is None):
        raise typer.BadParameter(
            'give either --schema "id:int64,at:timestamp,..." or --like FILE.parquet'
        )
    if words is not None:
        return schema_from_words(words)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(like)
    except FileNotFoundError:
        raise InvalidInputError(f"--like: no file {like}; check the path") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"--like: {like} is not Parquet: {reason}") from error


app.command()(append.append)


@app.command()
def tail(  # noqa: PLR0913, PLR0917 - one for each option
    name: StreamName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, or a time. Default: the last ROWS.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="End there: latest, an offset, or the first row of a time.",
            show_default=False,
        ),
    ] = None,
    partition: Partition = None,
    rows: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="ROWS",
            min=0,
            help="At most so many rows. Default: 10; no end with --from and --until or --follow.",
            show_default=False,
        ),
    ] = None,
    where: Where = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more rows.")] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print rows of a stream."""
    from headrace.cli.bus.tailing import Tail
    from headrace.cli.bus.tailing_text import JsonRows, LineRows, TableRows

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        tailed = Tail(stream, partition, where)
        is_wide = follow or not sys.stdout.isatty()
        printer = (
            JsonRows()
            if as_json
            else (LineRows(stream.spec) if is_wide else TableRows(stream.spec))
        )
        for group in tailed.rows(start, rows, until=until, follow=follow):
            printer.show(group)


app.command()(changes.describe)


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """List the streams with their sizes and times."""
    from headrace.cli.bus.listing import describe, show_streams

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = [describe(bus, name) for name in bus.names()]
    if as_json:
        show_json(*found)
    elif not found:
        typer.echo(
            f"no streams in {settings.bus_dir}; "
            "make one with: headrace bus create NAME --schema ..."
        )
    else:
        show_streams(found)


app.command()(changes.trim)
app.command()(changes.compact)
app.command()(changes.alias)
app.command()(changes.configure)
