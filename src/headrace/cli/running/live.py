"""The live table of a run that follows its inputs: a line for each, fitted to the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from headrace.cli.running.progress import InputProgress
from headrace.cli.running.run_text import recovery_line, refused_parts
from headrace.cli.screen import new_table
from headrace.cli.words import count_text, size_text, time_text

if TYPE_CHECKING:
    from headrace.cli.running.progress import Ends, Progress

_OF_INPUT = ("rows/s", "rows", "lag", "watermark (UTC)")
_OF_JOB = ("epoch", "took", "state")
_RIGHT = ("rows/s", "rows", "lag", *_OF_JOB)
_GAP, _LEAST_NAME = 2, 8
_AROUND = 3
"""Lines of the terminal that are no input: title, head, cursor."""


class Screen(NamedTuple):
    """How large a terminal is."""

    width: int
    height: int


def live_table(progress: Progress, ends: Ends, now: float, screen: Screen) -> Group:
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
    return Group(_title(progress, lag, () if is_wide else own), table)


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


def _title(progress: Progress, lag: int, own: Sequence[str]) -> Text:
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
        told = "the first epoch is under way" if lag else "waiting for input"
        text.append(f"  {told}", style="dim")
    text.append("  Ctrl-C ends the epoch and stops" if not own else "  Ctrl-C stops", style="dim")
    return text
