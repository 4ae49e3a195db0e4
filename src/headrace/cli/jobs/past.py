"""``jobs history``: rows a second, lag and state of a job over time, from its own samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Home, JobName, Json, settings_of
from headrace.cli.screen import show_json, show_table
from headrace.cli.words import count_text, seconds_text, size_text, time_text

if TYPE_CHECKING:
    from headrace.config import Settings
    from headrace.control.description import EventTold
    from headrace.control.past import InputPast, Past, StagePast

MOST_EVENTS = 1_000_000
BARS = "▁▂▃▄▅▆▇█"
TITLES = ("rows", "rows/s", "out", "epochs", "ms each", "lag", "state")
INPUT_TITLES = ("rows", "rows/s", "lag now", "lag at most")
STAGE_TITLES = ("watermark (UTC)", "behind now", "behind at most")


def history(
    job: JobName,
    last: Annotated[
        str,
        typer.Option("--last", metavar="DURATION", help="How far back, such as 6h; at most 7d."),
    ] = "1h",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="From this time on, such as 2013-01-31T05:15.",
            show_default=False,
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", min=1, max=1000, help="Lines to show.")] = 12,
    events: Annotated[
        bool, typer.Option("--events", help="What happened to drivers, hosts and workers.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Show rows, lag and state of a job over time, whether it runs or not."""
    from headrace.cli.running.starts import read_time
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.durations import duration_ms

    settings, clock = settings_of(home), SystemClock()
    now = clock.now_ms()
    begin = max(0, now - duration_ms(last, "--last"))
    if since is not None:
        begin = max(0, read_time(since, "--since", "a time"))
    part_readers(settings, job, clock)  # so that a job that is not there is told
    if events:
        _show_story(settings, job, begin, as_json=as_json)
        return
    found = _past(settings, job, begin, max(now, begin + 1), lines)
    if as_json:
        show_json({"job": job, **found.told()})
    elif found.stretches:
        _show(found)
    else:
        span = f"in the last {last}" if since is None else f"since {since}"
        typer.echo(f"{job} was not running {span}; --last 7d looks further back")
    if found.left_out and not as_json:
        typer.echo(f"{count_text(found.left_out, 'sample')} could not be read: left out", err=True)


def _past(settings: Settings, job: str, begin_ms: int, end_ms: int, lines: int) -> Past:
    """Return what the driver tells, up to this moment, or else the samples that are kept."""
    from headrace.control.client import asked
    from headrace.control.past import Past, past_of
    from headrace.control.samples import SampleLog
    from headrace.coordinator.backup.places import newest_of

    wanted = f"begin_ms={begin_ms}&end_ms={end_ms}&lines={lines}"
    told = asked(settings, job, f"/v1/history?{wanted}", Past)
    if told is not None:
        return told
    log = SampleLog(newest_of(settings, job))
    found = past_of(log.read(begin_ms), begin_ms, end_ms, lines)
    return replace(found, left_out=log.left_out)


def _story(settings: Settings, job: str, begin_ms: int) -> tuple[list[EventTold], bool]:
    """Return what happened, and whether the driver told it."""
    from headrace.control.client import asked
    from headrace.control.description import EventTold, event_told
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.parts import part_folders
    from headrace.coordinator.story import story_of

    path = f"/v1/events?last={MOST_EVENTS}&since_ms={begin_ms}"
    told = asked(settings, job, path, list[EventTold])
    if told is not None:
        return told, True
    found = story_of([newest_of(settings, job), *part_folders(settings, job)], begin_ms)
    return list(map(event_told, found)), False


def _show_story(settings: Settings, job: str, begin_ms: int, *, as_json: bool) -> None:
    from headrace.cli.jobs.text import show_events

    found, live = _story(settings, job, begin_ms)
    if as_json:
        show_json({"job": job, "live": live, "events": list(map(asdict, found))})
    elif found:
        show_events(found)
    else:
        typer.echo(f"nothing happened to {job} in that time; --last 7d looks further back")


def _show(found: Past) -> None:
    rows = [
        [
            time_text(one.begin_ms, with_ms=False),
            f"{one.rows:,}",
            _rate(one.rows, one.seconds),
            f"{one.output_rows:,}",
            f"{one.epochs:,}",
            f"{one.busy_ms / one.epochs:.0f}" if one.epochs else "-",
            f"{one.lag:,}",
            size_text(one.state_bytes),
        ]
        for one in found.stretches
    ]
    show_table(("from (UTC)", *TITLES), rows, right=TITLES)
    typer.echo()
    typer.echo(f"rows  {bars(one.rows for one in found.stretches)}")
    typer.echo(f"lag   {bars(one.lag for one in found.stretches)}")
    _show_part("input", INPUT_TITLES, [_input_row(one) for one in found.inputs], "lag over time")
    _show_part("stage", STAGE_TITLES, [_stage_row(one) for one in found.stages], "behind over time")


def _show_part(kind: str, titles: Sequence[str], rows: Sequence[Sequence[str]], graph: str) -> None:
    if rows:
        typer.echo()
        show_table((kind, *titles, graph), rows, right=titles, spare=(graph,))


def _input_row(one: InputPast) -> list[str]:
    rows, seconds = sum(s.rows for s in one.stretches), sum(s.seconds for s in one.stretches)
    lags = [stretch.lag for stretch in one.stretches]
    return [
        one.name,
        f"{rows:,}",
        _rate(rows, seconds),
        f"{one.lag:,}",
        f"{max(lags):,}",
        bars(lags),
    ]


def _stage_row(one: StagePast) -> list[str]:
    behind = [stretch.behind_ms for stretch in one.stretches]
    known = [ms for ms in behind if ms is not None]
    return [
        one.name,
        time_text(one.watermark_ms, with_ms=False),
        "-" if one.behind_ms is None else seconds_text(one.behind_ms / 1000),
        seconds_text(max(known) / 1000) if known else "-",
        bars(max(0, ms or 0) for ms in behind),
    ]


def _rate(rows: int, seconds: float) -> str:
    return f"{rows / seconds:,.0f}" if seconds else "-"


def bars(values: Iterable[float]) -> str:
    """Draw values as bars from 0 to the largest."""
    held = list(values)
    most = max(held, default=0) or 1
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in held)
