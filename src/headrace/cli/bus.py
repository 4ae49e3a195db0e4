"""``headrace bus``: create, fill and look at streams."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.options import Home, Json, StreamName, open_home_bus, settings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.bus.bus import Stream

app = typer.Typer(name="bus", help="Create, fill and look at streams.", no_args_is_help=True)
BATCH_ROWS = 50_000


@app.command()
def create(
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
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Event-time column.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,...", help="Columns that choose the partition.", show_default=False
        ),
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="The same stream may be there already.")
    ] = False,
    home: Home = None,
) -> None:
    """Create a stream."""
    from headrace.bus.spec import StreamSpec
    from headrace.cli.schema_text import words_of_schema
    from headrace.cli.words import count_text

    keys = tuple(part.strip() for part in key.split(",")) if key else ()
    spec = StreamSpec(name, partitions, _schema(schema, like), time, keys)
    with open_home_bus(settings_of(home)) as bus:
        bus.create(spec, exist_ok=exist_ok)
    typer.echo(
        f"stream {name}: {count_text(partitions, 'partition')}, {words_of_schema(spec.schema)}"
    )


def _schema(words: str | None, like: Path | None) -> pa.Schema:
    from headrace.cli.schema_text import schema_from_words
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


@app.command()
def append(
    name: StreamName,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Files, or - for stdin.", show_default=False),
    ],
    form: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option("--format", help="Default: by the file's suffix; stdin is JSON lines."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Append here, whatever the key. Default: by key, else the shortest partition.",
            show_default=False,
        ),
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Rows of the first file to leave out.")] = 0,
    batch_rows: Annotated[
        int, typer.Option(min=1, help="Rows that become visible together.")
    ] = BATCH_ROWS,
    home: Home = None,
) -> None:
    """Append rows of files, typed by the stream's schema.

    JSON lines, CSV with a header, or Parquet. A row that does not fit ends the command;
    nothing of its batch is appended.
    """
    from headrace.cli.row_files import check_there, format_of, read_rows
    from headrace.cli.words import count_text
    from headrace.errors import InvalidInputError

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        forms = [format_of(file, form) for file in files]
        check_there(files)
        total = 0
        for file, found in zip(files, forms, strict=True):
            done = 0
            left_out, skip = skip, 0
            try:
                for rows in read_rows(
                    file, found, stream.spec, batch_rows=batch_rows, skip=left_out
                ):
                    _append(stream, rows.batch, partition)
                    done, total = rows.behind, total + rows.batch.num_rows
            except InvalidInputError as error:
                raise _with_next_move(error, file, done) from error
        typer.echo(f"{count_text(total, 'row')} appended to {name}")


def _append(stream: Stream, batch: pa.RecordBatch, partition: int | None) -> None:
    if partition is None and stream.spec.key:
        stream.append_rows(batch)
        return
    if partition is None:
        ends = stream.ends()
        partition = ends.index(min(ends))
    stream.append(partition, batch)


def _with_next_move(error: Exception, file: str, done: int) -> Exception:
    from headrace.cli.words import count_text
    from headrace.errors import HeadraceError, InvalidInputError

    assert isinstance(error, HeadraceError)
    told = str(error).rstrip(".")
    stop = "" if told.endswith("?") else ";"
    if not done:
        return InvalidInputError(f"{told}{stop} nothing of it was appended")
    again = "" if file == "-" else f"; once it is right, go on with --skip {done}"
    return InvalidInputError(
        f"{told}{stop} {count_text(done, 'row')} before its batch were appended{again}"
    )


@app.command()
def tail(
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
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition.", show_default=False)
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="ROWS",
            min=0,
            help="At most so many rows. Default: 10; with --from and --follow, no end.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more rows.")] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print rows of a stream."""
    from headrace.cli.tailing import Tail
    from headrace.cli.tailing_text import JsonRows, LineRows, TableRows

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        tailed = Tail(stream, partition)
        is_wide = follow or not sys.stdout.isatty()
        printer = (
            JsonRows()
            if as_json
            else (LineRows(stream.spec) if is_wide else TableRows(stream.spec))
        )
        for group in tailed.rows(start, rows, follow=follow):
            printer.show(group)


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """List the streams with their sizes and times."""
    from headrace.cli.listing import describe, table

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = [describe(bus, name) for name in bus.names()]
    if as_json:
        for entry in found:
            typer.echo(json.dumps(entry))
    elif not found:
        typer.echo(
            f"no streams in {settings.bus_dir}; "
            "make one with: headrace bus create NAME --schema ..."
        )
    else:
        table(found)
