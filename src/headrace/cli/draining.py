"""``headrace cluster drain``: have a host be empty of all jobs, or use it again."""

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
    from headrace.coordinator.hosts.everywhere import Drained, DrainedHosts
    from headrace.coordinator.hosts.record import Hosts, HostState
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
    answers: bool = True


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

    It holds for all jobs of this home, for those that begin later, too, until --undo.
    """
    from headrace.clock import SystemClock

    settings, clock = settings_of(home), SystemClock()
    named = _named(settings, host)
    if job is None:
        found, asked = _for_all(settings, named, clock, undo=undo)
    else:
        found, asked = None, [_ask(settings, _view(settings, job, clock), named, clock, undo=undo)]
    if not undo:
        _await_empty([one for one in asked if one.runs], wait, clock, quiet=as_json)
    for one in asked:
        view = _view_of(one)
        if as_json:
            show_json(_as_object(one, view))
        else:
            typer.echo(_line(one, view, undo=undo))
    if found is not None:
        _tell_of_all(found, asked, undo=undo, as_json=as_json)


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


def _view(settings: Settings, job: str, clock: Clock) -> JobView:
    from headrace.coordinator.inspection.job_list import view_job

    with open_home_bus(settings) as bus:
        return view_job(settings, job, bus, clock)


def _views(settings: Settings, clock: Clock) -> list[JobView]:
    """Return all jobs that can be read."""
    from headrace.coordinator.inspection.job_list import job_names, view_job

    with open_home_bus(settings) as bus:
        views = [view_job(settings, name, bus, clock) for name in job_names(settings)]
    return [view for view in views if view.state is not None]


def _for_all(
    settings: Settings, named: str, clock: Clock, *, undo: bool
) -> tuple[Drained, list[_Asked]]:
    """Note beside the jobs that all are to leave a host, or not any more, and ask those that run.

    Returns:
        The host, and the jobs that were asked.
    """
    from headrace.coordinator.hosts.asking import concerned
    from headrace.coordinator.hosts.everywhere import DrainedHosts
    from headrace.files import Files

    note = DrainedHosts(settings.jobs_dir, Files())
    views = _views(settings, clock)
    hosts = {name: one for view in views for name, one in _hosts_of(view).items()}
    found = _meant(settings, hosts, note, named, clock)
    runs = [
        view
        for view in views
        if view.driver is not None and any(found.means(*one) for one in _hosts_of(view).items())
    ]
    for view in () if undo else runs:  # one that cannot do without it refuses for all
        assert view.state is not None
        concerned({view.storage: view.state}, named, undo=False)
    if undo:
        for one in note.read():
            if one == found or one.means(found.host, _held(hosts, found)):
                note.remove(one)
    else:
        note.add(found, clock)
    asked = [_ask(settings, view, named, clock, undo=undo, everywhere=True) for view in runs]
    return found, asked


def _hosts_of(view: JobView) -> Hosts:
    return {} if view.state is None else view.state.hosts


def _held(hosts: Hosts, found: Drained) -> HostState:
    from headrace.coordinator.hosts.record import HostState

    return hosts.get(found.host, HostState(found.address))


def _meant(
    settings: Settings, hosts: Hosts, note: DrainedHosts, named: str, clock: Clock
) -> Drained:
    """Return the host that is named: one of a job, of those drained, or of the cluster here."""
    from headrace.coordinator.hosts.draining import find_host
    from headrace.coordinator.hosts.everywhere import Drained
    from headrace.errors import InvalidInputError

    try:
        host = find_host(hosts, named)
    except InvalidInputError:
        for one in note.read():
            if named in (one.host, one.address):
                return one
        if named in _cluster_addresses(settings):
            return Drained("", named, clock.now_ms())
        raise
    return Drained(host, named if named == hosts[host].address else "", clock.now_ms())


def _cluster_addresses(settings: Settings) -> list[str]:
    from headrace.errors import InvalidInputError
    from headrace.testing.cluster import SparkCluster

    try:
        cluster = SparkCluster.attach(settings.home / "cluster")
    except InvalidInputError:
        return []
    return [cluster.address(number) for number in range(cluster.workers)]


def _tell_of_all(found: Drained, asked: list[_Asked], *, undo: bool, as_json: bool) -> None:
    name = found.address or found.host
    if as_json:
        if not asked:
            status = "up" if undo else "drained"
            show_json({"job": None, "host": found.host, "address": found.address, "status": status})
    elif undo:
        typer.echo(f"all other jobs of this home use host {name} again when they next run")
    else:
        typer.echo(
            f"jobs of this home that begin later place nothing on host {name}, either, until --undo"
        )


def _ask(
    settings: Settings,
    view: JobView,
    named: str,
    clock: Clock,
    *,
    undo: bool,
    everywhere: bool = False,
) -> _Asked:
    from headrace.cli.jobs.finding import tell_notice
    from headrace.coordinator.hosts.asking import ask_drain, concerned
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.errors import UnavailableError
    from headrace.files import Files

    readers = part_readers(settings, view.job, clock)
    states = {reader.root: reader.state() for reader in readers}
    if view.driver is None:
        host = _mark(settings, states, view.job, named, clock, undo=undo)
        return _Asked(view.job, readers, host, runs=False)
    try:
        host = ask_drain(states, named, Files(), clock, ANSWER_S, undo=undo, everywhere=everywhere)
    except UnavailableError:
        if not everywhere:
            raise
        tell_notice(f"job {view.job} does not answer now; it follows what is noted, in its time")
        found = concerned(states, named, undo=undo, everywhere=True)
        host = next(name for _, name in found.values())
        return _Asked(view.job, readers, host, runs=True, answers=False)
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
    if undo and not one.answers:
        return f"{one.job}: host {name} is used again as soon as its driver goes on"
    if undo:
        return f"{one.job}: host {name} is used again, {count_text(view.tasks, 'task')} so far"
    if view.is_empty:
        return f"{one.job}: host {name} is empty, and nothing is placed there until --undo"
    return f"{one.job}: host {name} is marked; it has {_left(view)}, which move when the job runs"
