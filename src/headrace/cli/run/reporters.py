"""How a run is shown: a live table in a terminal, lines in a file, JSON for a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer
from rich.cells import cell_len
from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.segment import ControlType
from rich.text import Text

from headrace.cli.output import (
    count_text,
    new_table,
    rate_text,
    seconds_text,
    show_json,
    size_text,
    time_text,
)
from headrace.cli.run.progress import (
    InputProgress,
    end_json,
    end_line,
    epoch_json,
    epoch_line,
    recovery_json,
    recovery_line,
    refused_parts,
)

if TYPE_CHECKING:
    from headrace.cli.run.progress import Ends, Progress
    from headrace.clock import Clock
    from headrace.coordinator.epoch_records import EpochSummary
    from headrace.coordinator.recovery import Recovery


_OF_INPUT = ("rows/s", "rows", "lag", "watermark (UTC)")
_OF_JOB = ("epoch", "took", "state")
_RIGHT = ("rows/s", "rows", "lag", *_OF_JOB)
_GAP, _LEAST_NAME = 2, 8
_AROUND = 3
"""Lines of the terminal that are no input: title, head, cursor."""


class TerminalSize(NamedTuple):
    """How large a terminal is."""

    width: int
    height: int


def live_table(progress: Progress, ends: Ends, now: float, screen: TerminalSize) -> Group:
    """Return a line for each input, under a line for the job.

    What is of the whole job stands in each line; where the terminal is too narrow for that, in
    the title. Of more inputs than lines those with the most lag are shown, the others summed.

    Args:
        progress: of the run.
        ends: next offsets of the input streams, by name.
        now: of the monotonic clock, s.
        screen: what it must fit.
    """
    inputs = progress.inputs(ends, now)
    own = _of_job(progress)
    rows = [_row(found) for found in _most_behind(inputs, max(2, screen.height - _AROUND))]
    wide = [[*row, *own] for row in rows]
    titles: tuple[str, ...] = ("input", *_OF_INPUT, *_OF_JOB)
    is_wide = sum(_widths(titles, wide)) + _GAP * (len(titles) - 1) <= screen.width
    if not is_wide:
        titles, wide = titles[: -len(own)], rows
    others = sum(_widths(titles, wide)[1:]) + _GAP * (len(titles) - 1)
    room = max(_LEAST_NAME, screen.width - others)
    table = new_table(titles, _RIGHT)
    table.header_style = "dim"
    for name, *cells in wide:
        shown = Text(name, style="bold")
        shown.truncate(room, overflow="ellipsis")
        table.add_row(shown, *cells)
    lag = sum(found.lag for found in inputs)
    rate = sum(found.rows_per_s for found in inputs)
    return Group(_title(progress, lag, rate, () if is_wide else own), table)


def _of_job(progress: Progress) -> tuple[str, str, str]:
    last = progress.last
    if last is None:
        return "-", "-", "-"
    return str(last.epoch), f"{last.took_ms / 1000:.2f} s", size_text(last.state_bytes)


def _most_behind(inputs: Sequence[InputProgress], most: int) -> list[InputProgress]:
    if len(inputs) <= most:
        return list(inputs)
    by_lag = sorted(range(len(inputs)), key=lambda at: (-inputs[at].lag, at))
    shown = sorted(by_lag[: most - 1])
    rest = [inputs[at] for at in by_lag[most - 1 :]]
    times = [one.watermark_ms for one in rest]
    name = f"{len(rest):,} more"
    return [
        *(inputs[at] for at in shown),
        InputProgress(
            name,
            name,
            sum(one.rows for one in rest),
            sum(one.rows_per_s for one in rest),
            sum(one.lag for one in rest),
            None if None in times else min(time for time in times if time is not None),
        ),
    ]


def _row(found: InputProgress) -> list[str]:
    name = found.operator
    return [
        name if found.stream == name else f"{name} ({found.stream})",
        f"{found.rows_per_s:,.0f}",
        f"{found.rows:,}",
        f"{found.lag:,}",
        time_text(found.watermark_ms, with_ms=False),
    ]


def _widths(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]


def _behind(lag: int, rate: float) -> str | None:
    """Return how far a job is behind its inputs; ``None``: it reads them as they come."""
    if lag <= rate * KEEPING_UP_S:
        return None
    eta = f", {seconds_text(lag / rate)} at this rate" if rate > 0 else ""
    return f"{count_text(lag, 'row')} behind{eta}"


def _title(progress: Progress, lag: int, rate: float, own: Sequence[str]) -> Text:
    text = Text.assemble((progress.job, "bold cyan"))
    if own and progress.last is not None:
        epoch, took, state = own
        text.append(f"  epoch {epoch} in {took}  state {state}")
    text.append(f"  {progress.output_rows:,} out")
    if progress.late_rows:
        text.append(f"  {progress.late_rows:,} late", style="yellow")
    for part in refused_parts(progress.refused):
        text.append(f"  {part}", style="yellow")
    if progress.recovery is not None:
        text.append(f"  {recovery_line(progress.recovery)}", style="yellow")
        return text
    copy = None if progress.last is None else progress.last.copy
    if copy is not None and copy.failures:
        text.append(f"  no copy for {count_text(copy.epochs, 'epoch')}", style="red")
    if progress.last is not None and progress.last.merge_problems:
        text.append("  merging fails: see --verbose", style="yellow")
    if progress.last is None:
        text.append(f"  {FIRST_EPOCH if lag else 'waiting for input'}", style="dim")
    elif (behind := _behind(lag, rate)) is not None:
        text.append(f"  {behind}", style="yellow")
    else:
        text.append("  keeping up", style="green")
    if not own:
        text.append("  Ctrl-C ends the epoch and stops", style="dim")
    elif progress.last is None:
        text.append("  Ctrl-C stops", style="dim")
    return text


FIRST_EPOCH = "the first epoch is under way"
KEEPING_UP_S = 2.0
"""So many seconds of reading may lie before a job that keeps up: an epoch, and the one after it."""
LINE_EVERY_S = 60.0
STOPPING = "ending the epoch…  (Ctrl-C again stops at once; nothing is lost)"


class Reporter:
    """What a run says about itself: nothing but that it stops, unless it is shown."""

    _progress: Progress | None = None

    def starting(self, step: str) -> None:
        """A step of the start has begun, which takes a while: what it does, in words."""

    def started(
        self, progress: Progress, ends: Callable[[], Ends], spark_ui: str | None = None
    ) -> None:
        """The job is about to run its first epoch; where Spark's UI is, if there is one."""

    def epoch(self, summary: EpochSummary) -> None:
        """An epoch is done, and noted in the progress."""

    def recovering(self, recovery: Recovery | None) -> None:
        """State is being brought back; ``None``: that is done. From another thread."""

    def notice(self, line: str) -> None:
        """Something is wrong although the run continues, or right again. From any thread."""

    def stopping(self) -> None:
        """The run was asked to end after the epoch under way."""
        typer.echo(STOPPING, err=True)

    def finished(self, seconds: float, *, interrupted: bool) -> None:
        """The run is over."""

    def close(self) -> None:
        """Leave the terminal as it was; the run may have failed."""


class QuietReporter(Reporter):
    """One line at the end; one for each epoch as well when ``verbose``.

    For a log, a run without an end also says on stderr that it runs, and prints an epoch a minute.
    """

    def __init__(self, clock: Clock, *, verbose: bool = False) -> None:
        self._clock, self._verbose = clock, verbose
        self._next_line_s = 0.0

    def started(
        self, progress: Progress, ends: Callable[[], Ends], spark_ui: str | None = None
    ) -> None:
        """Say with which epoch it continues."""
        del ends
        self._progress = progress
        if progress.state.until is None:
            ui = f"; Spark's UI: {spark_ui}" if spark_ui else ""
            typer.echo(
                f"{progress.job}: running, epoch {progress.state.epoch + 1} is next{ui}", err=True
            )
        self._next_line_s = self._clock.monotonic() + LINE_EVERY_S

    def epoch(self, summary: EpochSummary) -> None:
        """Print the epoch when asked to, else one a minute."""
        if self._verbose:
            typer.echo(epoch_line(summary))
        elif (now := self._clock.monotonic()) >= self._next_line_s:
            typer.echo(epoch_line(summary), err=True)
            self._next_line_s = now + LINE_EVERY_S

    def recovering(self, recovery: Recovery | None) -> None:
        """Say how far it is when asked to."""
        if self._verbose and recovery is not None:
            typer.echo(recovery_line(recovery))

    def notice(self, line: str) -> None:
        """Say it on stderr."""
        typer.echo(line, err=True)

    def finished(self, seconds: float, *, interrupted: bool) -> None:
        """Print the whole run."""
        if self._progress is not None:
            typer.echo(end_line(self._progress, seconds, interrupted=interrupted))


class JsonReporter(Reporter):
    """An object for each epoch, and one at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: Callable[[], Ends] = dict

    def started(
        self, progress: Progress, ends: Callable[[], Ends], spark_ui: str | None = None
    ) -> None:
        """Keep the progress."""
        del spark_ui
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

    def finished(self, seconds: float, *, interrupted: bool) -> None:
        """Print the whole run."""
        if self._progress is not None:
            show_json(end_json(self._progress, seconds, interrupted=interrupted))


class TerminalReporter(Reporter):
    """A live table of a run that follows its inputs, a bar of one that ends."""

    def __init__(
        self, clock: Clock, *, verbose: bool = False, console: Console | None = None
    ) -> None:
        self._clock, self._verbose = clock, verbose
        self._console = console or Console(highlight=False)
        self._shown: Live | Bars | None = None
        self._task: TaskID | None = None
        self._is_starting = False

    def starting(self, step: str) -> None:
        """Say what takes so long; nothing may move, for Spark's own start has the screen's file."""
        self.close()
        self._console.print(f"{step} …", style="dim", end="")
        self._console.file.flush()
        self._is_starting = True

    def started(
        self, progress: Progress, ends: Callable[[], Ends], spark_ui: str | None = None
    ) -> None:
        """Show the table or the bar."""
        self._progress = progress
        if spark_ui:
            self.close()
            self._console.print(f"Spark's UI: {spark_ui}", style="dim")
        total = progress.total()
        if progress.state.ended:
            self.close()
        elif total is None:
            self._show(
                Live(
                    get_renderable=lambda: live_table(
                        progress, ends(), self._clock.monotonic(), TerminalSize(*self._console.size)
                    ),
                    console=self._console,
                    refresh_per_second=2,
                )
            )
        else:
            bars = _bars(self._console)
            self._task = bars.add_task(progress.job, total=total, rows="0", rate=FIRST_EPOCH)
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
        if self._is_starting:
            self.close()
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
