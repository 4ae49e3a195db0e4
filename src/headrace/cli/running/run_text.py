"""What ``run`` prints, as pure functions of what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli.words import count_text, rate_text, seconds_text, size_text, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.running.progress import Ends, Progress
    from headrace.coordinator.backup.copier import CopyLag
    from headrace.coordinator.recovery import Recovery
    from headrace.coordinator.summary import EpochSummary


def epoch_line(summary: EpochSummary) -> str:
    """Return one epoch as a line."""
    seconds = summary.took_ms / 1000
    parts = [
        " ".join(filter(None, ("epoch", part_of(summary.job), str(summary.epoch)))),
        count_text(summary.rows, "row"),
        f"{seconds:.2f} s",
        rate_text(summary.rows, seconds),
        f"{summary.output_rows:,} out",
        f"lag {summary.lag:,}",
        f"watermark {time_text(summary.watermark)}",
        f"state {size_text(summary.state_bytes)}",
    ]
    counted = {name: summary.counts.get(name, 0) for name in ("late", "duplicates", "unmatched")}
    parts += [f"{rows:,} {name}" for name, rows in counted.items() if rows]
    parts += refused_parts(summary.counts)
    if (hits := summary.cache_hits) is not None:
        parts.append(f"cache {hits:.0%}")
    if summary.copy is not None and summary.copy.failures:
        behind = count_text(summary.copy.epochs, "epoch")
        parts.append(f"copy {behind}, {seconds_text(summary.copy.seconds)} behind")
    parts += [f"merge failed: {problem}" for problem in summary.merge_problems]
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


def _copy_json(copy: CopyLag | None) -> dict[str, Any] | None:
    if copy is None:
        return None
    return {
        "lag_epochs": copy.epochs,
        "lag_s": copy.seconds,
        "failures": copy.failures,
        "problem": copy.problem,
    }


def epoch_json(summary: EpochSummary, progress: Progress, ends: Ends, now: float) -> dict[str, Any]:
    """Return one epoch for ``--json``; times in ms, ``None`` where there is none."""
    seconds = summary.took_ms / 1000
    left, eta_s = progress.left(now) or (None, None)
    return {
        "type": "epoch",
        "epoch": summary.epoch,
        "rows": summary.rows,
        "took_ms": summary.took_ms,
        "rows_per_s": round(summary.rows / seconds) if seconds else 0,
        "output_rows": summary.output_rows,
        "lag": summary.lag,
        "left": left,
        "eta_s": None if eta_s is None else round(eta_s, 1),
        "watermark_ms": None if time_text(summary.watermark) == "-" else summary.watermark,
        "state_bytes": summary.state_bytes,
        "changelog_bytes": summary.changelog_bytes,
        "merged_bytes": summary.merged_bytes,
        "merge_problems": list(summary.merge_problems),
        "counts": summary.counts,
        "timings_ms": summary.timings_ms,
        "inputs": {
            found.operator: {
                "stream": found.stream,
                "rows": found.rows,
                "lag": found.lag,
                "watermark_ms": found.watermark_ms,
            }
            for found in progress.inputs(ends, now)
        },
        "copy": _copy_json(summary.copy),
        "ended": summary.ended,
        "part": part_of(summary.job),
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
    told = (
        f"{job}: {count_text(progress.rows, 'row')} in {count_text(progress.epochs, 'epoch')}, "
        f"{seconds_text(seconds)} ({rate_text(progress.rows, progress.busy_s)} while busy), "
        f"{progress.output_rows:,} out"
    )
    if progress.late_rows:
        told += f", {progress.late_rows:,} late"
    told += "".join(f", {part}" for part in refused_parts(progress.refused))
    if interrupted:
        return f"{told}; stopped after epoch {state.epoch}, nothing is lost: run it again to go on"
    return f"{told}; {'ended' if state.ended else 'stopped'} in epoch {state.epoch}"
