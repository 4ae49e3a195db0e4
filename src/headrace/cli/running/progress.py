"""What a running job has done so far, kept from epoch to epoch; reads nothing by itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.coordinator.manifest import JobState
    from headrace.coordinator.recovery import Recovery
    from headrace.coordinator.summary import EpochSummary

REFUSED = ("dropped", "dead_letters")
WINDOW_S = 5.0
Ends = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class InputProgress:
    """How far one input is: rows read by this run, rows still to read, its watermark in ms."""

    operator: str
    stream: str
    rows: int
    rows_per_s: float
    lag: int
    watermark_ms: int | None


@dataclass
class Progress:
    """The story of a run.

    Args:
        job: its name.
        streams: of each input operator.
        lateness_ms: of each input operator.
        state: the job's, when the run began.
        began: of the monotonic clock, s.
        idle_ms: after how long partitions of an input operator are idle, where they ever are.
    """

    job: str
    streams: Mapping[str, str]
    lateness_ms: Mapping[str, int]
    state: JobState
    began: float
    epochs: int = 0
    rows: int = 0
    output_rows: int = 0
    late_rows: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    busy_s: float = 0.0
    last: EpochSummary | None = None
    recovery: Recovery | None = None
    idle_ms: Mapping[str, int] = field(default_factory=dict)
    _first: dict[str, int] = field(init=False)
    _marks: deque[tuple[float, dict[str, int]]] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        """Note where each input stands."""
        self._first = _read(self.state)
        self._marks.append((self.began, self._first))

    def observe(self, summary: EpochSummary, state: JobState, now: float) -> None:
        """Take an epoch that is done.

        Args:
            summary: of the epoch.
            state: of the job after it.
            now: of the monotonic clock, s.
        """
        self.last, self.state = summary, state
        self.epochs += 1
        self.rows += summary.rows
        self.busy_s += summary.took_ms / 1000
        self.output_rows += summary.output_rows
        self.late_rows += summary.counts.get("late", 0)
        for name in REFUSED:
            self.refused[name] += summary.counts.get(name, 0)
        self._marks.append((now, _read(state)))
        while len(self._marks) > 2 and self._marks[1][0] < now - WINDOW_S:
            self._marks.popleft()

    def total(self) -> int | None:
        """Return how many rows a bounded run reads from its begin to its end; else ``None``."""
        until = self.state.until
        if until is None:
            return None
        ending = {name: stream for name, stream in self.streams.items() if stream in until}
        wanted = sum(sum(until[stream]) for stream in ending.values())
        return wanted - sum(self._first.get(name, 0) for name in ending)

    def left(self, now: float) -> tuple[int, float | None] | None:
        """Return how many rows a bounded run has still to read, and for how long; else ``None``.

        Args:
            now: of the monotonic clock, s; the time is at the rate of the last seconds before it,
                and ``None`` while nothing is read.
        """
        until = self.state.until
        if until is None:
            return None
        ending = [one for one in self.inputs({}, now) if one.stream in until]
        rows, rate = sum(one.lag for one in ending), sum(one.rows_per_s for one in ending)
        return rows, rows / rate if rate > 0 else None if rows else 0.0

    def inputs(self, ends: Ends, now: float) -> list[InputProgress]:
        """Return how far each input is.

        Args:
            ends: next offsets of the input streams, by name.
            now: of the monotonic clock, s; the rate is over the last seconds before it.
        """
        from headrace.coordinator.catalog import TimeEntry
        from headrace.coordinator.watermarks import Now, input_watermark

        read = _read(self.state)
        marks = [mark for mark in self._marks if mark[0] >= now - WINDOW_S]
        since, before = marks[0] if marks else (now, read)
        if marks and len(self._marks) > len(marks):
            since, before = self._marks[-len(marks) - 1]
        found = []
        for operator, stream in self.streams.items():
            positions = self.state.inputs.get(operator, {})
            limits = ends.get(stream, ())
            if self.state.until is not None:
                limits = self.state.until.get(stream, limits)
            behind, idle_ms = self.lateness_ms.get(operator, 0), self.idle_ms.get(operator)
            time = TimeEntry(operator, stream, len(positions), behind, idle_ms)
            rows = read.get(operator, 0)
            span = now - since
            found.append(
                InputProgress(
                    operator,
                    stream,
                    rows - self._first.get(operator, 0),
                    (rows - before.get(operator, 0)) / span if span > 0 else 0.0,
                    max(0, sum(limits) - rows),
                    input_watermark(time, positions, Now(self.state.time_ms, {stream: limits})),
                )
            )
        return found


def _read(state: JobState) -> dict[str, int]:
    return {
        operator: sum(position.next_offset for position in positions.values())
        for operator, positions in state.inputs.items()
    }
