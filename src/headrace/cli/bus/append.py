"""``headrace bus append``: the rows of files, typed by the stream's schema."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.failures import SET_ASIDE
from headrace.cli.options import Home, StreamName, open_home_bus, settings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.bus.bus import Stream
    from headrace.cli.ingest.line_source import LineSource

BATCH_ROWS = 50_000


def append(  # noqa: PLR0913, PLR0917 - one for each option
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
    on_bad: Annotated[
        Literal["fail", "dead-letter"],
        typer.Option(help="A line that does not fit ends the command, or goes to NAME.dead."),
    ] = "fail",
    infer: Annotated[
        bool, typer.Option("--infer", help="Create the stream, with the columns of the first file.")
    ] = False,
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --infer: event-time column.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,...", help="With --infer: columns of the key.", show_default=False
        ),
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="With --infer: partitions.")] = 1,
    home: Home = None,
) -> None:
    """Append rows of files, typed by the stream's schema.

    JSON lines, CSV with a header, or Parquet. A row that does not fit ends the command, and
    nothing of its batch is appended; or it goes to NAME.dead, and the others are appended.
    """
    from headrace.bus.spec import StreamSpec
    from headrace.cli.ingest.bad_lines import BadLines
    from headrace.cli.ingest.line_source import LineSource
    from headrace.cli.ingest.row_files import check_there, format_of, open_lines, read_rows
    from headrace.cli.words import count_text
    from headrace.clock import SystemClock
    from headrace.errors import InvalidInputError

    forms = [format_of(file, form) for file in files]
    check_there(files)
    with ExitStack() as opened:
        bus = opened.enter_context(open_home_bus(settings_of(home)))
        sources: dict[int, LineSource] = {}
        if infer and name not in bus.names():
            if forms[0] != "parquet":
                sources[0] = LineSource(opened.enter_context(open_lines(files[0])))
            keys = tuple(part.strip() for part in key.split(",")) if key else ()
            columns = _columns(files[0], forms[0], sources.get(0))
            bus.create(StreamSpec(name, partitions, columns, time, keys))
        stream = bus.stream(name)
        bad = BadLines(bus, name, SystemClock()) if on_bad == "dead-letter" else None
        total = 0
        for number, (file, found) in enumerate(zip(files, forms, strict=True)):
            done = 0
            left_out, skip = skip, 0
            if bad is not None:
                bad.file = "stdin" if file == "-" else file
            try:
                for rows in read_rows(
                    file,
                    found,
                    stream.spec,
                    batch_rows=batch_rows,
                    skip=left_out,
                    on_bad=None if bad is None else bad.add,
                    source=sources.get(number),
                ):
                    _append(stream, rows.batch, partition)
                    if bad is not None:
                        bad.flush()
                    done, total = rows.behind, total + rows.batch.num_rows
            except InvalidInputError as error:
                raise _with_next_move(error, file, done) from error
        typer.echo(f"{count_text(total, 'row')} appended to {name}")
        if bad is not None and bad.count:
            typer.echo(
                f"{count_text(bad.count, 'line')} did not fit and went to {bad.stream}; look at "
                f"them with: headrace bus tail {bad.stream}",
                err=True,
            )
            raise typer.Exit(SET_ASIDE)


def _columns(file: str, form: str, source: LineSource | None) -> pa.Schema:
    from headrace.cli.ingest.infer import inferred
    from headrace.errors import InvalidInputError

    if source is not None:
        return inferred(source, "stdin" if file == "-" else file, is_csv=form == "csv")
    if file == "-":
        raise InvalidInputError("--infer cannot look into Parquet from stdin; give a file")
    import pyarrow.parquet as pq

    return pq.read_schema(file)


def _append(stream: Stream, batch: pa.RecordBatch, partition: int | None) -> None:
    if not batch.num_rows:
        return
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
