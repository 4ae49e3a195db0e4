"""What ``jobs ls`` and ``jobs describe`` print: tables, and objects for programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.jobs.observed import observed_facts
from headrace.cli.jobs.placement_text import PLACEMENT, placement_facts, show_placement
from headrace.cli.screen import show_facts, show_line, show_table
from headrace.cli.words import count_text, seconds_text, size_text, time_text
from headrace.coordinator.manifest import SINK_ROWS
from headrace.coordinator.standby.placing import (
    ACTIVE_LOST,
    FAILOVER,
    FOLLOWED,
    NO_FAILOVER,
    STANDBY,
    STANDBY_LOST,
)

if TYPE_CHECKING:
    from headrace.control.description import Description, EventTold, MemberTold
    from headrace.coordinator.inspection.job_list import InputView, SinkView, StandbyView


NO_ANSWER = "its driver does not answer, or has no API; this is from files, as of its last epoch"


def job_json(told: Description) -> dict[str, Any]:
    """Return a job ready for JSON; times in ms, ``None`` where something is not known."""
    return asdict(told)


def show_jobs(jobs: Sequence[Description]) -> None:
    """Print a line for each job."""
    numbers = ("epoch", "rows", "lag", "state")
    rows = [_job_row(one) for one in jobs]
    titles = ("job", "status", "last epoch (UTC)", "driver", *numbers)
    show_table(titles, rows, right=numbers, spare=("driver", "last epoch (UTC)"))
    for one in jobs:
        if one.process is not None and not one.live:
            show_line(f"{one.job}: {NO_ANSWER}")


def _job_row(told: Description) -> list[str]:
    return [
        told.job,
        told.status,
        time_text(told.epoch_ms),
        _driver(told),
        _count(told.epoch),
        _count(told.rows),
        _count(told.lag),
        size_text(told.state_bytes),
    ]


def _driver(told: Description) -> str:
    others = len(told.members) - 1
    return _process(told) + (f", {others} more" if others > 0 else "")


def _process(told: Description) -> str:
    if told.process is None:
        return "-"
    is_here = told.host == os.uname().nodename
    return f"process {told.process}" + ("" if is_here else f" on host {told.host}")


def show_job(view: Description) -> None:
    """Print all that is known of a job."""
    show_facts(_facts(view))
    inputs = [_input_row(one) for one in view.inputs]
    _show_part(("input",), ("rows read", "lag", "watermark (UTC)", "next offsets"), inputs)
    _show_stages(view)
    sinks = [_sink_row(one) for one in view.sinks]
    _show_part(("sink", "sends to"), ("rows committed", "up to epoch", "waiting"), sinks)
    if view.placement is not None:
        show_placement(view.placement)
    if view.events:
        typer.echo()
        show_events(view.events)


def show_events(events: Sequence[EventTold]) -> None:
    """Print a line for each event."""
    rows = [[time_text(event.at_ms, with_ms=False), event.text] for event in events]
    show_table(("happened (UTC)", "what"), rows)


def _show_stages(view: Description) -> None:
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


def _lacking(told: Description) -> str:
    """Say how many standbys there is no other host for."""
    held = [one.standby for one in told.stages if one.standby is not None]
    lacking = sum(max(0, one.wanted - one.standbys) for one in held)
    return f", {lacking} for want of hosts" if lacking else ""


def _sink_row(found: SinkView) -> list[str]:
    numbers = (found.rows, found.epoch, found.waiting)
    return [found.operator, found.identity, *map(_count, numbers)]


def _facts(told: Description) -> list[tuple[str, str]]:
    by = f" by {_process(told)}" if told.process is not None else ""
    facts = [("job", told.job), ("status", f"{told.status}{by}")]
    if told.process is not None and not told.live:
        facts.append(("not live", NO_ANSWER))
    if told.members:
        facts.append(("shared by", "; ".join(map(_member, told.members))))
    if told.counts is None:
        return [*facts, ("problem", told.problem or "-"), ("storage", told.storage)]
    if told.bounded:
        ends = "to the ends that its inputs had at its start"
        facts.append(("bounded", f"run {told.run}, {ends}"))
    if (left := told.standbys_to_fill) and told.process is not None:
        facts.append(
            ("deployed", f"not yet: {count_text(left, 'standby')} to fill{_lacking(told)}")
        )
    facts += [
        (
            "epoch",
            f"{told.epoch:,} of {time_text(told.epoch_ms)}; kept from {told.oldest_epoch:,}",
        ),
        ("rows", _counts(told.counts)),
        ("lineage", f"{told.lineage}, generation {told.generation}"),
        ("durability", told.durability or "-"),
        ("outputs", ", ".join(told.outputs) or "-"),
        ("storage", told.storage),
    ]
    if lost := {n: c for n, c in told.counts.items() if n.startswith(STANDBY)}:
        facts.append(("hosts lost", failures_text(lost)))
    if told.placement is not None:
        facts += placement_facts(told.placement)
    facts += observed_facts(told)
    facts += [
        (
            f"standbys of {name}",
            f"have read {size_text(one.bytes)} in {seconds_text(one.ms / 1000)} of work",
        )
        for name, one in (told.standbys_followed or {}).items()
    ]
    for part in told.parts:
        done = ", ended" if part.ended else ""
        kept = f"kept from {part.oldest_epoch:,}"
        facts.append((f"part {part.part}", f"epoch {part.epoch:,}; {kept}{done}"))
    if told.rescaled_in is not None:
        facts.append(("rescaled", f"in epoch {told.rescaled_in}"))
    return facts


def _counts(counts: Mapping[str, int]) -> str:
    others = [
        f"{number:,} {name}"
        for name, number in sorted(counts.items())
        if name != "in" and not name.startswith((SINK_ROWS, STANDBY, FOLLOWED, PLACEMENT))
    ]
    return ", ".join([f"{counts.get('in', 0):,} in", *others])


def _member(found: MemberTold) -> str:
    drives = ", drives" if found.drives else ""
    return f"process {found.process} on {found.host} with {count_text(found.slots, 'slot')}{drives}"


def failures_text(counts: Mapping[str, int]) -> str:
    """Say what became of tasks and standbys whose hosts were lost."""
    tasks, standbys = counts.get(ACTIVE_LOST, 0), counts.get(STANDBY_LOST, 0)
    moved, without = counts.get(FAILOVER, 0), counts.get(NO_FAILOVER, 0)
    went = f"{moved:,} to a standby, {without:,} without one"
    return f"under {count_text(tasks, 'task')} ({went}) and {count_text(standbys, 'standby')}"


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
