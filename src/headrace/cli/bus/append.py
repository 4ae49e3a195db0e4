"""``headrace bus append``: the rows of files, typed by the stream's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.failures import SET_ASIDE
from headrace.cli.options import (
    Home,
    Json,
    KeyColumns,
    StreamName,
    TimeColumn,
    column_names,
    open_home_bus,
    settings_of,
)
from headrace.cli.screen import show_json

if TYPE_CHECKING:
    from headrace.cli.ingest.appending import Appended

BATCH_ROWS = 50_000

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE", help="Files, or - for stdin.", show_default=False),
]
Form = Annotated[
    Literal["jsonl", "csv", "parquet"] | None,
    typer.Option("--format", help="Default: by the file's suffix; stdin is JSON lines."),
]
Partition = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Append here, whatever the key. Default: by key, else the shortest partition.",
        show_default=False,
    ),
]
Skip = Annotated[int, typer.Option(min=0, help="Rows of the first file to leave out.")]
BatchRows = Annotated[int, typer.Option(min=1, help="Rows that become visible together.")]
OnBad = Annotated[
    Literal["fail", "dead-letter"],
    typer.Option(help="A line that does not fit ends the command, or goes to NAME.dead."),
]
Infer = Annotated[
    bool, typer.Option("--infer", help="Create the stream, with the columns of the first file.")
]
AddColumns = Annotated[
    bool,
    typer.Option("--add-columns", help="Add those of the first file that the stream has not."),
]
Partitions = Annotated[int, typer.Option(min=1, help="With --infer: partitions.")]


def append(  # noqa: PLR0913, PLR0917 - one for each option
    name: StreamName,
    files: Files,
    form: Form = None,
    partition: Partition = None,
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
    """Append rows of files, typed by the stream's schema.

    JSON lines, CSV with a header, or Parquet. A row that does not fit ends the command, and
    nothing of its batch is appended; or it goes to NAME.dead, and the others are appended.
    """
    from headrace.cli.ingest.appending import File, How, NewStream, append_files
    from headrace.cli.ingest.row_files import check_there, format_of
    from headrace.clock import SystemClock

    found = [File(file, format_of(file, form)) for file in files]
    check_there(files)
    how = How(batch_rows, partition, skip, on_bad == "dead-letter", add_columns)
    new = NewStream(time, column_names(key), partitions) if infer else None
    with open_home_bus(settings_of(home)) as bus:
        done = append_files(bus, name, found, how, SystemClock(), new)
    _tell(done, as_json=as_json)
    if done.bad_lines:
        raise typer.Exit(SET_ASIDE)


def _tell(done: Appended, *, as_json: bool) -> None:
    from headrace.cli.words import count_text

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
