"""``headrace jobs replay``: an epoch of a job as a file, which a unit test runs again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Config, Home, JobName, Json, Set, open_home_bus, settings_of
from headrace.cli.screen import show_facts, show_json
from headrace.cli.words import count_text, size_text, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordinator.inspection.inspection import JobReader
    from headrace.coordinator.recording.form import Recording

Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        metavar="N",
        min=1,
        help="Which. Default: the one after the last that is committed, on which a job fails.",
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
        help="Default: JOB-N.replay here.",
        show_default=False,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="STAGE/NUMBER",
        help="Only this task, and others so named.",
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
    """Record what an epoch read and the state before it, for a test that runs it again.

    The file holds rows and state as they are: keep it as you keep them.
    """
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.coordinator.recording.recorder import Recorder
    from headrace.plan.stages import job_of
    from headrace.sources.sourced import saved

    settings, clock = settings_of(home, config, overrides), SystemClock()
    parts = part_readers(settings, job_of(job), clock)
    reader = _part(parts, job)
    with open_home_bus(settings) as bus:
        recorder = Recorder(reader, saved(bus, reader.root), settings, clock, parts)
        number = reader.state().epoch + 1 if epoch is None else epoch
        path = out or Path(f"{reader.job}-{number}.replay")
        recording, size = recorder.record(path, number, tasks or ())
    if as_json:
        show_json(_as_json(recording, path, size))
        return
    _show(recording, path, size)


def _part(readers: Sequence[JobReader], name: str) -> JobReader:
    """Return the reader of the part that is named; of the one that failed where the job is.

    Raises:
        InvalidInputError: there are several, or none of that name.
    """
    from headrace.coordinator.epoch_plan import load_failed
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


def _show(recording: Recording, path: Path, size: int) -> None:
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
