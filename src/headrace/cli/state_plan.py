"""``headrace state plan``: what a changelog costs a job, and what full checkpoints would cost.

Draws the paper's Figure 7 with the job in it. Also opens the readers of a job's state for the other
``state`` commands.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import extras
from headrace.cli.options import Home, JobName, Json, settings_of
from headrace.cli.output import (
    count_text,
    seconds_text,
    show_facts,
    show_json,
    show_table,
    show_wrapped,
    size_text,
)
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from headrace.coordinator.inspection.job_reader import JobReader, StateFigures


def open_readers(job: str, home: Path | None) -> list[JobReader]:
    """Return the readers of all parts of a job below a home; most jobs have one."""
    from headrace.coordinator.inspection.job_reader import part_readers

    return part_readers(settings_of(home), job)


def open_reader(job: str, store: str, home: Path | None) -> JobReader:
    """Return the reader of the part of a job that has a store, below a home."""
    from headrace.coordinator.inspection.job_reader import reader_of

    return reader_of(open_readers(job, home), store)


SIZE_INCHES, DPI = (10.0, 6.2), 120
_INK, _FAINT, _ACCENT, _PAPER = "#1f2933", "#7b8794", "#c8452f", "#fbfaf7"
_SHADE, _LINES = "#e9dfc7", ("#2f5d8a", "#5b9bd5", "#3d7a4f", "#8fbf9f")
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": _FAINT,
    "axes.facecolor": _PAPER,
    "figure.facecolor": _PAPER,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def draw_figure(found: StateFigures, path: Path) -> Path:
    """Write the figure as PNG.

    Args:
        found: the job's figures.
        path: of the file.

    Raises:
        InvalidInputError: Matplotlib is not installed, or the job has logged nothing.
    """
    if (text := extras.lacking("matplotlib", "the figure")) is not None:
        raise InvalidInputError(text)
    model = found.model
    if found.interval_s is None or not (model.change_rate and model.state_bytes):
        raise InvalidInputError(
            f"job {found.job!r} has no changes to draw in its last epochs; let it run for some "
            "epochs, or look at more of them with --epochs"
        )
    with tempfile.TemporaryDirectory() as cache:
        # Matplotlib keeps a font cache, in the user's home by default.
        os.environ.setdefault("MPLCONFIGDIR", cache)
        try:
            _draw(path, found, found.interval_s)
        finally:
            if os.environ["MPLCONFIGDIR"] == cache:
                del os.environ["MPLCONFIGDIR"]
    return path


def _draw(path: Path, found: StateFigures, interval_s: float) -> None:
    # Not at the top: its configuration folder must be chosen before, and it takes a while.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from headrace.state.compaction_policy import PAPER_INTERVALS_S

    with mpl.rc_context(_STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout=layout)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        begin, end = min(interval_s / 2, PAPER_INTERVALS_S[0] / 4), PAPER_INTERVALS_S[1] * 1.5
        _draw_paper(axes, begin, end)
        _draw_job(axes, found, interval_s, (begin, end))
        _label(axes, found, (begin, end))
        figure.savefig(path)


def _draw_paper(axes: Any, begin: float, end: float) -> None:
    from headrace.state.compaction_policy import (
        GB,
        KB,
        PAPER_ENTRIES,
        PAPER_INTERVALS_S,
        PAPER_RATES,
        PAPER_STATES,
        TB,
        break_even_rate,
    )

    axes.axhspan(*PAPER_RATES, color=_SHADE, linewidth=0, zorder=0)
    names = iter(_LINES)
    low, high = PAPER_INTERVALS_S
    for state in PAPER_STATES:
        for entry in PAPER_ENTRIES:
            color = next(names)
            rates = [break_even_rate(state, at, entry) for at in (low, high)]
            axes.plot((low, high), rates, color=color, linewidth=2)
            dim = [break_even_rate(state, at, entry) for at in (begin, low)]
            axes.plot((begin, low), dim, color=color, linewidth=1, linestyle=":")
            size = f"{state // TB} TB" if state >= TB else f"{state // GB} GB"
            of = f"{entry // KB} KB" if entry >= KB else f"{entry} B"
            axes.annotate(
                f" {size}, {of}", (high, rates[1]), color=color, va="center", annotation_clip=False
            )


def _draw_job(axes: Any, found: StateFigures, interval_s: float, span: tuple[float, float]) -> None:
    from headrace.state.compaction_policy import break_even_rate

    model = found.model
    rates = [break_even_rate(model.state_bytes, at, model.entry_bytes) for at in span]
    axes.plot(span, rates, color=_ACCENT, linewidth=2)
    axes.plot([interval_s], [model.change_rate], "o", color=_ACCENT, markersize=9, zorder=5)
    axes.axhline(model.change_rate, color=_ACCENT, linewidth=0.8, linestyle="--")
    summary = f"{found.job}: {model.change_rate:,.0f} changes/s, an epoch each {interval_s:.2g} s"
    axes.annotate(
        summary,
        (interval_s, model.change_rate),
        xytext=(12, -18),
        textcoords="offset points",
        color=_ACCENT,
        fontweight="bold",
        bbox={"facecolor": _PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 2},
        zorder=6,
    )


def _label(axes: Any, found: StateFigures, span: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*span)
    axes.set_xlabel("time between two full checkpoints")
    axes.set_ylabel("changes of entries a second")
    axes.set_title("Below its line, a changelog makes less data than full checkpoints")
    ticks = [1, 10, 60, 600, 1200, 5400]
    names = ["1 s", "10 s", "1 min", "10 min", "20 min", "90 min"]
    shown = [(at, name) for at, name in zip(ticks, names, strict=True) if span[0] <= at <= span[1]]
    axes.set_xticks([at for at, _ in shown], [name for _, name in shown])
    axes.minorticks_off()
    axes.grid(color="#e4e2dc", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    model = found.model
    axes.text(
        0.01,
        0.02,
        f"red: break-even of {found.job} ({model.state_bytes / 1e6:,.1f} MB of state, "
        f"{model.entry_bytes:,.0f} B a change); shaded: ten times the rates of the paper's jobs",
        transform=axes.transAxes,
        color=_FAINT,
        fontsize=9,
    )


INTERVALS_S = (600.0, 1200.0, 5400.0)


def plan(
    job: JobName,
    epochs: Annotated[int, typer.Option(min=1, help="Number of last epochs to use.")] = 100,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PNG file for the paper's Figure 7 with the job in it; needs "
            "Matplotlib, as in `headrace[demo]`.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Compare the cost of the changelog with that of full checkpoints, for one job.

    Prints the Samza paper's cost model with the job's own data, from the manifests of its last
    epochs: state size, changes a second and their size; the data that full checkpoints would write
    at the job's epoch interval and at the paper's; where both are equal; what the job does with
    the files of each task now, and why.

    Guide: state.

    For example:

        headrace state plan shop --chart plan.png
    """
    from headrace.coordinator.inspection.job_reader import state_figures

    for reader in open_readers(job, home):
        found = state_figures(reader.log, reader.job, epochs)
        if chart is not None:
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
    model = found.model
    rate = model.break_even_rate(interval)
    return [
        seconds_text(interval) + (" (epoch)" if interval == found.interval_s else ""),
        f"{size_text(model.checkpoint_rate(interval))}/s",
        "-" if rate is None else f"{rate:,.0f}/s",
        "changelog" if model.prefers_changelog(interval) else "checkpoint",
    ]
