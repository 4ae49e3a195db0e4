"""Draws what the job found: one PNG of its three outputs, read back from the bus."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from headrace.bus.bus import Bus
from headrace.demo.outputs import read_all
from headrace.errors import InvalidInputError

SIZE_INCHES, DPI = (14.0, 8.4), 120
FEWEST_FLIGHTS = 200
"""A route with fewer flights in the year says more about a bad day than about the route."""

ROUTES = CARRIERS = 10
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TAILS = (" International Airport", " International", " Intl", " Rgnl", " Inc.", " Co.", " Airport")
_INK, _FAINT, _ACCENT, _PAPER = "#1f2933", "#7b8794", "#c8452f", "#fbfaf7"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _FAINT,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": _FAINT,
    "axes.facecolor": _PAPER,
    "figure.facecolor": _PAPER,
    "xtick.color": _FAINT,
    "ytick.color": _INK,
}


def need_matplotlib() -> None:
    """Find out early whether a chart can be drawn.

    Raises:
        InvalidInputError: Matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidInputError(
            "the demo's chart needs Matplotlib; install it with: pip install 'headrace[demo]'"
        )


def draw_chart(
    bus: Bus, path: Path, airports: Mapping[str, str], airlines: Mapping[str, str]
) -> Path:
    """Write the chart.

    Args:
        bus: with the outputs of a finished run.
        path: of the PNG.
        airports: names by code.
        airlines: names by code.
    """
    hours, routes = delay_by_hour(bus), worst_of_year(bus)
    totals = running_totals(bus)
    with tempfile.TemporaryDirectory() as cache:
        # Matplotlib keeps a font cache, in the user's home unless told otherwise.
        os.environ.setdefault("MPLCONFIGDIR", cache)
        try:
            _draw(path, hours, routes, totals, (airports, airlines))
        finally:
            if os.environ["MPLCONFIGDIR"] == cache:
                del os.environ["MPLCONFIGDIR"]
    return path


def _frame(bus: Bus, output: str) -> pl.DataFrame:
    frame = pl.from_arrow(read_all(bus.stream(output)))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _mean() -> pl.Expr:
    return (pl.col("mean_delay") * pl.col("flights")).sum() / pl.col("flights").sum()


def delay_by_hour(bus: Bus) -> pl.DataFrame:
    """Return ``hour``, ``month`` and ``delay``: the mean of all flights, New York time."""
    local = pl.col("window_start").dt.convert_time_zone("America/New_York")
    return (
        _frame(bus, "route_delays")
        .group_by(local.dt.hour().alias("hour"), local.dt.month().alias("month"))
        .agg(_mean().alias("delay"))
        .sort("hour", "month")
    )


def worst_of_year(bus: Bus) -> pl.DataFrame:
    """Return the routes with the greatest mean delay, and how many hours had them in the ten."""
    times = _frame(bus, "worst_routes").group_by("origin", "dest").len("hours")
    return (
        _frame(bus, "route_delays")
        .group_by("origin", "dest")
        .agg(_mean().alias("delay"), pl.col("flights").sum())
        .filter(pl.col("flights") >= FEWEST_FLIGHTS)
        .sort("delay", "origin", "dest", descending=[True, False, False])
        .head(ROUTES)
        .join(times, on=["origin", "dest"], how="left", maintain_order="left")
    )


def running_totals(bus: Bus) -> pl.DataFrame:
    """Return ``carrier``, ``at`` and ``delay`` in hours, for the carriers with most of it."""
    totals = _frame(bus, "carrier_totals")
    latest = totals.sort("at").group_by("carrier").last().sort("delay", descending=True)
    return (
        totals.join(latest.head(CARRIERS).select("carrier"), on="carrier")
        .select("carrier", "at", pl.col("delay") / 60)
        .sort("carrier", "at")
    )


def _draw(
    path: Path,
    hours: pl.DataFrame,
    routes: pl.DataFrame,
    totals: pl.DataFrame,
    names: tuple[Mapping[str, str], Mapping[str, str]],
) -> None:
    # Not at the top: its configuration folder must be chosen before, and it takes a while.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415

    layout = ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.12)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout=layout)
        FigureCanvasAgg(figure)
        title = "Delay radar: flights from New York City, 2013"
        figure.suptitle(title, x=0.011, ha="left", fontsize=17, fontweight="bold")
        grid = figure.add_gridspec(2, 2, width_ratios=[1.3, 1], hspace=0.06)
        _draw_hours(figure.add_subplot(grid[:, 0]), hours)
        _draw_routes(figure.add_subplot(grid[0, 1]), routes, names[0])
        _draw_totals(figure.add_subplot(grid[1, 1]), totals, names[1])
        figure.savefig(path)


def _draw_hours(axes: Any, hours: pl.DataFrame) -> None:
    table = hours.pivot(on="month", on_columns=range(1, 13), index="hour", values="delay")
    values = table.drop("hour").to_numpy()
    image = axes.imshow(values, aspect="auto", cmap="YlOrRd", vmin=0)
    axes.set_title("Mean departure delay by hour and month, minutes")
    axes.set_xticks(range(12), _MONTHS)
    axes.set_yticks(range(table.height), [f"{hour:02d}:00" for hour in table["hour"]])
    axes.set_ylabel("scheduled departure, New York time")
    dark = 0.62 * image.norm.vmax
    for row, column in ((r, c) for r in range(table.height) for c in range(12)):
        value = values[row, column]
        if value is not None and value == value:  # noqa: PLR0124 - NaN is not itself
            color = "white" if value > dark else _INK
            axes.text(column, row, f"{round(value)}", ha="center", va="center", color=color, size=9)
    _plain(axes)
    axes.tick_params(length=0)


def _draw_routes(axes: Any, routes: pl.DataFrame, airports: Mapping[str, str]) -> None:
    places = range(routes.height)
    labels = [
        f"{origin} → {dest}  {_short(airports.get(dest, ''), 24)}"
        for origin, dest in routes.select("origin", "dest").iter_rows()
    ]
    axes.barh(places, routes["delay"], color=_ACCENT, height=0.66)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_title("Routes with the greatest mean delay, minutes")
    for place, (delay, hours) in zip(
        places, routes.select("delay", "hours").iter_rows(), strict=True
    ):
        told = f"{delay:.1f}   {hours or 0:,} times among ten worst"
        axes.text(0.6, place, told, va="center", color="white", size=8.5)
    axes.set_xticks([])
    _plain(axes)
    axes.tick_params(length=0)


def _draw_totals(axes: Any, totals: pl.DataFrame, airlines: Mapping[str, str]) -> None:
    ends = []
    for (carrier,), line in totals.group_by("carrier", maintain_order=True):
        axes.plot(line["at"], line["delay"], linewidth=1.7)
        name = _short(airlines.get(str(carrier), str(carrier)), 24)
        ends.append((line["delay"][-1], line["at"][-1], name, axes.lines[-1].get_color()))
    axes.set_title("Delay of each carrier so far, hours")
    _plain(axes)
    axes.grid(axis="y", color="#e4e2dc", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(length=0, labelcolor=_FAINT)
    axes.set_xlim(right=totals["at"].max())
    months = totals.select(pl.col("at").dt.truncate("1mo").unique().sort()).to_series()
    axes.set_xticks(months[1:-1:2], [_MONTHS[at.month - 1] for at in months[1:-1:2]])
    step = 0.052 * axes.get_ylim()[1]
    height = float("-inf")
    for end, at, name, color in sorted(ends):
        height = max(end, height + step)
        axes.annotate(
            f" {name}", (at, height), color=color, va="center", size=8.5, annotation_clip=False
        )


def _plain(axes: Any) -> None:
    for side in axes.spines.values():
        side.set_visible(False)


def _short(name: str, most: int) -> str:
    for tail in _TAILS:
        name = name.removesuffix(tail)
    return name if len(name) <= most else name[: most - 1].rstrip() + "…"
