"""Draws the paper's Figures 8, 9 and 10 from a result, as PNG."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.bench.stores.cases import CASES, WORKLOADS, Case
from headrace.errors import InvalidInputError

DPI = 110
INK, FAINT, PAPER = "#1f2933", "#7b8794", "#fbfaf7"
COLORS = {"readonly": "#2f6f8f", "readwrite": "#c8452f"}
NAMES = {"readonly": "ReadOnly", "readwrite": "ReadWrite"}
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.facecolor": PAPER,
    "axes.axisbelow": True,
    "figure.facecolor": PAPER,
    "grid.color": "#e4e2dc",
    "xtick.color": FAINT,
    "ytick.color": INK,
}
_LINES = ("-", "--", ":", "-.")


def need_matplotlib() -> None:
    """Find out early whether figures can be drawn.

    Raises:
        InvalidInputError: Matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidInputError(
            "the figures need Matplotlib; install it with: pip install 'headrace[demo]'"
        )


@contextmanager
def figure(path: Path, title: str, width: float, height: float) -> Iterator[Any]:
    """Give an empty figure in the house's style, and save it as PNG at the end."""
    with tempfile.TemporaryDirectory() as cache:
        # Matplotlib keeps a font cache, in the user's home unless told otherwise.
        os.environ.setdefault("MPLCONFIGDIR", cache)
        # Not at the top: its configuration folder must be chosen before, and it takes a while.
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415

        try:
            with mpl.rc_context(STYLE):
                made = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
                FigureCanvasAgg(made)
                made.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
                yield made
                made.savefig(path)
        finally:
            if os.environ["MPLCONFIGDIR"] == cache:
                del os.environ["MPLCONFIGDIR"]


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``figure-8.png``, ``figure-9.png`` and ``figure-10.png``.

    Args:
        result: what ``command.main`` returned.
        folder: where to.
    """
    paths = [folder / f"figure-{number}.png" for number in (8, 9, 10)]
    _draw_rates(result, paths[0])
    _draw_use(result, paths[1])
    _draw_distributions(result, paths[2])
    return paths


def shown_cases(result: Mapping[str, Any]) -> list[Case]:
    """Return the cases that a result has."""
    names = {name for workload in WORKLOADS for name in result.get(workload, {})}
    return [case for case in CASES if case.name in names]


def _workloads(result: Mapping[str, Any]) -> list[str]:
    return [workload for workload in ("readonly", "readwrite") if workload in result]


def _bars(
    axes: Any, result: Mapping[str, Any], cases: list[Case], path: tuple[str, ...], text: str
) -> None:
    """Draw one bar for each case and workload of what stands at a path, with its value."""
    workloads = _workloads(result)
    high = 0.8 / len(workloads)
    for turn, workload in enumerate(workloads):
        places: list[float] = []
        values: list[float] = []
        for number, case in enumerate(cases):
            value: Any = result[workload].get(case.name, {})
            for part in path:
                value = value.get(part, {}) if isinstance(value, Mapping) else {}
            if isinstance(value, int | float):
                places.append(number + (turn - (len(workloads) - 1) / 2) * high)
                values.append(value)
        axes.barh(places, values, height=high * 0.92, color=COLORS[workload], label=NAMES[workload])
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                text.format(value),
                (value, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                size=7.5,
            )
    axes.set_yticks(range(len(cases)), [case.label for case in cases])
    if not axes.yaxis_inverted():  # panels share theirs
        axes.invert_yaxis()
    axes.grid(axis="x")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.margins(x=0.16)


def _draw_rates(result: Mapping[str, Any], path: Path) -> None:
    cases = shown_cases(result)
    with figure(path, "Throughput and latency by store (the paper's Figure 8)", 13, 6) as made:
        left, right = made.subplots(1, 2, sharey=True)
        _bars(left, result, cases, ("rate", "rows_per_s"), "{:,.0f}")
        left.set_xscale("log")
        left.set_title("messages a second")
        _bars(right, result, cases, ("processed", "mean_us"), "{:,.1f}")
        right.set_xscale("log")
        right.set_title("mean time from fetched to processed, microseconds")
        left.legend(loc="lower right", frameon=False)


def _draw_use(result: Mapping[str, Any], path: Path) -> None:
    cases = shown_cases(result)
    panels = (
        (("rate", "cpu_cores", "workers"), "{:.2f}", "cores that the workers kept busy"),
        (("rate", "worker_us_a_row"), "{:.2f}", "processor time of workers a message, us"),
        (("rate", "disk_written_bytes_a_row"), "{:,.0f}", "bytes written to disk a message"),
        (("rate", "network_bytes_a_row"), "{:,.0f}", "bytes to and from the server a message"),
    )
    with figure(path, "Use of the machine by store (the paper's Figure 9)", 16, 6) as made:
        for axes, (where, text, title) in zip(
            made.subplots(1, len(panels), sharey=True), panels, strict=True
        ):
            _bars(axes, result, cases, where, text)
            axes.set_title(title, size=9.5)
            if where[-1] == "worker_us_a_row":
                axes.set_xscale("log")
        made.axes[0].legend(loc="lower right", frameon=False)


def _draw_distributions(result: Mapping[str, Any], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415

    colors = [mpl.colormaps["tab20"](number) for number in range(20)]
    workload = "readwrite" if "readwrite" in result else _workloads(result)[0]
    title = f"Latency of a message by store, {NAMES[workload]} (the paper's Figure 10)"
    with figure(path, title, 13, 6) as made:
        panels = made.subplots(1, 2, sharey=True)
        kinds = {
            "processed": "fetched to processed, as the paper has it",
            "visible": "appended to visible, as a user sees it",
        }
        for axes, (kind, name) in zip(panels, kinds.items(), strict=True):
            for turn, case in enumerate(shown_cases(result)):
                points = result[workload].get(case.name, {}).get(kind, {}).get("points", [])
                xs = [max(value, 0.05) / 1000 for _, value in points]
                ys = [share for share, _ in points]
                style = _LINES[turn % len(_LINES)]
                axes.plot(xs, ys, style, color=colors[turn % 20], label=case.label, linewidth=1.6)
            axes.set_xscale("log")
            axes.set_xlabel("milliseconds")
            axes.set_title(name)
            axes.grid()
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        panels[0].set_ylabel("share of messages")
        panels[0].legend(loc="lower right", frameon=False, fontsize=7.5)
