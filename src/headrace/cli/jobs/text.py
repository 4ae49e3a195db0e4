"""What ``jobs ls`` and ``jobs describe`` print: tables, and objects for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from msgspec import to_builtins

from headrace.cli.jobs.observed import observed_facts, observed_json
from headrace.cli.jobs.placement_text import (
    PLACEMENT,
    placement_facts,
    placement_json,
    show_placement,
)
from headrace.cli.screen import show_facts, show_table
from headrace.cli.words import count_text, seconds_text, size_text, time_text
from headrace.coordinator.manifest import SINK_ROWS
from headrace.coordinator.standby.placing import (
    ACTIVE_LOST,
    FAILOVER,
    FOLLOWED,
    FOLLOWED_BYTES,
    FOLLOWED_MS,
    NO_FAILOVER,
    STANDBY,
    STANDBY_LOST,
)

if TYPE_CHECKING:
    from headrace.coordinator.inspection.job_list import (
        InputView,
        JobView,
        SinkView,
        StageView,
        StandbyView,
    )
    from headrace.coordinator.running.members import MemberInfo
    from headrace.coordinator.story import Event


def job_json(view: JobView) -> dict[str, Any]:
    """Return a job ready for JSON; times in ms, ``None`` where something is not known."""
    state, driver = view.state, view.driver
    return {
        "job": view.job,
        "status": view.status,
        "process": driver and driver.process,
        "host": driver and driver.host,
        "members": [to_builtins(one) for one in view.members],
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
        "run": state and state.run,
        "generation": state and state.generation,
        "storage": str(view.storage),
        "parts": [asdict(part) for part in view.parts],
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
        "stages": [_stage_json(found) for found in view.stages],
        "failures": {
            name.removeprefix(STANDBY): count
            for name, count in (state.counts if state else {}).items()
            if name.startswith(STANDBY)
        },
        "deployed": state is not None and not view.standbys_to_fill,
        "standbys_followed": {
            name: {"bytes": size, "ms": ms}
            for name, (size, ms) in followed(state.counts if state else {}).items()
        },
        "placement": state and placement_json(state),
        "outputs": list(view.outputs),
        "sinks": [asdict(found) for found in view.sinks],
        **observed_json(view.storage),
        "events": [event_json(event) for event in view.events],
        "problem": view.problem or None,
    }


def _stage_json(found: StageView) -> dict[str, Any]:
    return {
        "stage": found.stage,
        "tasks": found.tasks,
        "state_bytes": found.state_bytes,
        "standby": found.standby and asdict(found.standby),
    }


def show_jobs(views: Sequence[JobView]) -> None:
    """Print a line for each job."""
    numbers = ("epoch", "rows", "lag", "state")
    rows = [_job_row(view) for view in views]
    titles = ("job", "status", "last epoch (UTC)", "driver", *numbers)
    show_table(titles, rows, right=numbers, spare=("driver", "last epoch (UTC)"))


def _job_row(view: JobView) -> list[str]:
    state = view.state
    return [
        view.job,
        view.status,
        time_text(state.time_ms) if state else "-",
        _driver(view),
        f"{state.epoch:,}" if state else "-",
        f"{state.counts.get('in', 0):,}" if state else "-",
        _count(view.lag),
        size_text(view.state_bytes),
    ]


def _driver(view: JobView) -> str:
    others = len(view.members) - 1
    more = f", {others} more" if others > 0 else ""
    return f"{view.driver}{more}" if view.driver else "-"


def show_job(view: JobView) -> None:
    """Print all that is known of a job."""
    show_facts(_facts(view))
    inputs = [_input_row(one) for one in view.inputs]
    _show_part(("input",), ("rows read", "lag", "watermark (UTC)", "next offsets"), inputs)
    _show_stages(view)
    sinks = [_sink_row(one) for one in view.sinks]
    _show_part(("sink", "sends to"), ("rows committed", "up to epoch", "waiting"), sinks)
    if view.state is not None:
        show_placement(view.state)
    if view.events:
        typer.echo()
        show_events(view.events)


def show_events(events: Sequence[Event]) -> None:
    """Print a line for each event."""
    rows = [[time_text(event.time_ms, with_ms=False), event.text] for event in events]
    show_table(("happened (UTC)", "what"), rows)


def event_json(event: Event) -> dict[str, Any]:
    """Return an event ready for JSON."""
    return {
        "at_ms": event.time_ms,
        "kind": event.kind,
        "text": event.text,
        "epoch": event.epoch if event.epoch >= 0 else None,
    }


def _show_stages(view: JobView) -> None:
    stages = [[one.stage, f"{one.tasks}", size_text(one.state_bytes)] for one in view.stages]
    if not any(one.standby for one in view.stages):
        _show_part(("stage",), ("tasks", "state"), stages)
        return
    rows = [
        [*row, *_standby_row(one.standby)] for row, one in zip(stages, view.stages, strict=True)
    ]
    _show_part(("stage",), ("tasks", "state", "standbys", "filled", "at most behind"), rows)


def _standby_row(found: StandbyView | None) -> list[str]:
    if found is None:
        return ["-", "-", "-"]
    behind = f"{found.epochs:,} epochs, {size_text(found.size)}"
    return [f"{found.standbys}", f"{found.filled}", behind]


def _show_part(left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        typer.echo()
        show_table((*left, *right), rows, right=right)


def _input_row(found: InputView) -> list[str]:
    return [
        _name(found),
        f"{found.read:,}",
        _count(found.lag),
        time_text(found.watermark_ms),
        _offsets(found.offsets),
    ]


def _sink_row(found: SinkView) -> list[str]:
    numbers = (found.rows, found.epoch, found.waiting)
    return [found.operator, found.identity, *map(_count, numbers)]


def _facts(view: JobView) -> list[tuple[str, str]]:
    state = view.state
    by = f" by {view.driver}" if view.driver else ""
    facts = [("job", view.job), ("status", f"{view.status}{by}")]
    if view.members:
        facts.append(("shared by", "; ".join(map(_member, view.members))))
    if state is None:
        return [*facts, ("problem", view.problem), ("storage", str(view.storage))]
    if left := view.standbys_to_fill:
        facts.append(("deployed", f"not yet: {count_text(left, 'standby')} to fill"))
    counts = [
        f"{number:,} {name}"
        for name, number in sorted(state.counts.items())
        if name != "in" and not name.startswith((SINK_ROWS, STANDBY, FOLLOWED, PLACEMENT))
    ]
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
    if lost := {n: c for n, c in state.counts.items() if n.startswith(STANDBY)}:
        facts.append(("hosts lost", failures_text(lost)))
    facts += placement_facts(state)
    facts += observed_facts(view.storage)
    facts += [
        (f"standbys of {name}", f"have read {size_text(size)} in {seconds_text(ms / 1000)} of work")
        for name, (size, ms) in followed(state.counts).items()
    ]
    if state.until is not None:
        facts.insert(
            2, ("bounded", f"run {state.run}, to the ends that its inputs had at its start")
        )
    for part in view.parts:
        done = ", ended" if part.ended else ""
        kept = f"kept from {part.oldest_epoch:,}"
        facts.append((f"part {part.part}", f"epoch {part.epoch:,}; {kept}{done}"))
    if state.rescaled_at >= 0:
        facts.append(("rescaled", f"in epoch {state.rescaled_at}"))
    return facts


def _member(found: MemberInfo) -> str:
    drives = ", drives" if found.drives else ""
    return f"process {found.process} on {found.host} with {count_text(found.slots, 'slot')}{drives}"


def failures_text(counts: Mapping[str, int]) -> str:
    """Say what became of tasks and standbys whose hosts were lost."""
    tasks, standbys = counts.get(ACTIVE_LOST, 0), counts.get(STANDBY_LOST, 0)
    moved, without = counts.get(FAILOVER, 0), counts.get(NO_FAILOVER, 0)
    went = f"{moved:,} to a standby, {without:,} without one"
    return f"under {tasks:,} tasks ({went}) and {standbys:,} standbys"


def followed(counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return what the standbys of each stage have read so far, bytes, and how long, ms."""
    names = [n.removeprefix(FOLLOWED_BYTES) for n in counts if n.startswith(FOLLOWED_BYTES)]
    return {n: (counts[FOLLOWED_BYTES + n], counts.get(FOLLOWED_MS + n, 0)) for n in names}


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
