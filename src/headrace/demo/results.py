"""What the demo's job found: read back from the bus, checked in DuckDB, drawn as one PNG."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace import extras
from headrace.bus import Bus, Stream
from headrace.demo.flights import data_file
from headrace.errors import InvalidInputError

OUTPUTS = ("route_delays", "carrier_totals", "worst_routes")
PARTITION, OFFSET = "partition", "offset"


def read_all(stream: Stream) -> pa.Table:
    """Return all rows of a stream, each with its ``partition`` and ``offset``, in that order."""
    schema = stream.spec.schema.append(pa.field(PARTITION, pa.int64()))
    schema = schema.append(pa.field(OFFSET, pa.int64()))
    batches = []
    for partition, begin in enumerate(stream.begins()):
        for found in stream.read(partition, begin):
            rows = found.batch.num_rows
            places = np.full(rows, partition, np.int64)
            columns = [*found.batch.columns, pa.array(places), pa.array(found.offsets)]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(batches, schema)


class Tail:
    """Hands out what was appended to a stream since the last call."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._next = stream.begins()

    def take(self) -> pa.Table:
        """Return the new rows of all partitions, partition by partition."""
        batches = []
        for partition, (start, end) in enumerate(zip(self._next, self._stream.ends(), strict=True)):
            batches += [found.batch for found in self._stream.read(partition, start, end)]
            self._next[partition] = end
        return pa.Table.from_batches(batches, self._stream.spec.schema)


_FLOWN = """
create table flown as
select
    time_hour::timestamptz + to_minutes(minute::bigint) as departed_at,
    origin, dest, carrier, dep_delay::bigint as dep_delay
from read_csv($file, nullstr = 'NA', types = {'dep_delay': 'bigint', 'time_hour': 'varchar'})
where dep_delay is not null
"""
_ROUTES = """
create table expected_route_delays as
select
    origin, dest,
    time_bucket(interval 1 hour, departed_at) as window_start,
    time_bucket(interval 1 hour, departed_at) + interval 1 hour as window_end,
    count(*) as flights,
    sum(dep_delay)::double / count(*) as mean_delay,
    max(dep_delay) as worst_delay
from flown
group by all
"""
_CARRIERS = """
create table expected_carrier_totals as
with days as (
    select
        carrier, date_trunc('day', departed_at) + interval 1 day as "at",
        count(*) as flights, sum(dep_delay) as delay
    from flown
    group by all
)
select
    carrier, "at",
    (sum(flights) over so_far)::bigint as flights,
    (sum(delay) over so_far)::bigint as delay
from days
window so_far as (partition by carrier order by "at")
"""
_WORST = """
create table expected_worst_routes as
select
    window_start as "hour",
    row_number() over (
        partition by window_start order by mean_delay desc, origin, dest
    ) as rank,
    origin, dest, flights, mean_delay, worst_delay
from expected_route_delays
qualify rank <= 10
"""
_ORDERED_BY = {
    "route_delays": ("origin, dest", "window_start"),
    "carrier_totals": ("carrier", '"at"'),
    "worst_routes": ('"hour"', "rank"),
}


@dataclass(frozen=True)
class Comparison:
    """How the output of one name compares with what DuckDB found.

    ``missing`` and ``unexpected`` count rows, ``disordered`` those that a row of the same key
    should have preceded, or that lie in another partition than the rest of their key.
    """

    output: str
    rows: int
    expected: int
    missing: int
    unexpected: int
    disordered: int

    @property
    def is_equal(self) -> bool:
        """Say whether nothing differs."""
        return not (self.missing or self.unexpected or self.disordered)

    def __str__(self) -> str:
        """Return one line."""
        if self.is_equal:
            return f"{self.output}: {self.rows:,} rows, equal to DuckDB's"
        return (
            f"{self.output}: found {self.rows:,} rows, expected {self.expected:,}; "
            f"{self.missing:,} are missing, {self.unexpected:,} are not expected, "
            f"{self.disordered:,} are out of order"
        )


def check_outputs(bus: Bus) -> list[Comparison]:
    """Compare the outputs of a finished run with DuckDB's, one comparison for each.

    Raises:
        ImportError: DuckDB is not installed.
    """
    import duckdb  # noqa: PLC0415 - the demo runs without it, unchecked

    with duckdb.connect() as database, tempfile.TemporaryDirectory() as folder:
        file = {"file": str(data_file("flights", Path(folder)))}
        database.execute("set timezone = 'UTC'").fetchall()
        database.execute(_FLOWN, file).fetchall()
        for statement in (_ROUTES, _CARRIERS, _WORST):
            database.execute(statement).fetchall()
        return [_compare(database, bus, output) for output in OUTPUTS]


def _compare(database: Any, bus: Bus, output: str) -> Comparison:
    found = read_all(bus.stream(output))
    database.register("found", found)
    columns = ", ".join(f'"{n}"' for n in found.schema.names if n not in (PARTITION, OFFSET))
    expected = f"select {columns} from expected_{output}"
    actual = f"select {columns} from found"
    key, order = _ORDERED_BY[output]
    disordered = f"""
        select 1 from found
        window of_key as (partition by {key} order by "{PARTITION}", "{OFFSET}")
        qualify lag({order}) over of_key >= {order}
            or lag("{PARTITION}") over of_key <> "{PARTITION}"
    """

    def count(query: str) -> int:
        (row,) = database.execute(f"select count(*) from ({query})").fetchall()
        return int(row[0])

    return Comparison(
        output,
        rows=found.num_rows,
        expected=count(expected),
        missing=count(f"({expected}) except all ({actual})"),
        unexpected=count(f"({actual}) except all ({expected})"),
        disordered=count(disordered),
    )


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
    if (text := extras.lacking("matplotlib", "the demo's chart")) is not None:
        raise InvalidInputError(text)


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
        # Matplotlib keeps a font cache, in the user's home by default.
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
        label = f"{delay:.1f}   {hours or 0:,} times among ten worst"
        axes.text(0.6, place, label, va="center", color="white", size=8.5)
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
