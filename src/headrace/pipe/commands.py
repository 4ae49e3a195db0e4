"""``headrace pipe``: gives the records of a stream to a program, and shows how far it is."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace import extras
from headrace.cli.failures import INTERRUPTED, record, show
from headrace.cli.options import Home, Json, open_home_bus, settings_of, stream_names
from headrace.cli.output import count_text, show_json, show_table
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from headrace.bus import Stream
    from headrace.pipe.on_spark import SparkPipe
    from headrace.pipe.runner import PartitionResult, Pipe, PipeOptions

Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND...",
        help="Program of each client, with its arguments.",
        show_default=False,
    ),
]


def pipe(  # noqa: PLR0913, PLR0917 - one for each option
    stream: Annotated[
        str,
        typer.Option(help="Stream to read.", show_default=False, autocompletion=stream_names),
    ],
    command: Command = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the consumer, which has the position. Default: the stream's name.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset (with one --partition) or a time; where there is no "
            "checkpoint.",
        ),
    ] = "earliest",
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="End: latest, an offset, or a time.", show_default=False
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="Only this partition; can be repeated. Default: all.", show_default=False
        ),
    ] = None,
    every_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows between checkpoints. Default: 1000.", show_default=False),
    ] = None,
    every_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Bytes between checkpoints.", show_default=False),
    ] = None,
    every_s: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="Age at which rows get a checkpoint anyway."),
    ] = 5.0,
    form: Annotated[
        Literal["json", "raw", "arrow"], typer.Option("--format", help="Format of stdin.")
    ] = "json",
    column: Annotated[
        str | None,
        typer.Option(
            help="Column that raw writes. Default: line, or the only one of text or bytes.",
            show_default=False,
        ),
    ] = None,
    ack: Annotated[
        Literal["line", "exit"],
        typer.Option(
            help="The client acknowledges with a line, or by exit code 0 after each span of rows."
        ),
    ] = "line",
    output: Annotated[
        str | None,
        typer.Option(
            help="Append what clients print to this stream. Default: it is printed.",
            show_default=False,
            autocompletion=stream_names,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="A client that reads nothing, or does not acknowledge, for so long is killed.",
        ),
    ] = 60.0,
    restarts: Annotated[
        int, typer.Option(min=0, help="Restarts of a client that fails on the same rows.")
    ] = 3,
    restart_delay: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="SECONDS", help="Wait before a restart; doubles each time, up to 30."
        ),
    ] = 0.5,
    on_poison: Annotated[
        Literal["stop", "dead-letter"],
        typer.Option(help="A record that the client fails on ends the pipe, or is set aside."),
    ] = "stop",
    max_poison: Annotated[
        int, typer.Option(min=1, help="Records set aside one after the other, before it ends.")
    ] = 10,
    master: Annotated[
        str | None,
        typer.Option(
            help="Spark master, such as `spark://head:7077`: clients run on its executors. "
            "Default: here.",
            show_default=False,
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Forget the checkpoints, and begin at --from.")
    ] = False,
    status: Annotated[
        bool,
        typer.Option("--status", help="Only show the checkpoint of each partition, and the lag."),
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Give the records of a stream to a program in any language, with checkpoints.

    Starts COMMAND once for each partition, and writes records to its stdin. After N rows or B bytes
    it writes a line `["checkpoint",OFFSET]`; the client acknowledges all rows before it by printing
    the same line. If the client, this command or the host dies, the next client gets the rows from
    the last checkpoint on: each row at least once, and those of a partition in order.

    **Formats.** `json`: an object a line, as `bus append` reads it. `raw`: the value of one column
    a line; a request begins with the value of HEADRACE_CHECKPOINT. `arrow`: each span is an Arrow
    IPC stream; the line to print is in the metadata `headrace.checkpoint` of its schema. The client
    also gets HEADRACE_STREAM, HEADRACE_PARTITION and HEADRACE_OFFSET.

    **Other programs.** With `--ack exit`, a program that knows nothing of checkpoints runs once for
    each span: its stdin ends there, and exit code 0 acknowledges.

    **Output.** Other lines of stdout are printed, or with `--output` appended to a stream, once
    each. Stderr is printed, and kept in `logs/pipe-NAME.log` of the home.

    **On Spark.** With `--master`, partitions are dealt to the cores of Spark's executors, and
    clients run there; all hosts must reach the home. Where an executor is lost, others continue.
    What clients print goes to `logs/pipe-NAME.slot-N.log`, or with `--output` to the stream.

    **Failures.** A client that exits with another code than 0, hangs, or prints what does not fit
    is restarted; then the record that it fails on is looked for, and set aside if wanted. A client
    that exits with 0 wants no more rows.

    **Exit codes.** 0: `--until` is reached, or clients exited with 0. A client's own code if it
    failed after all restarts, 128 + N for signal N, 124 if it hung. 130: Ctrl-C or SIGTERM, after a
    last checkpoint; a second one kills the clients.

    Guide: pipes.

    For example:

        headrace pipe --stream orders --every-rows 500 -- python3 client.py
    """
    from headrace.clock import SystemClock
    from headrace.pipe.runner import ClientFailedError, Pipe, PipeOptions

    if master is not None:
        extras.load("pyspark", "headrace pipe --master")

    settings = settings_of(home)
    rows = every_rows if every_rows or every_bytes else 1000
    options = PipeOptions(
        tuple(command or ()),
        name or stream,
        sorted({*partition}) if partition else None,
        *(start, until, reset, rows, every_bytes, every_s, form, column, ack, output),
        *(timeout, restarts, restart_delay, on_poison == "dead-letter", max_poison),
    )
    with open_home_bus(settings) as bus:
        found = bus.stream(stream)
        _check(options, found)
        if status:
            _show_status(settings.home, options, found, as_json=as_json)
            return
        _check_command(options.command)
        hooks = _Console(settings.home, options, many=found.spec.partitions > 1, as_json=as_json)
        running: Pipe | SparkPipe
        if master is None:
            running = Pipe(bus, found, settings.home, options, hooks.hooks, SystemClock())
            hooks.begun(running.offsets)
        else:
            from headrace.pipe.on_spark import SparkPipe

            running = SparkPipe(bus, found, settings, options, master, hooks.notice, SystemClock())
        try:
            with _stopped_by_signals(running) as signals:
                results = running.run()
        except ClientFailedError as error:
            show(error, record(error, settings.home))
            raise typer.Exit(int(error.fields["exit_code"])) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        hooks.ended(results)
    if signals:
        raise typer.Exit(INTERRUPTED)


def _check(options: PipeOptions, stream: Stream) -> None:
    from headrace.bus.spec import check_name
    from headrace.cli.bus.tail import Tail

    check_name(options.name)
    for one in options.partitions or ():
        Tail(stream, one)
    partitions = options.partitions or range(stream.spec.partitions)
    tail = Tail(stream, partitions[0] if len(partitions) == 1 else None)
    tail.places(options.start, "--from")
    tail.stop(options.until)


def _check_command(command: Sequence[str]) -> None:
    if not command:
        raise InvalidInputError(
            "no command is given for the clients; give it last, such as: headrace pipe --stream "
            "orders -- python3 client.py"
        )
    if shutil.which(command[0]) is None:
        reason = "it is not executable" if Path(command[0]).is_file() else "check its name and PATH"
        raise InvalidInputError(f"no command {command[0]!r}; {reason}")


@contextmanager
def _stopped_by_signals(running: Pipe | SparkPipe) -> Iterator[list[int]]:
    """Let the first SIGINT or SIGTERM stop a pipe, and the second one kill its clients."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def stop(number: int, _: object) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt
        # Not by what prints, whose lock this thread may hold.
        os.write(2, b"headrace pipe: waiting for a last checkpoint; Ctrl-C again kills clients\n")
        running.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Console:
    """What clients print and what there is to say about them: on the screen, and in a log."""

    def __init__(self, home: Path, options: PipeOptions, *, many: bool, as_json: bool) -> None:
        from headrace.pipe.client import ClientLog
        from headrace.pipe.runner import PipeHooks

        self._file = ClientLog(home, options.name)
        self._options, self._many, self._as_json = options, many, as_json
        self._lock = threading.Lock()
        self.hooks = PipeHooks(self._print, self._log, self.notice)

    def begun(self, offsets: dict[int, int]) -> None:
        """Say where each partition begins."""
        places = ", ".join(f"{partition} at {offset}" for partition, offset in offsets.items())
        self.notice(f"consumer {self._options.name!r}, partition {places}")

    def ended(self, results: Sequence[PartitionResult]) -> None:
        """Say what became of each partition."""
        if self._as_json:
            show_json(*map(asdict, results))
            return
        for one in results:
            rows, points = count_text(one.rows, "row"), count_text(one.checkpoints, "checkpoint")
            more = {
                "output row": one.output_rows,
                "dead letter": one.dead_letters,
                "restart": one.restarts,
            }
            rest = "".join(f", {count_text(n, what)}" for what, n in more.items() if n)
            self.notice(f"partition {one.partition}: {rows}, {points}{rest}, up to {one.offset}")

    def _print(self, lines: list[bytes]) -> None:
        with self._lock:
            typer.echo(b"\n".join(lines), err=self._as_json)

    def _log(self, partition: int, lines: list[str]) -> None:
        head = f"{partition}: " if self._many else ""
        self._file.write(f"partition {partition}: {line}" for line in lines)
        with self._lock:
            typer.echo("\n".join(head + line for line in lines), err=True)

    def notice(self, text: str) -> None:
        """Print a sentence about the pipe, and log it."""
        self._file.write([text])
        with self._lock:
            typer.echo(f"headrace pipe: {text}", err=True)


def _show_status(home: Path, options: PipeOptions, stream: Stream, *, as_json: bool) -> None:
    from headrace.pipe.consumer import ConsumerPlace

    ends, rows = stream.ends(), []
    for partition in options.partitions or range(len(ends)):
        place = ConsumerPlace(home, options.name, stream, partition)
        at = place.read()
        rows.append(
            {
                "consumer": options.name,
                "partition": partition,
                "offset": None if at is None else at.offset,
                "end": ends[partition],
                "lag": None if at is None else ends[partition] - at.offset,
                "checkpoint": None if at is None else at.number,
                "reader": place.holder(),
            }
        )
    if as_json:
        show_json(*rows)
        return
    titles = tuple(rows[0])
    cells = [["-" if value is None else str(value) for value in row.values()] for row in rows]
    show_table(titles, cells, right=("partition", "offset", "end", "lag", "checkpoint"))
