"""Draws the paper's Figure 7 with a job in it: where a changelog beats full checkpoints."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidInputError
from headrace.state.cost_model import (
    GB,
    KB,
    PAPER_ENTRIES,
    PAPER_INTERVALS_S,
    PAPER_RATES,
    PAPER_STATES,
    TB,
    break_even_rate,
)

if TYPE_CHECKING:
    from headrace.coordinator.inspection.state_figures import StateFigures

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
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidInputError(
            "the figure needs Matplotlib; install it with: pip install 'headrace[demo]'"
        )
    model = found.model
    if found.interval_s is None or not (model.change_rate and model.state_bytes):
        raise InvalidInputError(
            f"job {found.job!r} has no changes to draw in its last epochs; let it run for some "
            "epochs, or look at more of them with --epochs"
        )
    with tempfile.TemporaryDirectory() as cache:
        # Matplotlib keeps a font cache, in the user's home unless told otherwise.
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
    model = found.model
    rates = [break_even_rate(model.state_bytes, at, model.entry_bytes) for at in span]
    axes.plot(span, rates, color=_ACCENT, linewidth=2)
    axes.plot([interval_s], [model.change_rate], "o", color=_ACCENT, markersize=9, zorder=5)
    axes.axhline(model.change_rate, color=_ACCENT, linewidth=0.8, linestyle="--")
    told = f"{found.job}: {model.change_rate:,.0f} changes/s, an epoch each {interval_s:.2g} s"
    axes.annotate(
        told,
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
