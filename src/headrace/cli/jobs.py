"""``headrace jobs``: change jobs that exist."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Config, Home, Json, Set, open_home_bus, settings_of

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.requests import RescaleAnswer

app = typer.Typer(name="jobs", help="Change jobs that exist.", no_args_is_help=True)


@app.command()
def rescale(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", show_default=False)],
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, help="Tasks of each keyed stage.", show_default=False)
    ],
    stage: Annotated[
        str | None,
        typer.Option("--stage", metavar="NAME", help="Only of this stage.", show_default=False),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="For a driver that runs.")
    ] = 60.0,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Give a job another number of tasks, while it runs or not; no state is rewritten."""
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection import JobReader
    from headrace.coordinator.places import places
    from headrace.coordinator.rescaling import wanted_counts
    from headrace.coordinator.storage import DriverLock, check_job_name
    from headrace.errors import InvalidInputError, NotOwnerError
    from headrace.files import Files

    settings, clock = settings_of(home, config, overrides), SystemClock()
    root = places(settings, check_job_name(job)).storage
    before = JobReader(root, job, Files(sync=False), clock).state()
    wanted_counts(before, tasks, stage)  # what cannot be is refused before anybody is asked
    try:
        lock = DriverLock(root, job, clock)
    except NotOwnerError:
        answer = _ask(root, tasks, stage, wait, clock)
    else:
        with lock:
            answer = _do(root, job, tasks, stage, settings, clock)
    if answer.error:
        raise InvalidInputError(answer.error, job=job)
    if as_json:
        told = {"job": job, "epoch": answer.epoch, "before": before.task_counts}
        typer.echo(json.dumps({**told, "tasks": answer.counts}))
        return
    for name, count in answer.counts.items():
        held = before.task_counts[name]
        change = f"has {count} tasks already" if held == count else f"{held} to {count} tasks"
        typer.echo(f"stage {name}: {change}, epoch {answer.epoch}")


def _ask(root: Path, tasks: int, stage: str | None, wait_s: float, clock: Clock) -> RescaleAnswer:
    from headrace.coordinator.requests import Requests, RescaleRequest
    from headrace.files import Files

    request = RescaleRequest(
        clock.new_id(), tasks, stage or "", os.getpid(), os.uname().nodename, clock.now_ms()
    )
    return Requests(root, Files(), clock).ask(request, wait_s)


def _do(
    root: Path, job: str, tasks: int, stage: str | None, settings: Settings, clock: Clock
) -> RescaleAnswer:
    from headrace.coordinator.deploy import open_copier
    from headrace.coordinator.requests import RescaleAnswer
    from headrace.coordinator.rescale_steps import rescale_stopped
    from headrace.files import Files

    files = Files()
    with open_home_bus(settings) as bus:
        copier = open_copier(settings, job, clock, files)
        state = rescale_stopped(
            root, job, tasks, stage, bus=bus, files=files, clock=clock, copier=copier
        )
    return RescaleAnswer(state.epoch, state.task_counts)
