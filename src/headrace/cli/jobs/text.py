"""What ``jobs ls`` and ``jobs describe`` print: tables, and objects for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from headrace.cli.words import count_text, size_text, time_text

if TYPE_CHECKING:
    from headrace.coordinator.inspection.job_list import InputView, JobView


def job_json(view: JobView) -> dict[str, Any]:
    """Return a job ready for JSON; times in ms, ``None`` where something is not known."""
    state, driver = view.state, view.driver
    return {
        "job": view.job,
        "status": view.status,
        "process": driver and driver.process,
        "host": driver and driver.host,
        "epoch": state and state.epoch,
        "oldest_epoch": view.oldest_epoch,
        "epoch_ms": state and state.time_ms,
        "rows": state and state.counts.get("in", 0),
        "late": state and state.counts.get("late", 0),
        "dropped": state and state.counts.get("dropped", 0),
        "dead_letters": state and state.counts.get("dead_letters", 0),
        "lag": view.lag,
        "state_bytes": view.state_bytes,
        "durability": state and state.durability,
        "lineage": state and state.lineage,
        "generation": state and state.generation,
        "storage": str(view.storage),
        "inputs": [
            {
                "operator": found.operator,
                "stream": found.stream,
                "read": found.read,
                "lag": found.lag,
                "watermark_ms": found.watermark_ms,
                "offsets": list(found.offsets),
            }
            for found in view.inputs
        ],
        "stages": [
            {"stage": s.stage, "tasks": s.tasks, "state_bytes": s.state_bytes} for s in view.stages
        ],
        "outputs": list(view.outputs),
        "problem": view.problem or None,
    }


def show_jobs(views: Sequence[JobView]) -> None:
    """Print a line for each job."""
    table = _table(
        ("job", "status", "last epoch (UTC)", "driver"), ("epoch", "rows", "lag", "state")
    )
    for view in views:
        state = view.state
        table.add_row(
            view.job,
            view.status,
            time_text(state.time_ms) if state else "-",
            str(view.driver) if view.driver else "-",
            f"{state.epoch:,}" if state else "-",
            f"{state.counts.get('in', 0):,}" if state else "-",
            _count(view.lag),
            size_text(view.state_bytes),
        )
    _print(table)


def show_job(view: JobView) -> None:
    """Print all that is known of a job."""
    console = Console(highlight=False, soft_wrap=True)
    for name, value in _facts(view):
        console.print(f"{name:<12} {value}")
    if view.inputs:
        console.print()
        table = _table(("input",), ("rows read", "lag", "watermark (UTC)", "next offsets"))
        for found in view.inputs:
            table.add_row(
                _name(found),
                f"{found.read:,}",
                _count(found.lag),
                time_text(found.watermark_ms),
                _offsets(found.offsets),
            )
        _print(table)
    if view.stages:
        console.print()
        table = _table(("stage",), ("tasks", "state"))
        for stage in view.stages:
            table.add_row(stage.stage, f"{stage.tasks}", size_text(stage.state_bytes))
        _print(table)


def _facts(view: JobView) -> list[tuple[str, str]]:
    state = view.state
    by = f" by {view.driver}" if view.driver else ""
    facts = [("job", view.job), ("status", f"{view.status}{by}")]
    if state is None:
        return [*facts, ("problem", view.problem), ("storage", str(view.storage))]
    counts = [f"{number:,} {name}" for name, number in sorted(state.counts.items()) if name != "in"]
    facts += [
        (
            "epoch",
            f"{state.epoch:,} of {time_text(state.time_ms)}; kept from {view.oldest_epoch:,}",
        ),
        ("rows", ", ".join([f"{state.counts.get('in', 0):,} in", *counts])),
        ("lineage", f"{state.lineage}, generation {state.generation}"),
        ("durability", state.durability),
        ("outputs", ", ".join(view.outputs) or "-"),
        ("storage", str(view.storage)),
    ]
    if state.until is not None:
        facts.insert(2, ("bounded", "to the ends that its inputs had when it began"))
    if state.rescaled_at >= 0:
        facts.append(("rescaled", f"in epoch {state.rescaled_at}"))
    return facts


def stopped_line(job: str, epoch: int | None) -> str:
    """Return what ``jobs stop`` says."""
    at = "before its first epoch" if epoch is None else f"after epoch {epoch}"
    return f"job {job}: stopped {at}, nothing is lost: run it again to go on"


def placed_line(job: str, epoch: int, what: str) -> str:
    """Return what ``jobs reset`` and ``jobs rewind`` say."""
    return f"job {job}: {what}, in epoch {epoch}; run it to go on from there"


def _name(found: InputView) -> str:
    same = found.operator == found.stream
    return found.operator if same else f"{found.operator} ({found.stream})"


def _offsets(offsets: Sequence[int], shown: int = 8) -> str:
    more = f" … {count_text(len(offsets), 'partition')}" if len(offsets) > shown else ""
    return " ".join(map(str, offsets[:shown])) + more


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print(table: Table) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a pipe has no edge at which names may be cut
    console.print(table)
