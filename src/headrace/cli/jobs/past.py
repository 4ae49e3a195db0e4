"""``jobs history``: rows a second, lag and state of a job over time, from its own samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.cli.options import Home, JobName, Json, settings_of
from headrace.cli.screen import show_json, show_table
from headrace.cli.words import size_text, time_text

if TYPE_CHECKING:
    from headrace.control.samples import Sample

BARS = "▁▂▃▄▅▆▇█"
TITLES = ("rows", "rows/s", "epochs", "ms each", "lag", "state")


class Stretch(NamedTuple):
    """What happened in one of the equal parts of the time that is shown."""

    begin_ms: int
    rows: int
    seconds: float
    epochs: int
    busy_ms: float
    lag: int
    state_bytes: int


def history(
    job: JobName,
    last: Annotated[
        str,
        typer.Option("--last", metavar="DURATION", help="How far back, such as 6h; at most 7d."),
    ] = "1h",
    lines: Annotated[int, typer.Option("--lines", min=1, max=1000, help="Lines to show.")] = 12,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Show rows, lag and state of a job over time, whether it runs or not."""
    from headrace.cli.options import open_home_bus
    from headrace.clock import SystemClock
    from headrace.control.samples import SampleLog
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.inspection.job_list import view_job
    from headrace.graph.durations import duration_ms

    settings, clock = settings_of(home), SystemClock()
    span = duration_ms(last, "--last")
    with open_home_bus(settings) as bus:
        view_job(settings, job, bus, clock)  # so that a job that is not there is told
    now = clock.now_ms()
    samples = list(SampleLog(newest_of(settings, job)).read(now - span))
    found = stretches(samples, now - span, now, lines)
    if as_json:
        show_json({"job": job, "stretches": [one._asdict() for one in found]})
    elif found:
        _show(found)
    else:
        typer.echo(f"{job} was not running in the last {last}; --last 7d looks further back")


def stretches(samples: Sequence[Sample], begin_ms: int, end_ms: int, count: int) -> list[Stretch]:
    """Cut the time into equal parts, and sum up those in which the job ran.

    What counts up is taken from sample to sample of one driver; a driver that begins anew counts
    from 0, and its rows go on from those of the job.
    """
    width = max(1, -(-(end_ms - begin_ms) // count))
    sums: dict[int, list[Any]] = {}
    for before, sample in zip([None, *samples], samples, strict=False):
        part = sums.setdefault((sample.at_ms - begin_ms) // width, [0, 0.0, 0, 0.0, 0, 0])
        part[4], part[5] = max(part[4], sample.lag), sample.state_bytes
        if before is None or before.driver != sample.driver:
            continue
        part[0] += sample.rows - before.rows
        part[1] += (sample.at_ms - before.at_ms) / 1000
        part[2] += sample.epochs - before.epochs
        part[3] += sample.busy_ms - before.busy_ms
    return [Stretch(begin_ms + at * width, *part) for at, part in sorted(sums.items())]


def _show(found: Sequence[Stretch]) -> None:
    rows = [
        [
            time_text(one.begin_ms, with_ms=False),
            f"{one.rows:,}",
            f"{one.rows / one.seconds:,.0f}" if one.seconds else "-",
            f"{one.epochs:,}",
            f"{one.busy_ms / one.epochs:.0f}" if one.epochs else "-",
            f"{one.lag:,}",
            size_text(one.state_bytes),
        ]
        for one in found
    ]
    show_table(("from (UTC)", *TITLES), rows, right=TITLES)
    typer.echo()
    typer.echo(f"rows  {bars(one.rows for one in found)}")
    typer.echo(f"lag   {bars(one.lag for one in found)}")


def bars(values: Iterable[float]) -> str:
    """Draw values as bars from 0 to the largest."""
    held = list(values)
    most = max(held, default=0) or 1
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in held)
