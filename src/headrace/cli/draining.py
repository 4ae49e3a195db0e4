"""``headrace cluster drain``: have a host be empty of all jobs that run, or use it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.cli.options import Home, Json, open_home_bus, settings_of
from headrace.cli.screen import show_json
from headrace.cli.words import count_text

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.inspection.host_views import HostView
    from headrace.coordinator.inspection.inspection import JobReader
    from headrace.coordinator.inspection.job_list import JobView
    from headrace.coordinator.manifest import JobState

ANSWER_S = 60.0
POLL_S = 0.5

HostName = Annotated[
    str,
    typer.Argument(
        metavar="HOST",
        help="Its address, the identity that jobs know it by, or its number in the cluster here.",
    ),
]


class _Asked(NamedTuple):
    """A job that was asked, and the identity of the host."""

    job: str
    readers: list[JobReader]
    host: str
    runs: bool


def drain(
    host: HostName,
    undo: Annotated[bool, typer.Option("--undo", help="Use it again.")] = False,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Only of this one, which need not run."),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Until it is empty.")
    ] = 600.0,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Move all tasks and standbys away from a host, and place nothing there.

    The mark stays when drivers end, and until --undo takes it away.
    """
    from headrace.clock import SystemClock

    settings, clock = settings_of(home), SystemClock()
    named = _named(settings, host)
    asked = [_ask(settings, view, named, clock, undo=undo) for view in _jobs(settings, job, clock)]
    if not undo:
        _await_empty([one for one in asked if one.runs], wait, clock, quiet=as_json)
    for one in asked:
        view = _view_of(one)
        if as_json:
            show_json(_as_object(one, view))
        else:
            typer.echo(_line(one, view, undo=undo))


def _named(settings: Settings, host: str) -> str:
    """Return the address of a host of the cluster here that is named by its number."""
    from headrace.errors import InvalidInputError
    from headrace.testing.cluster import SparkCluster

    if not host.isdecimal() or len(host) > 2:
        return host
    try:
        cluster = SparkCluster.attach(settings.home / "cluster")
    except InvalidInputError:
        return host
    return cluster.address(int(host)) if int(host) < cluster.workers else host


def _jobs(settings: Settings, job: str | None, clock: Clock) -> list[JobView]:
    """Return the job that is named, or all that run."""
    from headrace.coordinator.inspection.job_list import job_names, view_job
    from headrace.errors import InvalidInputError

    with open_home_bus(settings) as bus:
        if job is not None:
            return [view_job(settings, job, bus, clock)]
        views = [view_job(settings, name, bus, clock) for name in job_names(settings)]
    found = [view for view in views if view.driver is not None and view.state is not None]
    if not found:
        raise InvalidInputError(
            f"no job in {settings.jobs_dir} runs; name one that does not with --job, or use "
            "headrace jobs ls to see which there are"
        )
    return found


def _ask(settings: Settings, view: JobView, named: str, clock: Clock, *, undo: bool) -> _Asked:
    from headrace.coordinator.hosts.asking import ask_drain
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.files import Files

    readers = part_readers(settings, view.job, clock)
    states = {reader.root: reader.state() for reader in readers}
    if view.driver is None:
        host = _mark(settings, states, view.job, named, clock, undo=undo)
        return _Asked(view.job, readers, host, runs=False)
    host = ask_drain(states, named, Files(), clock, ANSWER_S, undo=undo)
    return _Asked(view.job, readers, host, runs=True)


def _mark(
    settings: Settings,
    states: dict[Path, JobState],
    job: str,
    named: str,
    clock: Clock,
    *,
    undo: bool,
) -> str:
    """Set the mark in the manifests of a job that does not run."""
    from headrace.cli.jobs.finding import tell_notice
    from headrace.coordinator.changes.stopped import reigning
    from headrace.coordinator.deploy import open_copier
    from headrace.coordinator.hosts.asking import concerned
    from headrace.coordinator.hosts.draining import commit_drain
    from headrace.coordinator.storage import DriverLock
    from headrace.files import Files

    files, host = Files(), ""
    first = next(iter(states))
    with DriverLock(first, job, clock), open_home_bus(settings) as bus:
        copier = open_copier(settings, job, clock, files, tell_notice)
        for root, (state, _) in concerned(states, named, undo=undo).items():
            own = copier if root == first else None
            with reigning(root, state.job, bus, files, clock, own) as (reign, publish):
                host = commit_drain(reign, named, clock, publish, undo=undo)
    return host


def _await_empty(asked: list[_Asked], wait_s: float, clock: Clock, *, quiet: bool) -> None:
    """Wait until no job has anything on the host, saying how far it is whenever that changes."""
    from headrace.clock import Deadline
    from headrace.errors import UnavailableError

    deadline, said = Deadline(clock, wait_s), ""
    while busy := [(one, view) for one in asked if not (view := _view_of(one)).is_empty]:
        left = "; ".join(f"{one.job}: {_left(view)}" for one, view in busy)
        if left != said and not quiet:
            typer.echo(f"{left} to move", err=True)
        said = left
        if deadline.expired:
            raise UnavailableError(
                f"after {wait_s:g} s the host still has {left}; the mark stays and tasks go on "
                "moving: wait with --wait, look with headrace jobs describe, or take it back with "
                "--undo. A job that is paused moves nothing"
            )
        clock.sleep(POLL_S)


def _left(view: HostView) -> str:
    return f"{count_text(view.tasks, 'task')} and {count_text(view.standbys, 'standby')}"


def _view_of(one: _Asked) -> HostView:
    from headrace.coordinator.inspection.host_views import host_views
    from headrace.coordinator.joined import joined_state

    state = joined_state([reader.state() for reader in one.readers])
    return next(view for view in host_views(state) if view.host == one.host)


def _as_object(one: _Asked, view: HostView) -> dict[str, Any]:
    return {
        "job": one.job,
        "host": view.host,
        "address": view.address,
        "status": view.status,
        "tasks": view.tasks,
        "standbys": view.standbys,
    }


def _line(one: _Asked, view: HostView, *, undo: bool) -> str:
    name = view.address or view.host
    if undo:
        return f"{one.job}: host {name} is used again, {count_text(view.tasks, 'task')} so far"
    if view.is_empty:
        return f"{one.job}: host {name} is empty, and nothing is placed there until --undo"
    return f"{one.job}: host {name} is marked; it has {_left(view)}, which move when the job runs"
