"""``headrace explore``: one query over the streams of a home, with a chart in the terminal."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.options import Config, Home, Json, Set, open_home_bus, settings_of
from headrace.cli.output import count_text, show_json, show_line, show_table, terminal_width
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from headrace.bus import Bus
    from headrace.config import Settings
    from headrace.explore.results import Result
    from headrace.explore.service import ExploreService

PIPE_WIDTH, MOST_WIDTH = 80, 1_000


def explore(  # noqa: PLR0913, PLR0917 - one for each option
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL",
            help="One SELECT over streams, by their names.",
            show_default=False,
        ),
    ] = None,
    tail: Annotated[
        bool,
        typer.Option("--tail", help="Answer nothing: keep streams as columns until Ctrl-C."),
    ] = False,
    streams: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN,...",
            help="Streams that are kept. Default: explore.streams.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most rows of the answer. Default: explore.query_rows.", show_default=False
        ),
    ] = None,
    chart: Annotated[
        Literal["auto", "no", "only"],
        typer.Option(help="Whether a chart is drawn; auto: below the table, where one can be."),
    ] = "auto",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Answer one SELECT over the newest rows of streams, with a chart of plain characters.

    The streams that the query names are read up to now first; what is read is kept as columns below
    the home, for the next query and for `headrace ui`. Each table has the columns of its stream and
    `_time`, `_time_ms`, `_sample_rate`, `_partition` and `_offset`.

    Guide: explore.

    For example:

        headrace explore "select route, count(*) n from clicks group by route order by n desc"
    """
    settings = settings_of(home, config, overrides, {"--streams": ("explore.streams", streams)})
    if tail != (sql is None):
        raise InvalidInputError(
            'give one query, such as headrace explore "select count(*) from clicks", or --tail'
        )
    if as_csv and as_json:
        raise InvalidInputError("--csv and --json are two forms of one answer; choose one")
    with open_home_bus(settings) as bus:
        if sql is None:
            _tail(bus, settings)
            return
        _show(_answer(bus, settings, sql, limit), chart, as_csv=as_csv, as_json=as_json)


def _answer(bus: Bus, settings: Settings, sql: str, limit: int | None) -> Result:
    from headrace.clock import SystemClock
    from headrace.explore.service import ExploreService
    from headrace.explore.sql_box import read_select

    chosen = [name for name in bus.names() if settings.explore.rule_of(name) is not None]
    wanted = frozenset(read_select(sql, chosen).tables.values())
    service = ExploreService(bus, settings, SystemClock(), only=wanted)
    try:
        _catch_up(service)
        return service.sql(sql, lambda _: True, limit)
    finally:
        service.close()


def _catch_up(service: ExploreService) -> None:
    """Read the streams to their ends, those that can be read."""
    while service.tailer.step():
        pass
    for one in service.tailer.statuses():
        if one.problem:
            typer.echo(f"warning: stream {one.stream}: {one.problem}", err=True)


def _tail(bus: Bus, settings: Settings) -> None:
    from headrace.clock import SystemClock
    from headrace.explore.tailer import Tailer

    tailer, over = Tailer(bus, settings, SystemClock()), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    tailer.start()
    role = "keeping" if tailer.is_writer else "following the files of another process for"
    show_line(f"{role} {', '.join(tailer.names()) or 'no stream yet'}")
    try:
        over.wait()
    except KeyboardInterrupt:
        pass
    finally:
        tailer.stop()


def _show(result: Result, chart: str, *, as_csv: bool, as_json: bool) -> None:
    from headrace.explore.export import export_rows

    names = [one.name for one in result.columns]
    if as_json:
        show_json(*(dict(zip(names, row, strict=True)) for row in result.rows))
        return
    if as_csv:
        typer.echo(export_rows(result, "csv").decode(), nl=False)
        return
    if chart != "only":
        _show_rows(result)
    if chart != "no" and (text := _chart(result)):
        typer.echo(text if chart == "only" else f"\n{text}")
    if result.warning:
        typer.echo(f"note: {result.warning}", err=True)


def _show_rows(result: Result) -> None:
    from headrace.explore.chart import number_text

    def text(value: Any, kind: str) -> str:
        if value is None:
            return "-"
        if kind.startswith("timestamp") and isinstance(value, int):
            from headrace.cli.output import time_text

            return time_text(value)
        if isinstance(value, float):
            return number_text(value)
        return "".join(one if one.isprintable() else "?" for one in str(value))

    titles = _titles(result)
    kinds = [one.type for one in result.columns]
    rows = [[text(v, k) for v, k in zip(row, kinds, strict=True)] for row in result.rows]
    right = [
        title
        for title, kind in zip(titles, kinds, strict=True)
        if kind.startswith(("int", "uint", "float", "decimal"))
    ]
    show_table(titles, rows, right)
    if not rows:
        show_line(count_text(0, "row"))


def _titles(result: Result) -> list[str]:
    from headrace.explore.export import unique

    return unique([one.name for one in result.columns])


def _chart(result: Result) -> str:
    from headrace.explore.chart import chart

    columns = [(one.name, one.type.startswith("timestamp")) for one in result.columns]
    if len(result.rows) < 2:
        return ""
    width = terminal_width()
    return chart(columns, result.rows, PIPE_WIDTH if width > MOST_WIDTH else width)
