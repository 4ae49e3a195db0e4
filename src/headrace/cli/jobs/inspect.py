"""``headrace jobs why`` and ``hot-keys``, and what ``jobs ls`` and ``jobs describe`` print."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Home, JobName, Json, open_home_bus, settings_of
from headrace.cli.output import (
    count_text,
    seconds_text,
    show_facts,
    show_json,
    show_line,
    show_table,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from headrace.control.job_status import (
        EventStatus,
        HeavyKey,
        HeavyKeys,
        HostStatus,
        InputStatus,
        JobStatus,
        PlacementStatus,
        SinkStatus,
        StandbyDriverStatus,
        StandbyStatus,
    )
    from headrace.coordinator.inspection.diagnosis import (
        JobDiagnosis,
        OperatorView,
        OutputView,
        PartitionView,
    )
    from headrace.coordinator.leader_lease import MemberInfo


SHOWN = 20
"""Partitions that are shown; those that hold nothing up are left out first."""


def why(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Show what holds a job back, what it dropped, and where its output stops.

    Shows the state after the last epoch, from the driver, or from the job's files if none answers:

    - Each partition of the inputs whose event time counts: watermark, unread rows, when an epoch
      last read any, and whether it *holds back* the watermark, only *counts* for it, is *idle*, or
      is at the end of a bounded run. At most 20 partitions are shown.
    - Each stage: its watermark, the lowest watermark at which a result is due, and the partition
      that holds it back.
    - Each operator: rows in and out, what happened to the others (`filtered`, `unmatched`,
      `duplicates`, `late`, `dropped`, `dead letters`), and the last epoch in which it emitted any.
    - Each end of the graph: whether rows still arrive; if not, the operator at which they stop,
      and why.

    With `--json`, prints one object, with times in milliseconds.

    Guide: time.

    For example:

        headrace jobs why shop
    """
    from headrace.control.client import asked
    from headrace.coordinator.inspection.diagnosis import JobDiagnosis, diagnose
    from headrace.coordinator.inspection.job_reader import part_readers
    from headrace.sources.bounded_bus import saved_inputs

    settings = settings_of(home)
    status = asked(settings, job, "/v1/why", list[JobDiagnosis])
    if (found := status) is None:
        readers = part_readers(settings, job)
        with open_home_bus(settings) as bus:
            found = [diagnose(reader, saved_inputs(bus, reader.root)) for reader in readers]
    if as_json:
        show_json(*({**asdict(one), "live": status is not None} for one in found))
        return
    for number, one in enumerate(found):
        if number:
            typer.echo()
        show_why(one)


def show_why(found: JobDiagnosis) -> None:
    """Print all of it, what people ask first last."""
    show_facts([("job", found.job), ("epoch", f"{found.epoch:,} of {time_text(found.time_ms)}")])
    if found.partitions:
        _show_partitions(found.partitions)
    typer.echo()
    titles = ("stage", "watermark (UTC)", "next result due at", "held back by")
    stages = [
        (one.stage, time_text(one.watermark_ms), time_text(one.due_ms), one.behind)
        for one in found.stages
    ]
    show_table(titles, stages)
    typer.echo()
    numbers = ("rows in", "rows out", "last in epoch")
    rows = [_operator_row(one) for one in found.operators]
    show_table(("operator", *numbers, "others", "what"), rows, right=numbers)
    typer.echo()
    for one in found.first:
        at = f"partition {one.partition} is at {one.next_offset:,} of {one.end:,}"
        typer.echo(f"{one.operator} is read first, {at}; other inputs wait")
    for end in found.ends:
        typer.echo(_end_line(end))


def _show_partitions(partitions: tuple[PartitionView, ...]) -> None:
    first = [one for one in partitions if one.standing != "counts"]
    rest = sorted(
        (one for one in partitions if one.standing == "counts"),
        key=lambda one: (one.watermark_ms is not None, one.watermark_ms or 0),
    )
    shown = [*first, *rest][:SHOWN]
    typer.echo()
    titles = ("input", "partition", "watermark (UTC)", "unread", "last read (UTC)", "it")
    rows = [
        (
            one.operator if one.operator == one.stream else f"{one.operator} ({one.stream})",
            str(one.partition),
            time_text(one.watermark_ms),
            f"{one.unread:,}",
            time_text(one.read_ms, with_ms=False),
            one.standing,
        )
        for one in shown
    ]
    show_table(titles, rows, right=("partition", "unread"))
    if len(partitions) > len(shown):
        typer.echo(f"and {len(partitions) - len(shown):,} partitions more; --json has them all")


def _operator_row(one: OperatorView) -> tuple[str, ...]:
    others = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in sorted(one.others.items()))
    epoch = f"{one.epoch:,}" if one.epoch >= 0 else "-"
    return one.name, f"{one.received:,}", f"{one.sent:,}", epoch, others or "-", one.text


def _end_line(end: OutputView) -> str:
    last = f"last in epoch {end.epoch:,} ({time_text(end.time_ms, with_ms=False)})"
    head = f"{end.operator}: {last if end.epoch >= 0 else 'never any row'}"
    if end.stopped_at is None:
        return f"{head}; rows still arrive"
    line = f"{head}; rows stop at {end.stopped_at}: {end.reason}"
    if end.due is not None:
        at, due = time_text(end.due.watermark_ms), time_text(end.due.due_ms)
        line += f", {due}; it is {'unknown' if at == '-' else at}, held back by {end.due.behind}"
    return line


TITLES = ("rows, about", "share")
WORTH_SHOWING = 0.01


def hot_keys(
    job: JobName,
    most: Annotated[
        int, typer.Option("--limit", min=1, max=16, help="Keys to show of each partition_by.")
    ] = 10,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Show the keys with the most rows recently, for each `partition_by`.

    Shows the approximate rows of each key and its share, from a sample of the rows that the driver
    takes. For a job that does not run, shows what the last driver stored. `headrace jobs describe`
    shows the first three keys with at least 1 %.

    Guide: observation.

    For example:

        headrace jobs hot-keys shop --limit 3
    """
    from headrace.cli.jobs.access import newest_epochs
    from headrace.control.job_status import kept_keys

    found = kept_keys(newest_epochs(settings_of(home), job))
    if as_json:
        show_json({"job": job, "hot_keys": [_limited(one, most) for one in found]})
    elif not found:
        typer.echo(
            f"no keys of {job} are known: nothing went through a partition_by while headrace run "
            "ran it, or it has observe.hot_keys=false"
        )
    for number, one in enumerate([] if as_json else found):
        if number:
            typer.echo()
        _show(one, most)


def _limited(one: HeavyKeys, most: int) -> dict[str, Any]:
    status = asdict(one)
    return {**status, "keys": status["keys"][:most]}


def _show(one: HeavyKeys, most: int) -> None:
    typer.echo(f"{one.operator}, about {one.rows:,.0f} rows until {time_text(one.at_ms)}")
    rows = [[*map(str, key.key), f"{key.rows:,.0f}", f"{key.share:.1%}"] for key in one.keys[:most]]
    show_table((*one.columns, *TITLES), rows, right=TITLES)


def observed_facts(status: JobStatus) -> list[tuple[str, str]]:
    """Return what fires, and the heaviest keys, as facts of a job; nothing where there is none."""
    facts = [
        ("alert", f"{one.rule} fires since {time_text(one.fired_ms)}: {one.text}")
        for one in status.alerts
        if one.fired_ms is not None
    ]
    for found in status.hot_keys:
        heavy = [key for key in found.keys if key.share >= WORTH_SHOWING]
        if heavy:
            said = ", ".join(_key_text(found, key) for key in heavy)
            facts.append(("hot keys", f"{found.operator}: {said}"))
    return facts


def _key_text(one: HeavyKeys, key: HeavyKey) -> str:
    named = zip(one.columns, key.key, strict=True)
    return f"{' '.join(f'{name}={value}' for name, value in named)} {key.share:.1%}"


PLACEMENT = "placement."


def placement_facts(status: PlacementStatus) -> list[tuple[str, str]]:
    """Say how many tasks moved and are to move, where any did or are."""
    moves = status.moves
    if not (moves.done or moves.lost or moves.pending):
        return []
    said = [f"{moves.done:,} done", f"{moves.pending:,} to come"]
    if moves.lost:
        their = "its" if moves.lost == 1 else "their"
        said.append(f"{count_text(moves.lost, 'task')} had lost {their} host")
    return [("moves", ", ".join(said))]


def show_placement(status: PlacementStatus) -> None:
    """Print the hosts."""
    rows = [_row(view) for view in status.hosts]
    if rows:
        typer.echo()
        numbers = ("slots", "tasks", "a slot", "standbys", "state")
        show_table(("host", "status", *numbers), rows, right=numbers)


def _row(view: HostStatus) -> list[str]:
    share = f"{view.tasks / view.slots:.1f}".removesuffix(".0") if view.slots else "-"
    return [
        view.address or view.host,
        f"{view.status} (all jobs)" if view.everywhere else view.status,
        f"{view.slots}",
        f"{view.tasks}",
        share,
        f"{view.standbys}",
        size_text(view.state_bytes),
    ]


NO_ANSWER = "its driver does not answer, or has no API; this is from files, as of its last epoch"


def show_jobs(jobs: Sequence[JobStatus]) -> None:
    """Print a line for each job."""
    numbers = ("epoch", "rows", "lag", "state")
    rows = [_job_row(one) for one in jobs]
    titles = ("job", "status", "last epoch (UTC)", "driver", *numbers)
    show_table(titles, rows, right=numbers, spare=("driver", "last epoch (UTC)"))
    for one in jobs:
        if one.process is not None and not one.live:
            show_line(f"{one.job}: {NO_ANSWER}")


def _job_row(status: JobStatus) -> list[str]:
    return [
        status.job,
        status.status,
        time_text(status.epoch_ms),
        _driver(status),
        _count(status.epoch),
        _count(status.rows),
        _count(status.lag),
        size_text(status.state_bytes),
    ]


def _driver(status: JobStatus) -> str:
    others = len(status.members) - 1
    return _process(status) + (f", {others} more" if others > 0 else "")


def _process(status: JobStatus) -> str:
    if status.process is None:
        return "-"
    is_here = status.host == os.uname().nodename
    return f"process {status.process}" + ("" if is_here else f" on host {status.host}")


def show_job(view: JobStatus) -> None:
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


def show_events(events: Sequence[EventStatus]) -> None:
    """Print a line for each event."""
    rows = [[time_text(event.at_ms, with_ms=False), event.text] for event in events]
    show_table(("happened (UTC)", "what"), rows)


def _show_stages(view: JobStatus) -> None:
    stages = [[one.stage, f"{one.tasks}", size_text(one.state_bytes)] for one in view.stages]
    if not any(one.standby for one in view.stages):
        _show_part(("stage",), ("tasks", "state"), stages)
        return
    rows = [
        [*row, *_standby_row(one.standby)] for row, one in zip(stages, view.stages, strict=True)
    ]
    _show_part(("stage",), ("tasks", "state", "standbys", "filled", "at most behind"), rows)


def _standby_row(found: StandbyStatus | None) -> list[str]:
    if found is None:
        return ["-", "-", "-"]
    behind = f"{found.epochs:,} epochs, {size_text(found.size)}"
    return [f"{found.standbys}", f"{found.filled}", behind]


def _show_part(left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        typer.echo()
        show_table((*left, *right), rows, right=right)


def _input_row(found: InputStatus) -> list[str]:
    return [
        _name(found),
        f"{found.read:,}",
        _count(found.lag),
        time_text(found.watermark_ms),
        _offsets(found.offsets),
    ]


def _lacking(status: JobStatus) -> str:
    """Say how many standbys there is no other host for."""
    held = [one.standby for one in status.stages if one.standby is not None]
    lacking = sum(max(0, one.wanted - one.standbys) for one in held)
    return f", {lacking} for want of hosts" if lacking else ""


def _sink_row(found: SinkStatus) -> list[str]:
    numbers = (found.rows, found.epoch, found.waiting)
    return [found.operator, found.identity, *map(_count, numbers)]


def _facts(status: JobStatus) -> list[tuple[str, str]]:
    from headrace.coordinator.host_state import STANDBY

    by = f" by {_process(status)}" if status.process is not None else ""
    facts = [("job", status.job), ("status", f"{status.status}{by}")]
    if status.process is not None and not status.live:
        facts.append(("not live", NO_ANSWER))
    if status.members:
        facts.append(("shared by", "; ".join(map(_member, status.members))))
    if status.standby_drivers:
        facts.append(("standby drivers", "; ".join(map(_waiting, status.standby_drivers))))
    if status.counts is None:
        return [*facts, ("problem", status.problem or "-"), ("storage", status.storage)]
    if status.bounded:
        ends = "to the ends that its inputs had at its start"
        facts.append(("bounded", f"run {status.run}, {ends}"))
    if (left := status.standbys_to_fill) and status.process is not None:
        facts.append(
            ("deployed", f"not yet: {count_text(left, 'standby')} to fill{_lacking(status)}")
        )
    facts += [
        (
            "epoch",
            f"{status.epoch:,} of {time_text(status.epoch_ms)}; kept from {status.oldest_epoch:,}",
        ),
        ("rows", _counts(status.counts)),
        ("lineage", f"{status.lineage}, generation {status.generation}"),
        ("durability", status.durability or "-"),
        ("outputs", ", ".join(status.outputs) or "-"),
        ("storage", status.storage),
    ]
    if lost := {n: c for n, c in status.counts.items() if n.startswith(STANDBY)}:
        facts.append(("hosts lost", failures_text(lost)))
    if status.placement is not None:
        facts += placement_facts(status.placement)
    facts += observed_facts(status)
    facts += [
        (
            f"standbys of {name}",
            f"have read {size_text(one.bytes)} in {seconds_text(one.ms / 1000)} of work",
        )
        for name, one in (status.standbys_followed or {}).items()
    ]
    for part in status.parts:
        done = ", ended" if part.ended else ""
        kept = f"kept from {part.oldest_epoch:,}"
        facts.append((f"part {part.part}", f"epoch {part.epoch:,}; {kept}{done}"))
    if status.rescaled_in is not None:
        facts.append(("rescaled", f"in epoch {status.rescaled_in}"))
    return facts


def _counts(counts: Mapping[str, int]) -> str:
    from headrace.coordinator.host_state import FOLLOWED, STANDBY
    from headrace.coordinator.manifest import SINK_ROWS

    others = [
        f"{number:,} {name}"
        for name, number in sorted(counts.items())
        if name != "in" and not name.startswith((SINK_ROWS, STANDBY, FOLLOWED, PLACEMENT))
    ]
    return ", ".join([f"{counts.get('in', 0):,} in", *others])


def _waiting(found: StandbyDriverStatus) -> str:
    return f"process {found.process} on {found.host}, {'warm' if found.warm else 'starting'}"


def _member(found: MemberInfo) -> str:
    drives = ", drives" if found.drives else ""
    return f"process {found.process} on {found.host} with {count_text(found.slots, 'slot')}{drives}"


def failures_text(counts: Mapping[str, int]) -> str:
    """Say what became of tasks and standbys whose hosts were lost."""
    from headrace.coordinator.host_state import ACTIVE_LOST, FAILOVER, NO_FAILOVER, STANDBY_LOST

    tasks, standbys = counts.get(ACTIVE_LOST, 0), counts.get(STANDBY_LOST, 0)
    moved, without = counts.get(FAILOVER, 0), counts.get(NO_FAILOVER, 0)
    split = f"{moved:,} to a standby, {without:,} without one"
    return f"under {count_text(tasks, 'task')} ({split}) and {count_text(standbys, 'standby')}"


def stopped_line(job: str, epoch: int | None) -> str:
    """Return what ``jobs stop`` says."""
    at = "before its first epoch" if epoch is None else f"after epoch {epoch}"
    return f"job {job}: stopped {at}, nothing is lost: run it again to continue"


def placed_line(job: str, epoch: int, what: str) -> str:
    """Return what ``jobs reset`` and ``jobs rewind`` say."""
    return f"job {job}: {what}, in epoch {epoch}; run it to continue from there"


def _name(found: InputStatus) -> str:
    same = found.operator == found.stream
    return found.operator if same else f"{found.operator} ({found.stream})"


def _offsets(offsets: Sequence[int], shown: int = 8) -> str:
    more = f" … {count_text(len(offsets), 'partition')}" if len(offsets) > shown else ""
    return " ".join(map(str, offsets[:shown])) + more


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
