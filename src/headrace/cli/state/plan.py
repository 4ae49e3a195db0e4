"""``headrace state plan``: what a changelog costs a job, and full checkpoints would."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Home, JobName, Json
from headrace.cli.screen import show_facts, show_json, show_table, show_wrapped
from headrace.cli.state.readers import open_readers

if TYPE_CHECKING:
    from headrace.coordinator.inspection.state_figures import StateFigures

INTERVALS_S = (600.0, 1200.0, 5400.0)


def plan(
    job: JobName,
    epochs: Annotated[int, typer.Option(min=1, help="At most so many of the newest.")] = 100,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the paper's Figure 7 with the job in it, as PNG.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Weigh a changelog against checkpoints with the job's own figures."""
    from headrace.coordinator.inspection.state_figures import state_figures

    for reader in open_readers(job, home):
        found = state_figures(reader.log, reader.job, epochs)
        if chart is not None:
            from headrace.cli.state.chart import draw_figure

            draw_figure(found, _of_part(chart, reader.job))
        if as_json:
            show_json(figures_json(found))
        else:
            show_plan(found)


def _of_part(chart: Path, name: str) -> Path:
    """The file of a part that is not the first has its name, too."""
    from headrace.plan.stages import PART

    part = name.partition(PART)[2]
    return chart.with_stem(f"{chart.stem}-{part}") if part else chart


def figures_json(found: StateFigures) -> dict[str, Any]:
    """Return everything for programs; rates are a second, ``None`` where nothing is known."""
    model = found.model
    return {
        "job": found.job,
        "epoch": found.epoch,
        "epochs": found.epochs,
        "seconds": found.seconds,
        "state_bytes": found.state_bytes,
        "change_rate": model.change_rate,
        "entry_bytes": model.entry_bytes,
        "changelog_bytes_per_s": model.changelog_rate,
        "break_even_interval_s": model.break_even_interval_s,
        "intervals": [
            {
                "interval_s": interval,
                "is_epoch": interval == found.interval_s,
                "checkpoint_bytes_per_s": model.checkpoint_rate(interval),
                "break_even_rate": model.break_even_rate(interval),
                "prefers_changelog": model.prefers_changelog(interval),
            }
            for interval in _intervals(found)
        ],
        "rebuild_bytes": found.rebuild_bytes,
        "merged_bytes": found.merged_bytes,
        "tasks": [
            {
                "task": task.name,
                "state_bytes": task.state_bytes,
                "files": task.files,
                "snapshot_bytes": task.snapshot_bytes,
                "segment_bytes": task.segment_bytes,
                "reason": task.reason,
                "due": task.due or None,
            }
            for task in found.tasks
        ],
    }


def _intervals(found: StateFigures) -> list[float]:
    own = found.interval_s
    return [*([own] if own is not None else []), *INTERVALS_S]


def show_plan(found: StateFigures) -> None:
    """Print what people read."""
    from headrace.cli.words import count_text, seconds_text, size_text

    model = found.model
    typer.echo(
        f"job {found.job} at epoch {found.epoch}: figures of {count_text(found.epochs, 'epoch')} "
        f"in {seconds_text(found.seconds)}"
    )
    show_facts(
        [
            ("state", f"{size_text(found.state_bytes)} in {count_text(len(found.tasks), 'task')}"),
            ("changes", f"{model.change_rate:,.0f} entries/s of {model.entry_bytes:,.0f} B"),
            ("changelog", f"{size_text(model.changelog_rate)}/s = change_rate x entry_size"),
        ]
    )
    typer.echo()
    titles = ("a checkpoint each", "makes", "breaks even at", "less data by")
    rows = [_interval_row(found, interval) for interval in _intervals(found)]
    show_table(titles, rows, right=("makes", "breaks even at"))
    even = model.break_even_interval_s
    if even:
        typer.echo(f"both make the same with a checkpoint each {seconds_text(even)}")
    typer.echo()
    show_wrapped(
        "now: ",
        f"a changelog each epoch, merged beside it: {size_text(found.merged_bytes)} "
        f"rewritten for {size_text(found.changelog_bytes)} logged; a rebuild of all tasks "
        f"reads {size_text(found.rebuild_bytes)}",
    )
    for task in found.tasks:
        show_wrapped(f"  {task.name}: ", f"{count_text(task.files, 'file')}; {task.reason}")
        if task.due:
            show_wrapped("    next: ", task.due)


def _interval_row(found: StateFigures, interval: float) -> list[str]:
    from headrace.cli.words import seconds_text, size_text

    model = found.model
    rate = model.break_even_rate(interval)
    return [
        seconds_text(interval) + (" (epoch)" if interval == found.interval_s else ""),
        f"{size_text(model.checkpoint_rate(interval))}/s",
        "-" if rate is None else f"{rate:,.0f}/s",
        "changelog" if model.prefers_changelog(interval) else "checkpoint",
    ]
