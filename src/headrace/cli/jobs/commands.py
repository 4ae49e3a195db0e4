"""``headrace jobs``: look at jobs that exist, and change them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.jobs import (
    changes,
    merging,
    observed,
    past,
    restarting,
    savepoints,
    steering,
    stopping,
    versions,
)
from headrace.cli.jobs.finding import find_job, refuse_driven, tell_notice
from headrace.cli.jobs.replay import replay
from headrace.cli.jobs.why import why
from headrace.cli.options import Config, Home, JobName, Json, Set, open_home_bus, settings_of
from headrace.cli.screen import show_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.changes.requests import RescaleAnswer

app = typer.Typer(
    name="jobs", help="Look at jobs that exist, and change them.", no_args_is_help=True
)


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """List the jobs: whether they run, how far they are."""
    from headrace.cli.jobs.asking import describe_all
    from headrace.cli.jobs.text import job_json, show_jobs
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.job_list import job_names

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = describe_all(settings, job_names(settings), bus, SystemClock())
    if as_json:
        show_json(*map(job_json, found))
    elif found:
        show_jobs(found)
    else:
        typer.echo(f"no jobs in {settings.jobs_dir}; start one with: headrace run MODULE:JOB")


@app.command()
def describe(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Tell all that is known of a job."""
    from headrace.cli.jobs import asking
    from headrace.cli.jobs.text import job_json, show_job
    from headrace.clock import SystemClock

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = asking.describe(settings, job, bus, SystemClock())
    if as_json:
        show_json(job_json(found))
    else:
        show_job(found)


app.command()(why)
app.command()(replay)
app.command()(steering.top)
app.command()(past.history)
app.command(name="hot-keys")(observed.hot_keys)
app.command()(steering.pause)
app.command()(steering.resume)
app.command()(stopping.stop)
app.command()(restarting.restart)
app.command()(savepoints.savepoint)
app.command()(savepoints.savepoints)
app.command()(versions.compare)
app.command()(versions.swap)
app.command()(merging.merge)
app.command()(changes.reset)
app.command(context_settings=changes.NEGATIVE)(changes.rewind)
app.command()(changes.delete)


@app.command()
def rescale(
    job: JobName,
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
    from headrace.coordinator.changes.rescaling import concerns, wanted_counts
    from headrace.coordinator.inspection.part_readers import other_parts
    from headrace.coordinator.joined import joined_state
    from headrace.coordinator.storage import DriverLock
    from headrace.errors import InvalidInputError, NotOwnerError

    clock = SystemClock()
    found = find_job(job, home, config, overrides, clock)
    states = {found.storage: found.state}
    states |= {one.root: one.state() for one in other_parts(found.settings, job, clock)}
    # What cannot be is refused before anybody is asked.
    wanted_counts(joined_state(list(states.values())), tasks, stage)
    own = [root for root, state in states.items() if concerns(state.task_counts, stage)]
    if found.storage != found.settings.jobs_dir / job:  # a driver elsewhere cannot be asked
        refuse_driven(found.settings, job, clock, elsewhere=True)
    try:
        lock = DriverLock(found.storage, job, clock)
    except NotOwnerError:
        answers = {root: _ask(root, tasks, stage, wait, clock) for root in own}
    else:
        with lock:
            answers = {
                root: _do(root, states[root].job, tasks, stage, found.settings, clock)
                for root in own
            }
    for root, answer in answers.items():
        if answer.error:
            raise InvalidInputError(answer.error, job=job)
        _told(states[root].job, states[root].task_counts, answer, as_json=as_json)


def _told(job: str, before: Mapping[str, int], answer: RescaleAnswer, *, as_json: bool) -> None:
    if as_json:
        told = {"job": job, "epoch": answer.epoch, "before": before}
        show_json({**told, "tasks": answer.counts})
        return
    for name, count in answer.counts.items():
        held = before[name]
        change = f"has {count} tasks already" if held == count else f"{held} to {count} tasks"
        typer.echo(f"stage {name}: {change}, epoch {answer.epoch}")


def _ask(root: Path, tasks: int, stage: str | None, wait_s: float, clock: Clock) -> RescaleAnswer:
    from headrace.coordinator.changes.requests import rescale_request, rescales
    from headrace.files import Files

    request = rescale_request(tasks, stage, clock)
    return rescales(root, Files(), clock).ask(request, wait_s)


def _do(
    root: Path, job: str, tasks: int, stage: str | None, settings: Settings, clock: Clock
) -> RescaleAnswer:
    from headrace.coordinator.changes.requests import RescaleAnswer
    from headrace.coordinator.changes.rescale_steps import rescale_stopped
    from headrace.coordinator.deploy import open_copier
    from headrace.files import Files

    files = Files()
    with open_home_bus(settings) as bus:
        copier = open_copier(settings, job, clock, files, tell_notice)
        state = rescale_stopped(
            root, job, tasks, stage, bus=bus, files=files, clock=clock, copier=copier
        )
    return RescaleAnswer(state.epoch, state.task_counts)
