"""``headrace jobs history`` and ``replay``: a job over time, and an epoch as a file for tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Config, Home, JobName, Json, Set, open_home_bus, settings_of
from headrace.cli.output import (
    count_text,
    seconds_text,
    show_facts,
    show_json,
    show_table,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from headrace.config import Settings
    from headrace.control.history import InputHistory, JobHistory, StageHistory
    from headrace.control.job_status import EventStatus
    from headrace.coordinator.inspection.job_reader import JobReader
    from headrace.coordinator.operations.recording_archive import Recording


MOST_EVENTS = 1_000_000
BARS = "▁▂▃▄▅▆▇█"
TITLES = ("rows", "rows/s", "out", "epochs", "ms each", "lag", "state")
INPUT_TITLES = ("rows", "rows/s", "lag now", "lag at most")
STAGE_TITLES = ("watermark (UTC)", "behind now", "behind at most")


def history(
    job: JobName,
    last: Annotated[
        str,
        typer.Option("--last", metavar="DURATION", help="How far back, such as 6h; at most 7d."),
    ] = "1h",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Start time, such as 2013-01-31T05:15.",
            show_default=False,
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", min=1, max=1000, help="Lines to print.")] = 12,
    events: Annotated[
        bool, typer.Option("--events", help="Show events of drivers, hosts and workers.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Show rows, lag and state of a job over time, whether it runs or not.

    Shows rows in and out, rows a second, epochs, lag (the highest of each interval) and state.
    Intervals without a driver are left out. Below, it shows the rows and lag of each input, and
    for each stage its watermark and how far that was behind the clock. With `--events`, it shows
    the events of drivers, hosts and workers instead.

    The job stores the samples in `history` in its folder while `headrace run` runs it, also when
    it is paused or idle. They are kept for seven days. A running driver adds the current values.

    Guide: observation.

    For example:

        headrace jobs history shop --last 6h --events
    """
    from headrace.cli.arguments import read_time
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.job_reader import part_readers
    from headrace.durations import duration_ms

    settings, clock = settings_of(home), SystemClock()
    now = clock.now_ms()
    begin = max(0, now - duration_ms(last, "--last"))
    if since is not None:
        begin = max(0, read_time(since, "--since", "a time"))
    part_readers(settings, job)  # so that a job that is not there is reported
    if events:
        _show_events(settings, job, begin, as_json=as_json)
        return
    found = _samples(settings, job, begin, max(now, begin + 1), lines)
    if as_json:
        show_json({"job": job, **found.to_json()})
    elif found.stretches:
        _show_history(found)
    else:
        span = f"in the last {last}" if since is None else f"since {since}"
        typer.echo(f"{job} was not running {span}; --last 7d looks further back")
    if found.left_out and not as_json:
        typer.echo(f"{count_text(found.left_out, 'sample')} could not be read: left out", err=True)


def _samples(settings: Settings, job: str, begin_ms: int, end_ms: int, lines: int) -> JobHistory:
    """Return what the driver reports, up to this moment, or else the samples that are kept."""
    from headrace.control.client import asked
    from headrace.control.history import JobHistory, SampleLog, job_history
    from headrace.coordinator.job_storage import newest_storage

    wanted = f"begin_ms={begin_ms}&end_ms={end_ms}&lines={lines}"
    answer = asked(settings, job, f"/v1/history?{wanted}", JobHistory)
    if answer is not None:
        return answer
    log = SampleLog(newest_storage(settings, job))
    found = job_history(log.read(begin_ms), begin_ms, end_ms, lines)
    return replace(found, left_out=log.left_out)


def _events(settings: Settings, job: str, begin_ms: int) -> tuple[list[EventStatus], bool]:
    """Return what happened, and whether the driver reported it."""
    from headrace.control.client import asked
    from headrace.control.job_status import EventStatus
    from headrace.coordinator.job_events import job_events
    from headrace.coordinator.job_parts import part_folders
    from headrace.coordinator.job_storage import newest_storage

    path = f"/v1/events?last={MOST_EVENTS}&since_ms={begin_ms}"
    answer = asked(settings, job, path, list[EventStatus])
    if answer is not None:
        return answer, True
    found = job_events([newest_storage(settings, job), *part_folders(settings, job)], begin_ms)
    return list(map(EventStatus.of, found)), False


def _show_events(settings: Settings, job: str, begin_ms: int, *, as_json: bool) -> None:
    from headrace.cli.jobs.inspect import show_events

    found, live = _events(settings, job, begin_ms)
    if as_json:
        show_json({"job": job, "live": live, "events": list(map(asdict, found))})
    elif found:
        show_events(found)
    else:
        typer.echo(f"nothing happened to {job} in that time; --last 7d looks further back")


def _show_history(found: JobHistory) -> None:
    rows = [
        [
            time_text(one.begin_ms, with_ms=False),
            f"{one.rows:,}",
            _rate(one.rows, one.seconds),
            f"{one.output_rows:,}",
            f"{one.epochs:,}",
            f"{one.busy_ms / one.epochs:.0f}" if one.epochs else "-",
            f"{one.lag:,}",
            size_text(one.state_bytes),
        ]
        for one in found.stretches
    ]
    show_table(("from (UTC)", *TITLES), rows, right=TITLES)
    typer.echo()
    typer.echo(f"rows  {bars(one.rows for one in found.stretches)}")
    typer.echo(f"lag   {bars(one.lag for one in found.stretches)}")
    _show_part("input", INPUT_TITLES, [_input_row(one) for one in found.inputs], "lag over time")
    _show_part("stage", STAGE_TITLES, [_stage_row(one) for one in found.stages], "behind over time")


def _show_part(kind: str, titles: Sequence[str], rows: Sequence[Sequence[str]], graph: str) -> None:
    if rows:
        typer.echo()
        show_table((kind, *titles, graph), rows, right=titles, spare=(graph,))


def _input_row(one: InputHistory) -> list[str]:
    rows, seconds = sum(s.rows for s in one.stretches), sum(s.seconds for s in one.stretches)
    lags = [stretch.lag for stretch in one.stretches]
    return [
        one.name,
        f"{rows:,}",
        _rate(rows, seconds),
        f"{one.lag:,}",
        f"{max(lags):,}",
        bars(lags),
    ]


def _stage_row(one: StageHistory) -> list[str]:
    behind = [stretch.behind_ms for stretch in one.stretches]
    known = [ms for ms in behind if ms is not None]
    return [
        one.name,
        time_text(one.watermark_ms, with_ms=False),
        "-" if one.behind_ms is None else seconds_text(one.behind_ms / 1000),
        seconds_text(max(known) / 1000) if known else "-",
        bars(max(0, ms or 0) for ms in behind),
    ]


def _rate(rows: int, seconds: float) -> str:
    return f"{rows / seconds:,.0f}" if seconds else "-"


def bars(values: Iterable[float]) -> str:
    """Draw values as bars from 0 to the largest."""
    held = list(values)
    most = max(held, default=0) or 1
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in held)


Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        metavar="N",
        min=1,
        help="Epoch to record. Default: the one after the last committed epoch.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        dir_okay=False,
        help="File to write. Default: JOB-N.replay in the working directory.",
        show_default=False,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="STAGE/NUMBER",
        help="Task of a keyed or source stage to record. Default: all.",
        show_default=False,
    ),
]


def replay(
    job: JobName,
    epoch: Epoch = None,
    out: Out = None,
    tasks: Tasks = None,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Record an epoch with its rows and state in a file, for a test that runs it again.

    Works while the job runs and after it has stopped. Needs neither its code nor Spark. The file
    contains rows and state as they are: protect it as you protect them.

    Without `--epoch`, records the epoch after the last committed one. If the job failed in that
    epoch, it is recorded with the rows that it had then. Otherwise it is the epoch that would run
    next. A committed epoch can be recorded as long as manifests, files of state
    (`state.keep_epochs`) and streams still have what it needs.

    `--task` keeps only the given tasks of keyed stages with their state. All tasks of source
    stages run unless you name some, because a keyed task gets rows from all of them.

    Epochs that cannot run again are refused, with the reason: rows that were removed or compacted
    since, state that is no longer kept, epochs that changed the job instead of running it (reset,
    rewind, rescale, the end of a bounded run), and tasks with remote stores.

    Guide: testing.

    For example:

        headrace jobs replay shop --epoch 41 -o failing.replay
    """
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.job_reader import part_readers
    from headrace.coordinator.operations.recorder import Recorder
    from headrace.plan.stages import job_of
    from headrace.sources.bounded_bus import saved_inputs

    settings, clock = settings_of(home, config, overrides), SystemClock()
    parts = part_readers(settings, job_of(job))
    reader = _part(parts, job)
    with open_home_bus(settings) as bus:
        recorder = Recorder(reader, saved_inputs(bus, reader.root), settings, clock, parts)
        number = reader.state().epoch + 1 if epoch is None else epoch
        path = out or Path(f"{reader.job}-{number}.replay")
        recording, size = recorder.record(path, number, tasks or ())
    if as_json:
        show_json(_as_json(recording, path, size))
        return
    _show_recording(recording, path, size)


def _part(readers: Sequence[JobReader], name: str) -> JobReader:
    """Return the reader of the part that is named; of the one that failed where the job is.

    Raises:
        InvalidInputError: there are several, or none of that name.
    """
    from headrace.coordinator.epoch_records import load_failed
    from headrace.errors import InvalidInputError
    from headrace.files import Files

    found = [reader for reader in readers if reader.job == name]
    if len(readers) == 1 and found:
        return found[0]
    files = Files(sync=False)
    failed = [r for r in readers if load_failed(r.root, r.state(), files) is not None]
    if "@" in name and found:
        return found[0]
    if "@" not in name and len(failed) == 1:
        return failed[0]
    names = ", ".join(reader.job for reader in readers)
    raise InvalidInputError(
        f"job {name!r} has several parts, each with epochs of its own; name one of {names}"
    )


def _as_json(recording: Recording, path: Path, size: int) -> dict[str, Any]:
    failure = recording.failure
    return {
        "job": recording.job,
        "epoch": recording.epoch,
        "kind": recording.kind,
        "error": failure and {"code": failure.code, "message": failure.message},
        "file": str(path),
        "bytes": size,
        "rows": recording.rows,
        "streams": {s.name: sum(p.rows for p in s.parts) for s in recording.streams if s.parts},
        "tasks": sorted(recording.state.tasks),
        "state_bytes": _state_bytes(recording),
        "unlogged": list(recording.unlogged),
    }


def _state_bytes(recording: Recording) -> int:
    members = recording.members.items()
    return sum(member.size for name, member in members if name.startswith("state/"))


def _show_recording(recording: Recording, path: Path, size: int) -> None:
    words = {
        "committed": "as it was committed",
        "failed": "which failed",
        "next": "which has not run yet",
    }
    read = [
        f"{count_text(sum(part.rows for part in stream.parts), 'row')} of {stream.name}"
        for stream in recording.streams
        if stream.parts
    ]
    failure, plan = recording.failure, recording.plan
    tasks = count_text(len(recording.state.tasks), "task")
    facts = [
        ("epoch", f"{recording.epoch:,} of {recording.job}, {words[recording.kind]}"),
        ("wall clock", time_text(plan.time_ms)),
        ("inputs", ", ".join(read) or "none"),
        ("state", f"{tasks}, {size_text(_state_bytes(recording))} of files"),
        ("file", f"{path}, {size_text(size)}"),
    ]
    if failure is not None:
        facts.insert(1, ("error", f"{failure.code}: {failure.message}"))
    if recording.unlogged:
        facts.append(("not in it", f"{', '.join(recording.unlogged)}: not logged, begins empty"))
    show_facts(facts)
    typer.echo()
    typer.echo("next: run it again in a test, with the job as it is now:")
    typer.echo()
    typer.echo(_stub(recording, path))


def _stub(recording: Recording, path: Path) -> str:
    from headrace.plan.stages import job_of

    name = job_of(recording.job)
    job = re.sub(r"\W", "_", name)
    lines = [
        "from headrace.testing import TestDriver",
        f"from {job} import {job}  # the module and the variable of the job",
        "",
        "",
        f"def test_epoch_{recording.epoch}():",
        f'    with TestDriver.replay({job}, "{path}") as driver:',
    ]
    if recording.failure is not None:
        lines.append(f"        driver.advance()  # raised {recording.failure.kind}")
    else:
        lines.append("        driver.advance()")
    outputs = [stream.name for stream in recording.streams if not stream.parts]
    shown = f'driver.output("{outputs[0]}")' if outputs else "driver.counts"
    return "\n".join([*lines, f"        assert {shown} == ..."])
