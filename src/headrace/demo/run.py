"""The demo from start to end: append the flights, run the job, show and check what it found.

Works in a folder of its own, fresh for each run; shows progress and the worst routes.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from zoneinfo import ZoneInfo

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace import extras
from headrace.bus import Bus, BusOptions, open_bus
from headrace.clock import Clock, SystemClock
from headrace.config import Settings, load_settings
from headrace.coordinator.driver_loop import JobControl, stop_on_signals
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_run import RunListeners, RunResult
from headrace.demo import dashboard
from headrace.demo.delay_radar import delay_radar
from headrace.demo.flights import Feeder, Source, append_all, flight_source, other_sources
from headrace.demo.results import (
    OUTPUTS,
    Comparison,
    Tail,
    check_outputs,
    draw_chart,
    need_matplotlib,
)
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.standalone.running import Running

MARK, OLD = ".headrace-demo", ".old"


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """Hold an empty folder for one run; what an earlier run of the demo left there is removed.

    Args:
        path: made when missing.

    Raises:
        InvalidInputError: it holds files that no demo made.
        NotOwnerError: another demo is running in it.
    """
    mark = path / MARK
    if path.exists() and not mark.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidInputError(
            f"{path} was not made by the demo, which begins with an empty folder; move it away, "
            "or set HEADRACE_HOME to another place"
        )
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotOwnerError(
                f"another demo is running in {path}; wait for it, or set HEADRACE_HOME"
            ) from None
        _empty(path)
        yield path
    finally:
        os.close(descriptor)


def _empty(path: Path) -> None:
    """Remove all but the mark.

    The JVM of a run that was killed may still be writing its log. So everything is moved
    out of its way first, and what it adds meanwhile goes with the next run.
    """
    old = path / OLD
    old.mkdir(exist_ok=True)
    taken = len(list(old.iterdir()))
    for number, entry in enumerate(path.iterdir(), start=taken):
        if entry.name not in (MARK, OLD):
            entry.rename(old / str(number))
    shutil.rmtree(old, ignore_errors=True)


NEW_YORK = ZoneInfo("America/New_York")
RATE_WINDOW_S = 3.0
_FRAME_LINES = 13  # all but the routes
_HOURS_KEPT = 4
_BAR_MINUTES = 10  # of delay, for each block
_BAR_BLOCKS = 24
_NAME_WIDTH = 28
_SEVERE, _BAD = 120, 45


class LiveView:
    """A picture of a running job, drawn four times a second; nothing where there is no terminal.

    ``epoch`` is called by the thread that runs the job, drawing happens in another.

    Args:
        console: where to.
        clock: of the rate.
        title: of the picture.
        total: how many rows the input will have.
        airports: names by code.
    """

    def __init__(
        self, console: Console, clock: Clock, title: str, total: int, airports: Mapping[str, str]
    ) -> None:
        self._console, self._clock, self._title = console, clock, title
        self._total, self._airports = total, airports
        self._stack = ExitStack()
        self._tail: Tail | None = None
        self._hours: dict[datetime, list[dict[str, Any]]] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self._took_ms: list[float] = []
        self._newest: datetime | None = None
        self._last: EpochSummary | None = None
        self.rows = self.late = 0

    @property
    def epochs(self) -> int:
        """How many epochs were seen."""
        return len(self._took_ms)

    @property
    def epoch_ms(self) -> float:
        """The median time of an epoch, ms; 0 before the first."""
        return statistics.median(self._took_ms) if self._took_ms else 0.0

    def __enter__(self) -> LiveView:
        """Say that the job is starting; on Spark this takes some seconds."""
        if self._console.is_terminal:
            self._console.print("starting", style="dim")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Draw once more, and leave the last picture where it is."""
        self._stack.close()

    def started(self, worst: Tail) -> None:
        """Begin to draw: the job runs, and its worst routes arrive there."""
        self._recent.append((self._clock.monotonic(), 0))
        self._tail = worst
        if self._console.is_terminal:
            live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=4)
            self._stack.enter_context(live)

    def epoch(self, summary: EpochSummary) -> None:
        """Take in what an epoch did."""
        self.rows += summary.rows
        self.late += summary.counts.get("late", 0)
        self._took_ms.append(summary.took_ms)
        self._recent.append((self._clock.monotonic(), self.rows))
        while len(self._recent) > 2 and self._recent[-1][0] - self._recent[0][0] > RATE_WINDOW_S:
            self._recent.popleft()
        if not summary.ended:
            self._newest = _moment(summary.watermark)
        self._last = summary
        self._take_hours()

    def _take_hours(self) -> None:
        if not self._console.is_terminal or self._tail is None:
            return
        # A new dict each time, for the one being drawn must not change.
        hours = dict(self._hours)
        for row in self._tail.take().to_pylist():
            hours.setdefault(row["hour"], []).append(row)
        self._hours = {hour: hours[hour] for hour in sorted(hours, reverse=True)[:_HOURS_KEPT]}

    def _draw(self) -> RenderableType:
        title = Text(f"\n delay radar, {self._title}", style="bold")
        bar = Padding(ProgressBar(total=self._total, completed=self.rows, width=60), (1, 1))
        return Group(title, bar, self._numbers(), Text(), self._routes())

    def _numbers(self) -> Table:
        table = Table.grid(padding=(0, 3))
        for style in ("dim", "bold", "dim", "bold"):
            table.add_column(style=style)
        lag = self._last.lag if self._last is not None else 0
        newest = f"{self._newest:%a %d %b %H:%M}" if self._newest else "none yet"
        table.add_row(" watermark", f"{newest}, New York", "rows/s", f"{self._rate():,.0f}")
        table.add_row(" rows", f"{self.rows:,} of {self._total:,}", "lag", f"{lag:,} rows")
        table.add_row(" epochs", f"{self.epochs:,}", "median epoch", f"{self.epoch_ms:,.0f} ms")
        return table

    def _rate(self) -> float:
        (began, before), (ended, after) = self._recent[0], self._recent[-1]
        return (after - before) / (ended - began) if ended > began else 0.0

    def _routes(self) -> Table:
        table = Table(title=" worst routes of the newest hours", title_justify="left", box=None)
        for name, width in (("hour", 16), ("route", 9), ("to", _NAME_WIDTH)):
            table.add_column(name, no_wrap=True, min_width=width)
        for name in ("flights", "mean", "worst"):
            table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
        table.add_column("minutes late", no_wrap=True, min_width=_BAR_BLOCKS)
        left = max(5, self._console.height - _FRAME_LINES)
        for hour, routes in self._hours.items():
            for route in routes[:left]:
                is_first = route is routes[0]
                table.add_row(*self._cells(hour if is_first else None, route))
            left -= len(routes)
            if left <= 0:
                break
        return table

    def _cells(self, hour: datetime | None, route: Mapping[str, Any]) -> list[RenderableType]:
        mean = route["mean_delay"]
        style = "red" if mean >= _SEVERE else "yellow" if mean >= _BAD else "green"
        blocks = min(_BAR_BLOCKS, max(0, round(mean / _BAR_MINUTES)))
        return [
            f"{hour.astimezone(NEW_YORK):%a %d %b %H:%M}" if hour else "",
            Text(f"{route['origin']} → {route['dest']}", style="bold"),
            Text(self._airports.get(route["dest"], "")[:_NAME_WIDTH], style="dim"),
            f"{route['flights']:,}",
            Text(f"{mean:,.0f}", style=style),
            f"{route['worst_delay']:,}",
            Text("█" * blocks, style=style),
        ]


def _moment(time_ms: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(NEW_YORK)
    except (OverflowError, ValueError, OSError):  # before the first record, and after the last
        return None


Mode = Literal["stream", "bounded"]

FOLDER = "demo"
PACE_S = 20.0
"""How long the feeder takes for the whole year in stream mode."""

SLOTS = 2


@dataclass(frozen=True)
class DemoResult:
    """What a run of the demo did.

    Args:
        mode: ``stream`` or ``bounded``.
        home: folder of its bus, jobs and state; a home of its own.
        rows: flights that the job read.
        outputs: rows of each output stream.
        late: rows that came after their window had closed.
        epochs: how many there were.
        wall_s: from the start to the end of the job, in seconds.
        chart: the PNG; ``None`` when interrupted.
        comparisons: with DuckDB; empty when it is not installed, or when interrupted.
        interrupted: whether it was stopped before the end.
    """

    mode: Mode
    home: Path
    rows: int = 0
    outputs: Mapping[str, int] = field(default_factory=dict)
    late: int = 0
    epochs: int = 0
    wall_s: float = 0.0
    chart: Path | None = None
    comparisons: tuple[Comparison, ...] = ()
    interrupted: bool = False


def run_demo(
    mode: Mode,
    home: Path,
    *,
    pace_s: float | None = None,
    console: Console | None = None,
    clock: Clock | None = None,
    with_ui: bool = False,
) -> DemoResult:
    """Run the delay radar over a year of flights, in a fresh folder ``demo`` below ``home``.

    1. Append the data: all of it in bounded mode, else the flights while the job runs.
    2. Run the job until it has read everything. 3. Check its outputs against DuckDB, draw
    the chart, print a summary. Ctrl-C ends it cleanly.

    Args:
        mode: ``stream`` follows the flights as they are appended, ``bounded`` runs over all.
        home: the ``HEADRACE_HOME`` to work in.
        pace_s: seconds that the year takes in stream mode.
        console: where to print.
        clock: of the pace and the figures.
        with_ui: serve a dashboard of the flights, until Ctrl-C.

    Raises:
        InvalidInputError: the folder holds files that no demo made, or the data is missing.
        HeadraceError: the job failed.
    """
    console = console or Console(highlight=False)
    clock = clock or SystemClock()
    need_matplotlib()
    folder = home.absolute() / FOLDER
    try:
        with fresh_folder(folder):
            pace_s = pace_s or (dashboard.PACE_S if with_ui else PACE_S)
            result = _Demo(mode, folder, pace_s, console, clock, with_ui).run()
    except KeyboardInterrupt:
        result = DemoResult(mode, folder, interrupted=True)
    if result.interrupted:
        console.print(f"interrupted after {result.rows:,} flights; run it again to begin afresh")
    return result


class _Demo:
    def __init__(
        self,
        mode: Mode,
        folder: Path,
        pace_s: float,
        console: Console,
        clock: Clock,
        with_ui: bool,
    ) -> None:
        self._mode, self._folder, self._pace_s = mode, folder, pace_s
        self._console, self._clock, self._with_ui = console, clock, with_ui
        self._on_spark = extras.lacking("pyspark", "") is None
        bounded = "true" if mode == "bounded" else "false"
        self._settings = load_settings(
            overrides=[
                f"home={folder}",
                f"job.slots={SLOTS}",
                f"job.bounded={bounded}",
                f"spark.master=local[{SLOTS}]",
            ]
        )

    def run(self) -> DemoResult:
        """Do it all."""
        what = f"delay radar: a year of flights from New York City, mode {self._mode}"
        self._notify(Text(f"{what}, in {_near(self._folder)}"))
        with ExitStack() as stack:
            options = _bus_options(self._settings)
            bus = stack.enter_context(open_bus(self._settings.bus_dir, options))
            if self._with_ui:
                place = stack.enter_context(dashboard.served(self._folder))
                self._notify(Text(f"dashboard       {place}"))
            began = self._clock.monotonic()
            flights, others = flight_source(), other_sources()
            for source in others:
                append_all(source, source.create(bus))
            airports, airlines = _names(others, "airports"), _names(others, "airlines")
            total = flights.table.num_rows
            view = LiveView(self._console, self._clock, f"mode {self._mode}", total, airports)
            with view:
                run = self._run_job(bus, flights, view)
            result = DemoResult(
                self._mode,
                self._folder,
                run.rows,
                {output: sum(bus.stream(output).ends()) for output in OUTPUTS},
                view.late,
                run.epochs,
                self._clock.monotonic() - began,
                interrupted=run.interrupted,
            )
            if run.interrupted:
                return result
            result = self._finish(bus, result, airports, airlines)
            self._summarise(result, view)
            if self._with_ui:
                self._stay()
            return result

    def _stay(self) -> None:
        """Leave the dashboard there until Ctrl-C, which ends what is complete by then."""
        self._notify(Text("the dashboard stays until Ctrl-C"))
        with suppress(KeyboardInterrupt):
            while True:
                self._clock.sleep(1.0)

    def _run_job(self, bus: Bus, flights: Source, view: LiveView) -> RunResult:
        control = JobControl()
        stream = flights.create(bus)
        feeder = Feeder(flights, stream, self._clock, self._pace_s, control.finish.set)
        if self._mode == "bounded":
            append_all(flights, stream)

        def started() -> None:
            view.started(Tail(bus.stream("worst_routes")))
            if self._mode == "stream":
                feeder.start()

        with ExitStack() as stack:
            stack.callback(feeder.close)
            run = self._run(bus, control, started, view)
        if feeder.failure is not None:
            raise feeder.failure
        return run

    def _run(
        self, bus: Bus, control: JobControl, started: Callable[[], None], view: LiveView
    ) -> RunResult:
        if not self._on_spark:
            listeners = RunListeners(on_start=lambda _: started(), on_epoch=view.epoch)
            with stop_on_signals(control):
                running = Running(
                    delay_radar, self._settings, bus=bus, control=control, listeners=listeners
                )
                return running.wait()
        from headrace.spark.run import run_job  # noqa: PLC0415 - of an extra

        return run_job(
            delay_radar,
            self._settings,
            bus=bus,
            control=control,
            on_start=lambda _: started(),
            on_epoch=view.epoch,
        )

    def _finish(
        self,
        bus: Bus,
        result: DemoResult,
        airports: Mapping[str, str],
        airlines: Mapping[str, str],
    ) -> DemoResult:
        comparisons: tuple[Comparison, ...] = ()
        if extras.lacking("duckdb", "") is None:
            comparisons = tuple(check_outputs(bus))
        chart = draw_chart(bus, self._folder / "delay-radar.png", airports, airlines)
        return replace(result, chart=chart, comparisons=comparisons)

    def _summarise(self, result: DemoResult, view: LiveView) -> None:
        home = shlex.quote(str(_near(self._folder)))
        command = shlex.quote(_command())
        engine = "with Spark's start" if self._on_spark else "without Spark"
        lines = [
            ("flights read", f"{result.rows:,} in {result.wall_s:.1f} s, {engine}"),
            ("epochs", f"{result.epochs:,}, median {view.epoch_ms:,.0f} ms"),
            *((output, f"{rows:,} rows") for output, rows in result.outputs.items()),
            ("late", f"{result.late:,} rows"),
            ("DuckDB", _verdict(result.comparisons)),
            ("chart", str(_near(result.chart or self._folder))),
            ("look around", f"{command} bus ls --home {home}"),
            *(("", f"{command} bus tail {output} --home {home}") for output in reversed(OUTPUTS)),
        ]
        for name, value in lines:
            self._notify(Text(f"{name:<16}", style="dim").append(value, style="not dim"))

    def _notify(self, text: Text) -> None:
        # Paths and commands are copied from the screen, so no line is cut.
        self._console.print(text, soft_wrap=True)


def _command() -> str:
    """Return what starts ``headrace`` here: from a clone, no environment may be active."""
    own = Path(sys.executable).parent / "headrace"
    return "headrace" if shutil.which("headrace") or not own.exists() else str(_near(own))


def _verdict(comparisons: tuple[Comparison, ...]) -> str:
    if not comparisons:
        return "not installed, so nothing was compared"
    wrong = [str(comparison) for comparison in comparisons if not comparison.is_equal]
    rows = sum(comparison.rows for comparison in comparisons)
    return "; ".join(wrong) or f"finds the same {rows:,} rows over the same flights"


def _bus_options(settings: Settings) -> BusOptions:
    return BusOptions.of(settings.bus)


def _names(sources: list[Source], name: str) -> dict[str, str]:
    source = next(source for source in sources if source.name == name)
    keys, names = source.table[source.key[0]], source.table["name"]
    return dict(zip(keys.to_pylist(), names.to_pylist(), strict=True))


def _near(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
