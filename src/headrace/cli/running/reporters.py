"""How a run is shown: live in a terminal, in a line in a file, in JSON to a program.

A reporter is told of the start, of each epoch, of a wish to stop, and of the end, in that
order; epochs may come from another thread than the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import typer
from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.segment import ControlType

from headrace.cli.running.live import Screen, live_table
from headrace.cli.running.run_text import (
    end_json,
    end_line,
    epoch_json,
    epoch_line,
    recovery_json,
    recovery_line,
)
from headrace.cli.screen import show_json
from headrace.cli.words import rate_text

if TYPE_CHECKING:
    from headrace.cli.running.progress import Ends, Progress
    from headrace.clock import Clock
    from headrace.coordinator.recovery import Recovery
    from headrace.coordinator.summary import EpochSummary

STOPPING = "ending the epoch…  (Ctrl-C again stops at once; nothing is lost)"


class Reporter(Protocol):
    """What a run tells of itself."""

    def starting(self, master: str) -> None:
        """Spark is about to start."""
        ...

    def started(self, progress: Progress, ends: Callable[[], Ends]) -> None:
        """The job is about to run its first epoch."""
        ...

    def epoch(self, summary: EpochSummary) -> None:
        """An epoch is done, and noted in the progress."""
        ...

    def recovering(self, recovery: Recovery | None) -> None:
        """State is being brought back; ``None``: that is done. From another thread."""
        ...

    def notice(self, line: str) -> None:
        """Something is wrong although the run goes on, or right again. From any thread."""
        ...

    def stopping(self) -> None:
        """The run was asked to end after the epoch under way."""
        ...

    def finished(self, seconds: float, *, interrupted: bool) -> None:
        """The run is over."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; the run may have failed."""
        ...


class QuietReporter:
    """One line at the end; one for each epoch as well when ``verbose``."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._progress: Progress | None = None

    def starting(self, master: str) -> None:
        """Say nothing."""

    def started(self, progress: Progress, ends: Callable[[], Ends]) -> None:
        """Keep the progress."""
        del ends
        self._progress = progress

    def epoch(self, summary: EpochSummary) -> None:
        """Print the epoch when asked to."""
        if self._verbose:
            typer.echo(epoch_line(summary))

    def recovering(self, recovery: Recovery | None) -> None:
        """Say how far it is when asked to."""
        if self._verbose and recovery is not None:
            typer.echo(recovery_line(recovery))

    def notice(self, line: str) -> None:
        """Say it on stderr."""
        typer.echo(line, err=True)

    def stopping(self) -> None:
        """Say on stderr that the end is near."""
        typer.echo(STOPPING, err=True)

    def finished(self, seconds: float, *, interrupted: bool) -> None:
        """Print the whole run."""
        if self._progress is not None:
            typer.echo(end_line(self._progress, seconds, interrupted=interrupted))

    def close(self) -> None:
        """Do nothing."""


class JsonReporter:
    """An object for each epoch, and one at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._progress: Progress | None = None
        self._ends: Callable[[], Ends] = dict

    def starting(self, master: str) -> None:
        """Say nothing."""

    def started(self, progress: Progress, ends: Callable[[], Ends]) -> None:
        """Keep the progress."""
        self._progress, self._ends = progress, ends

    def epoch(self, summary: EpochSummary) -> None:
        """Print the epoch."""
        assert self._progress is not None
        show_json(epoch_json(summary, self._progress, self._ends(), self._clock.monotonic()))

    def recovering(self, recovery: Recovery | None) -> None:
        """Print how far it is."""
        if recovery is not None:
            show_json(recovery_json(recovery))

    def notice(self, line: str) -> None:
        """Print it."""
        show_json({"type": "notice", "text": line})

    def stopping(self) -> None:
        """Say on stderr that the end is near."""
        typer.echo(STOPPING, err=True)

    def finished(self, seconds: float, *, interrupted: bool) -> None:
        """Print the whole run."""
        if self._progress is not None:
            show_json(end_json(self._progress, seconds, interrupted=interrupted))

    def close(self) -> None:
        """Do nothing."""


class TerminalReporter:
    """A live table of a run that follows its inputs, a bar of one that ends."""

    def __init__(
        self, clock: Clock, *, verbose: bool = False, console: Console | None = None
    ) -> None:
        self._clock, self._verbose = clock, verbose
        self._console = console or Console(highlight=False)
        self._shown: Live | Bars | None = None
        self._task: TaskID | None = None
        self._progress: Progress | None = None
        self._is_starting = False

    def starting(self, master: str) -> None:
        """Say what takes so long; nothing may move, for Spark's own start has the screen's file."""
        self._console.print(f"starting Spark ({master}) …", style="dim", end="")
        self._console.file.flush()
        self._is_starting = True

    def started(self, progress: Progress, ends: Callable[[], Ends]) -> None:
        """Show the table or the bar."""
        self._progress = progress
        total = progress.total()
        if progress.state.ended:
            self.close()
        elif total is None:
            self._show(
                Live(
                    get_renderable=lambda: live_table(
                        progress, ends(), self._clock.monotonic(), Screen(*self._console.size)
                    ),
                    console=self._console,
                    refresh_per_second=2,
                )
            )
        else:
            bars = _bars(self._console)
            self._task = bars.add_task(progress.job, total=total, rows="0", rate="-")
            self._show(bars)

    def epoch(self, summary: EpochSummary) -> None:
        """Move the bar."""
        progress, bars = self._progress, self._shown
        if self._verbose:
            self._console.print(epoch_line(summary))
        if progress is None or not isinstance(bars, Bars) or self._task is None:
            return
        seconds = self._clock.monotonic() - progress.began
        bars.update(
            self._task,
            completed=progress.rows,
            rows=f"{progress.rows:,}",
            rate=rate_text(progress.rows, seconds),
        )

    def recovering(self, recovery: Recovery | None) -> None:
        """Show it in the title of the table, or beside the bar."""
        if self._progress is not None:
            self._progress.recovery = recovery
        if isinstance(self._shown, Bars) and self._task is not None and recovery is not None:
            self._shown.update(self._task, rate=recovery_line(recovery))

    def notice(self, line: str) -> None:
        """Print it above what is shown."""
        self._console.print(line, style="yellow")

    def stopping(self) -> None:
        """Say that the end is near; a second signal must find the terminal as it was."""
        self.close()
        self._console.print(STOPPING, style="yellow")

    def finished(self, seconds: float, *, interrupted: bool) -> None:
        """Print the whole run."""
        self.close()
        if self._progress is not None:
            self._console.print(end_line(self._progress, seconds, interrupted=interrupted))

    def close(self) -> None:
        """Leave the terminal as it was."""
        shown, self._shown = self._shown, None
        if self._is_starting:
            self._is_starting = False
            self._console.control(
                Control((ControlType.ERASE_IN_LINE, 2), ControlType.CARRIAGE_RETURN)
            )
        if shown is not None:
            shown.stop()

    def _show(self, shown: Live | Bars) -> None:
        self.close()
        self._shown = shown
        shown.start()


def _bars(console: Console) -> Bars:
    return Bars(
        TextColumn("[bold cyan]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rows]} rows"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        expand=True,
    )
