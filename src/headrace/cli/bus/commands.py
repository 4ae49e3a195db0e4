"""``headrace bus``: create, list, fill and read streams."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.bus import mirror, streams
from headrace.cli.failures import SET_ASIDE
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
from headrace.cli.output import count_text, show_json

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.cli.bus.ingest import IngestResult


BATCH_ROWS = 50_000

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE", help="Files, or - for stdin.", show_default=False),
]
Form = Annotated[
    Literal["jsonl", "csv", "parquet", "text"] | None,
    typer.Option("--format", help="Format of the files. Default: by suffix; stdin is JSON lines."),
]
AppendPartition = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Append to this partition. Default: by key; without a key, in turn.",
        show_default=False,
    ),
]
Skip = Annotated[int, typer.Option(min=0, help="Rows of the first file to skip.")]
BatchRows = Annotated[
    int, typer.Option(min=1, help="Rows of a batch, which become visible together.")
]
OnBad = Annotated[
    Literal["fail", "dead-letter"],
    typer.Option(help="A line that does not fit ends the command, or goes to NAME.dead."),
]
Infer = Annotated[
    bool,
    typer.Option(
        "--infer",
        help="Create the stream if it does not exist, with the columns of the first file.",
    ),
]
AddColumns = Annotated[
    bool,
    typer.Option(
        "--add-columns", help="Add columns of the first file that the stream does not have."
    ),
]
Partitions = Annotated[int, typer.Option(min=1, help="Number of partitions, with --infer.")]


def append(  # noqa: PLR0913, PLR0917 - one for each option
    name: StreamName,
    files: Files,
    form: Form = None,
    partition: AppendPartition = None,
    skip: Skip = 0,
    batch_rows: BatchRows = BATCH_ROWS,
    on_bad: OnBad = "fail",
    infer: Infer = False,
    add_columns: AddColumns = False,
    time: TimeColumn = None,
    key: KeyColumns = None,
    partitions: Partitions = 1,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Append rows of files to a stream.

    Files are JSON lines (`.jsonl`, `.ndjson`, `.json`), CSV with a header (`.csv`) or Parquet
    (`.parquet`, `.pq`). With `--format text`, each line of a file, such as a log, is a row with the
    column `line`; other columns are null. Values are converted to the types of the stream's schema:

    - timestamp: ISO 8601, UTC without a zone, or milliseconds since 1970
    - date: `2013-01-31`
    - binary: base64
    - decimal: a number, or text
    - list: a JSON list, also in CSV
    - null of any type: left out, or `null`, or in CSV empty; but an empty text stays empty text,
      and the event time is required

    **Partitions.** A row goes to the partition of its key. In a stream without a key, each
    partition gets 100 rows in turn, beginning with the shortest; within a partition, rows have the
    order of the file. The same appends share rows in the same way.

    **Batches.** All rows of a batch that go to one partition become visible together. From a pipe,
    rows are also appended when no new row has arrived for 0.2 s.

    **Rows that do not fit.** Such a row ends the command with code 1 and a message: line, column,
    found, expected. Nothing of its batch is appended. If earlier batches were appended, the
    message shows the `--skip` with which to continue after you fix the file. With
    `--on-bad dead-letter`, such a line goes to the stream `NAME.dead`, with its bytes, file, line
    number and error. The other rows are appended, and the command exits with 6. A row of a Parquet
    file that does not fit always ends the command.

    **Inferred columns.** `--infer` uses the first MiB of the first file: integers are `int64`,
    other numbers `float64`, text that is a time in every row a `timestamp`. `--add-columns` infers
    types in the same way. With `--format text`, both mean the one column `line:string`. Added
    columns are null in older rows.

    Many lines are read at once, as columns. Only a batch with an unusual line, or with quoted
    fields of CSV, is read row by row. A million JSON lines of three columns (53 MB), by key to two
    partitions, took 2.0 s including the start, on two cores of a virtual machine.

    Guide: streams, dead-letters, schema-evolution.

    For example:

        headrace bus append orders orders.jsonl --on-bad dead-letter
    """
    from headrace.cli.bus.ingest import (
        IngestOptions,
        InputFile,
        NewStream,
        append_files,
        check_there,
        format_of,
    )
    from headrace.clock import SystemClock

    found = [InputFile(file, format_of(file, form)) for file in files]
    check_there(files)
    how = IngestOptions(batch_rows, partition, skip, on_bad == "dead-letter", add_columns)
    new = NewStream(time, column_names(key), partitions) if infer else None
    with open_home_bus(settings_of(home)) as bus:
        done = append_files(bus, name, found, how, SystemClock(), new)
    _notify(done, as_json=as_json)
    if done.bad_lines:
        raise typer.Exit(SET_ASIDE)


def _notify(done: IngestResult, *, as_json: bool) -> None:
    if as_json:
        show_json(done._asdict())
        return
    typer.echo(f"{count_text(done.rows, 'row')} appended to {done.stream}")
    if done.bad_lines:
        typer.echo(
            f"{count_text(done.bad_lines, 'line')} did not fit and went to {done.bad_stream}; "
            f"look at them with: headrace bus tail {done.bad_stream}",
            err=True,
        )


app = typer.Typer(name="bus", help="Create, fill and inspect streams.", no_args_is_help=True)


@app.command()
def create(  # noqa: PLR0913, PLR0917 - one for each option
    name: StreamName,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS", help='Columns, such as "id:int64,at:timestamp".', show_default=False
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Parquet file whose columns to use.", show_default=False),
    ] = None,
    time: TimeColumn = None,
    key: KeyColumns = None,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="Create a compacted stream: only the last record of each key is kept."
        ),
    ] = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Accept an existing stream if it is the same.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Create a stream.

    Types of columns are `bool`, `int8` to `int64`, `uint8` to `uint64`, `float32`, `float64`,
    `string`, `binary`, `date`, `timestamp`, `duration`, `decimal(P,S)` and `list<TYPE>`. The
    event-time column is a timestamp, or int64 milliseconds.

    Guide: streams.

    For example:

        headrace bus create orders --schema "id:int64,price:float64,at:timestamp" --time at --key id
    """
    from headrace.bus import StreamSpec
    from headrace.cli.bus.streams import stream_summary
    from headrace.records.schema import schema_text

    columns = _schema(schema, like)
    spec = StreamSpec(name, partitions, columns, time, column_names(key), compact=compact)
    with open_home_bus(settings_of(home)) as bus:
        bus.create(spec, exist_ok=exist_ok)
        if as_json:
            show_json(stream_summary(bus, name))
            return
    typer.echo(f"stream {name}: {count_text(partitions, 'partition')}, {schema_text(spec.schema)}")


def _schema(words: str | None, like: Path | None) -> pa.Schema:
    from headrace.cli.arguments import parse_schema
    from headrace.errors import InvalidInputError

    if (words is None) == (like is None):
        raise typer.BadParameter(
            'give either --schema "id:int64,at:timestamp,..." or --like FILE.parquet'
        )
    if words is not None:
        return parse_schema(words)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(like)
    except FileNotFoundError:
        raise InvalidInputError(f"--like: no file {like}; check the path") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"--like: {like} is not Parquet: {reason}") from error


app.command()(append)


@app.command()
def tail(  # noqa: PLR0913, PLR0917 - one for each option
    name: StreamName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset (with --partition) or a time; prints all rows from "
            "there on. Default: the last ROWS.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="End: latest, an offset, or a time.",
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
            help="Most rows to print. Default: 10; no limit with --from.",
            show_default=False,
        ),
    ] = None,
    where: Where = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more rows, up to --until.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print rows of a stream.

    Prints the last rows of all partitions in order of event time, each with its partition and
    offset. `--from` starts elsewhere, and prints all rows up to the current end, unless `-n` limits
    them. `--follow` then waits for more. `--until` ends before an offset, or before the first row
    at or after a time. In `--where`, `_offset` is the row's offset.

    For example:

        headrace bus tail orders --from 2013-01-31T05:15 --where "price > 10" --follow
    """
    from headrace.cli.bus.tail import JsonRows, LineRows, TableRows, Tail

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


app.command()(streams.describe)


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """List the streams with their sizes and times.

    Shows partitions, rows, bytes on disk, first and last event time, and key; with `--json` also
    the columns.

    For example:

        headrace bus ls
    """
    from headrace.cli.bus.streams import show_streams, stream_summary

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = [stream_summary(bus, name) for name in bus.names()]
    if as_json:
        show_json(*found)
    elif not found:
        typer.echo(
            f"no streams in {settings.bus.address or settings.bus_dir}; "
            "make one with: headrace bus create NAME --schema ..."
        )
    else:
        show_streams(found)


app.command()(streams.trim)
app.command()(streams.compact)
app.command()(streams.offload)
app.command()(streams.alias)
app.command()(streams.configure)
app.command()(mirror.mirror)
