"""The demo from start to end: append the flights, run the job, show and check what it found."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.options import BusOptions
from headrace.clock import Clock, SystemClock
from headrace.config import Settings, load_settings
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.loop import Control
from headrace.demo.chart import draw_chart, need_matplotlib
from headrace.demo.check import Comparison, check_outputs
from headrace.demo.delay_radar import delay_radar
from headrace.demo.feed import Feeder, Source, append_all, flight_source, other_sources
from headrace.demo.folder import fresh_folder
from headrace.demo.live import LiveView
from headrace.demo.outputs import OUTPUTS, Tail
from headrace.spark.run import RunResult, run_job

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
    pace_s: float = PACE_S,
    console: Console | None = None,
    clock: Clock | None = None,
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
            result = _Demo(mode, folder, pace_s, console, clock).run()
    except KeyboardInterrupt:
        result = DemoResult(mode, folder, interrupted=True)
    if result.interrupted:
        console.print(f"interrupted after {result.rows:,} flights; run it again to begin afresh")
    return result


class _Demo:
    def __init__(
        self, mode: Mode, folder: Path, pace_s: float, console: Console, clock: Clock
    ) -> None:
        self._mode, self._folder, self._pace_s = mode, folder, pace_s
        self._console, self._clock = console, clock
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
        self._tell(Text(f"{what}, in {_near(self._folder)}"))
        with open_bus(self._settings.bus_dir, _bus_options(self._settings)) as bus:
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
            return result

    def _run_job(self, bus: Bus, flights: Source, view: LiveView) -> RunResult:
        control = Control()
        stream = flights.create(bus)
        feeder = Feeder(flights, stream, self._clock, self._pace_s, control.finish.set)
        if self._mode == "bounded":
            append_all(flights, stream)

        def started(_: Coordinator) -> None:
            view.started(Tail(bus.stream("worst_routes")))
            if self._mode == "stream":
                feeder.start()

        with ExitStack() as stack:
            stack.callback(feeder.close)
            run = run_job(
                delay_radar,
                self._settings,
                bus=bus,
                control=control,
                on_start=started,
                on_epoch=view.epoch,
            )
        if feeder.failure is not None:
            raise feeder.failure
        return run

    def _finish(
        self,
        bus: Bus,
        result: DemoResult,
        airports: Mapping[str, str],
        airlines: Mapping[str, str],
    ) -> DemoResult:
        comparisons: tuple[Comparison, ...] = ()
        if importlib.util.find_spec("duckdb") is not None:
            comparisons = tuple(check_outputs(bus))
        chart = draw_chart(bus, self._folder / "delay-radar.png", airports, airlines)
        return replace(result, chart=chart, comparisons=comparisons)

    def _summarise(self, result: DemoResult, view: LiveView) -> None:
        home = shlex.quote(str(_near(self._folder)))
        lines = [
            ("flights read", f"{result.rows:,} in {result.wall_s:.1f} s, with Spark's start"),
            ("epochs", f"{result.epochs:,}, median {view.epoch_ms:,.0f} ms"),
            *((output, f"{rows:,} rows") for output, rows in result.outputs.items()),
            ("late", f"{result.late:,} rows"),
            ("DuckDB", _verdict(result.comparisons)),
            ("chart", str(_near(result.chart or self._folder))),
            ("look around", f"headrace bus ls --home {home}"),
            *(("", f"headrace bus tail {output} --home {home}") for output in reversed(OUTPUTS)),
        ]
        for name, told in lines:
            self._tell(Text(f"{name:<16}", style="dim").append(told, style="not dim"))

    def _tell(self, text: Text) -> None:
        # Paths and commands are copied from the screen, so no line is cut.
        self._console.print(text, soft_wrap=True)


def _verdict(comparisons: tuple[Comparison, ...]) -> str:
    if not comparisons:
        return "not installed, so nothing was compared"
    wrong = [str(comparison) for comparison in comparisons if not comparison.is_equal]
    rows = sum(comparison.rows for comparison in comparisons)
    return "; ".join(wrong) or f"finds the same {rows:,} rows over the same flights"


def _bus_options(settings: Settings) -> BusOptions:
    return BusOptions(**settings.bus.model_dump())


def _names(sources: list[Source], name: str) -> dict[str, str]:
    source = next(source for source in sources if source.name == name)
    keys, names = source.table[source.key[0]], source.table["name"]
    return dict(zip(keys.to_pylist(), names.to_pylist(), strict=True))


def _near(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
