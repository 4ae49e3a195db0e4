"""``headrace state plan``: what a changelog costs a job, and full checkpoints would."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Home, JobName, Json, settings_of
from headrace.cli.screen import show_json

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    from headrace.clock import SystemClock
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.commit_log import FileCommitLog
    from headrace.coordinator.inspection.state_figures import state_figures
    from headrace.coordinator.storage import check_job_name
    from headrace.errors import InvalidInputError
    from headrace.files import Files

    root = newest_of(settings_of(home), check_job_name(job))
    if not (root / "manifests").is_dir():
        raise InvalidInputError(f"no job {job!r} in {root.parent}; check its name and --home")
    log = FileCommitLog(root, Files(sync=False), SystemClock())
    found = state_figures(log, job, epochs)
    if chart is not None:
        from headrace.cli.state.chart import draw_figure

        draw_figure(found, chart)
    if as_json:
        show_json(figures_json(found))
        return
    for line in lines(found):
        typer.echo(line)


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


def lines(found: StateFigures) -> Iterator[str]:
    """Yield what people read."""
    from headrace.cli.words import count_text, seconds_text, size_text

    model = found.model
    yield (
        f"job {found.job} at epoch {found.epoch}: figures of {count_text(found.epochs, 'epoch')} "
        f"in {seconds_text(found.seconds)}"
    )
    yield f"state      {size_text(found.state_bytes)} in {count_text(len(found.tasks), 'task')}"
    yield f"changes    {model.change_rate:,.0f} entries/s of {model.entry_bytes:,.0f} B"
    yield f"changelog  {size_text(model.changelog_rate)}/s = change_rate x entry_size"
    yield ""
    yield "a full checkpoint each   makes state_size / interval   breaks even at   less data by"
    for interval in _intervals(found):
        label = seconds_text(interval) + (" (epoch)" if interval == found.interval_s else "")
        rate = model.break_even_rate(interval)
        yield (
            f"{label:<24} {size_text(model.checkpoint_rate(interval)) + '/s':<29} "
            f"{'-' if rate is None else f'{rate:,.0f}/s':<16} "
            f"{'changelog' if model.prefers_changelog(interval) else 'checkpoint'}"
        )
    even = model.break_even_interval_s
    if even is not None:
        yield f"both make the same with a checkpoint each {seconds_text(even)}"
    yield ""
    yield (
        f"now: a changelog each epoch, merged beside it: {size_text(found.merged_bytes)} "
        f"rewritten for {size_text(found.changelog_bytes)} logged; a rebuild of all tasks "
        f"reads {size_text(found.rebuild_bytes)}"
    )
    for task in found.tasks:
        yield f"  {task.name}: {count_text(task.files, 'file')}; {task.reason}"
        if task.due:
            yield f"    next: {task.due}"
