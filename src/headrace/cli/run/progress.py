"""What a running job has done so far, and the lines and objects that say it; does no I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.cli.output import count_text, rate_text, seconds_text, size_text, time_text

if TYPE_CHECKING:
    from headrace.coordinator.epoch_records import BackupLag, EpochSummary
    from headrace.coordinator.manifest import JobState
    from headrace.coordinator.recovery import Recovery


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
    """The events of a run.

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

    def observe(self, text: EpochSummary, state: JobState, now: float) -> None:
        """Take an epoch that is done.

        Args:
            text: of the epoch.
            state: of the job after it.
            now: of the monotonic clock, s.
        """
        self.last, self.state = text, state
        self.epochs += 1
        self.rows += text.rows
        self.busy_s += text.took_ms / 1000
        self.output_rows += text.output_rows
        self.late_rows += text.counts.get("late", 0)
        for name in REFUSED:
            self.refused[name] += text.counts.get(name, 0)
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
        from headrace.control.job_status import input_status
        from headrace.coordinator.catalog import TimeEntry

        read = _read(self.state)
        marks = [mark for mark in self._marks if mark[0] >= now - WINDOW_S]
        since, before = marks[0] if marks else (now, read)
        if marks and len(self._marks) > len(marks):
            since, before = self._marks[-len(marks) - 1]
        found = []
        for operator, stream in self.streams.items():
            limits = (self.state.until or {}).get(stream) or ends.get(stream, ())
            behind, idle_ms = self.lateness_ms.get(operator, 0), self.idle_ms.get(operator)
            partitions = len(self.state.inputs.get(operator, {}))
            time = TimeEntry(operator, stream, partitions, behind, idle_ms)
            one, span = input_status(self.state, time, limits), now - since
            found.append(
                InputProgress(
                    operator,
                    stream,
                    one.read - self._first.get(operator, 0),
                    (one.read - before.get(operator, 0)) / span if span > 0 else 0.0,
                    one.lag or 0,
                    one.watermark_ms,
                )
            )
        return found


def _read(state: JobState) -> dict[str, int]:
    return {
        operator: sum(position.next_offset for position in positions.values())
        for operator, positions in state.inputs.items()
    }


def epoch_line(text: EpochSummary) -> str:
    """Return one epoch as a line."""
    seconds = text.took_ms / 1000
    parts = [
        " ".join(filter(None, ("epoch", part_of(text.job), str(text.epoch)))),
        count_text(text.rows, "row"),
        f"{seconds:.2f} s",
        rate_text(text.rows, seconds),
        f"{text.output_rows:,} out",
        f"lag {text.lag:,}",
        f"watermark {time_text(text.watermark)}",
        f"state {size_text(text.state_bytes)}",
    ]
    counted = {name: text.counts.get(name, 0) for name in ("late", "duplicates", "unmatched")}
    parts += [f"{rows:,} {name}" for name, rows in counted.items() if rows]
    parts += refused_parts(text.counts)
    if (hits := text.cache_hits) is not None:
        parts.append(f"cache {hits:.0%}")
    if text.copy is not None and text.copy.failures:
        behind = count_text(text.copy.epochs, "epoch")
        parts.append(f"copy {behind}, {seconds_text(text.copy.seconds)} behind")
    parts += [f"merge failed: {problem}" for problem in text.merge_problems]
    return "  ".join(parts)


def part_of(job: str) -> str:
    """Return the name of a part that is not the first; empty for that one."""
    from headrace.plan.stages import PART

    return job.partition(PART)[2]


def refused_parts(counts: Mapping[str, int]) -> list[str]:
    """Return how many rows ``on_error`` has dropped or set aside; nothing where none were."""
    dropped, letters = counts.get("dropped", 0), counts.get("dead_letters", 0)
    parts = [f"{dropped:,} dropped"] if dropped else []
    return [*parts, count_text(letters, "dead letter")] if letters else parts


def recovery_line(recovery: Recovery) -> str:
    """Return how far the stores of a job are back."""
    done, total = size_text(recovery.bytes_done), size_text(recovery.bytes_total)
    parts = [
        f"bringing state back: {recovery.tasks_done} of {count_text(recovery.tasks, 'task')}",
        f"{done} of {total}",
        count_text(recovery.rows, "change"),
    ]
    if recovery.eta_s is not None:
        parts += [f"{size_text(recovery.rate)}/s", f"{seconds_text(recovery.eta_s)} left"]
    return "  ".join(parts)


def recovery_json(recovery: Recovery) -> dict[str, Any]:
    """Return how far the stores of a job are back for ``--json``."""
    return {
        "type": "recovery",
        "epoch": recovery.epoch,
        "tasks_done": recovery.tasks_done,
        "tasks": recovery.tasks,
        "bytes_done": recovery.bytes_done,
        "bytes_total": recovery.bytes_total,
        "changes": recovery.rows,
        "bytes_per_s": round(recovery.rate),
        "eta_s": None if recovery.eta_s is None else round(recovery.eta_s, 1),
        "stage": recovery.stage,
        "task": recovery.task,
        "file": recovery.file,
    }


def _copy_json(copy: BackupLag | None) -> dict[str, Any] | None:
    if copy is None:
        return None
    return {
        "lag_epochs": copy.epochs,
        "lag_s": copy.seconds,
        "failures": copy.failures,
        "problem": copy.problem,
    }


def epoch_json(text: EpochSummary, progress: Progress, ends: Ends, now: float) -> dict[str, Any]:
    """Return one epoch for ``--json``; times in ms, ``None`` where there is none."""
    seconds = text.took_ms / 1000
    left, eta_s = progress.left(now) or (None, None)
    return {
        "type": "epoch",
        "epoch": text.epoch,
        "rows": text.rows,
        "took_ms": text.took_ms,
        "rows_per_s": round(text.rows / seconds) if seconds else 0,
        "output_rows": text.output_rows,
        "lag": text.lag,
        "left": left,
        "eta_s": None if eta_s is None else round(eta_s, 1),
        "watermark_ms": None if time_text(text.watermark) == "-" else text.watermark,
        "state_bytes": text.state_bytes,
        "changelog_bytes": text.changelog_bytes,
        "merged_bytes": text.merged_bytes,
        "merge_problems": list(text.merge_problems),
        "counts": text.counts,
        "timings_ms": text.timings_ms,
        "inputs": {
            found.operator: {
                "stream": found.stream,
                "rows": found.rows,
                "lag": found.lag,
                "watermark_ms": found.watermark_ms,
            }
            for found in progress.inputs(ends, now)
        },
        "copy": _copy_json(text.copy),
        "ended": text.ended,
        "part": part_of(text.job),
    }


def end_json(progress: Progress, seconds: float, *, interrupted: bool) -> dict[str, Any]:
    """Return the whole run for ``--json``."""
    return {
        "type": "end",
        "job": progress.job,
        "epoch": progress.state.epoch,
        "epochs": progress.epochs,
        "rows": progress.rows,
        "output_rows": progress.output_rows,
        "late_rows": progress.late_rows,
        "dropped": progress.refused["dropped"],
        "dead_letters": progress.refused["dead_letters"],
        "seconds": round(seconds, 3),
        "busy_seconds": round(progress.busy_s, 3),
        "rows_per_s": round(progress.rows / progress.busy_s) if progress.busy_s else 0,
        "ended": progress.state.ended,
        "interrupted": interrupted,
    }


def end_line(progress: Progress, seconds: float, *, interrupted: bool) -> str:
    """Return the whole run as a line."""
    job, state = progress.job, progress.state
    if state.ended and not progress.epochs:
        return (
            f"{job}: its run had ended in epoch {state.epoch}; nothing was left to do. "
            "Begin its next run with --bounded, or follow its inputs under another name"
        )
    rate = f" ({rate_text(progress.rows, progress.busy_s)} while busy)" if progress.busy_s else ""
    text = (
        f"{job}: {count_text(progress.rows, 'row')} in {count_text(progress.epochs, 'epoch')}, "
        f"{seconds_text(seconds)}{rate}, "
        f"{progress.output_rows:,} out"
    )
    if progress.late_rows:
        text += f", {progress.late_rows:,} late"
    text += "".join(f", {part}" for part in refused_parts(progress.refused))
    if interrupted:
        return (
            f"{text}; stopped after epoch {state.epoch}, nothing is lost: run it again to continue"
        )
    return f"{text}; {'ended' if state.ended else 'stopped'} in epoch {state.epoch}"
