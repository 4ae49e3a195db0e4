"""What the terminal shows while the job runs: its progress, and the worst routes found so far."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Any
from zoneinfo import ZoneInfo

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.clock import Clock
from headrace.coordinator.summary import EpochSummary
from headrace.demo.outputs import Tail

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
        """Say that Spark is starting; it takes the terminal's place meanwhile."""
        if self._console.is_terminal:
            self._console.print("starting Spark", style="dim")
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
