"""``headrace cluster``: a Spark standalone cluster on this machine, and draining of hosts.

``drain`` moves all tasks and standbys of all jobs away from a host, on any cluster.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.cli.options import Home, Json, open_home_bus, settings_of
from headrace.cli.output import count_text, show_answer, show_facts, show_json, show_table
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import Settings
    from headrace.coordinator.commands import Drain
    from headrace.coordinator.drain import CordonedHost, CordonedHosts
    from headrace.coordinator.host_state import Hosts, HostState
    from headrace.coordinator.inspection.job_reader import JobReader
    from headrace.coordinator.manifest import JobState


ANSWER_S = 60.0
POLL_S = 0.5

HostName = Annotated[
    str,
    typer.Argument(
        metavar="HOST",
        help="Address, identity as in `jobs describe --json`, or number in this machine's cluster.",
    ),
]


class _Job(NamedTuple):
    """A job, the state of all its parts together, and whether a driver has it."""

    name: str
    readers: list[JobReader]
    state: JobState
    runs: bool


class _DrainRequest(NamedTuple):
    """A job that was asked, and the identity of the host."""

    job: str
    readers: list[JobReader]
    host: str
    runs: bool
    answers: bool = True


def drain(
    host: HostName,
    undo: Annotated[bool, typer.Option("--undo", help="Use the host again.")] = False,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Only this job, which need not run."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait until the host is empty."
        ),
    ] = 600.0,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Move all tasks and standbys away from a host, and place nothing there.

    This applies to all jobs of this home, also to jobs created later, until `--undo`; on any
    cluster, not only on one of this machine. Waits until running jobs have left the host; the mark
    stays when `--wait` is over.

    Guide: placement.

    For example:

        headrace cluster drain 127.0.0.3
    """
    settings = settings_of(home)
    draining = _Draining(settings, _named(settings, host), undo=undo)
    if job is None:
        found, asked = draining.of_all_jobs()
    else:
        found, asked = None, [draining.of_job(job)]
    if not undo:
        draining.await_empty([one for one in asked if one.runs], wait, quiet=as_json)
    for one in asked:
        view = _view_of(one)
        if as_json:
            show_json(_drain_object(one, view))
        else:
            typer.echo(_line(one, view, undo=undo))
    if found is not None:
        _show_drained_hosts(found, asked, undo=undo, as_json=as_json)


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


def _job(settings: Settings, name: str) -> _Job:
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.job_reader import part_readers
    from headrace.coordinator.job_parts import group_state
    from headrace.coordinator.leader_lease import driver_of

    readers = part_readers(settings, name)
    driver = driver_of(readers[0].root, settings.jobs_dir / name, name, SystemClock())
    state = group_state([reader.state() for reader in readers])
    return _Job(name, readers, state, runs=driver is not None)


def _jobs(settings: Settings) -> Iterator[_Job]:
    """Yield all jobs that can be read."""
    from headrace.coordinator.job_parts import job_names
    from headrace.errors import CorruptDataError

    for name in job_names(settings):
        with suppress(CorruptDataError):
            yield _job(settings, name)


class _Draining:
    """Has hosts emptied, or used again.

    Args:
        settings: of the home.
        named: the host, by its identity or address.
        undo: use it again.
    """

    def __init__(self, settings: Settings, named: str, *, undo: bool) -> None:
        from headrace.clock import SystemClock

        self._settings, self._named, self._undo = settings, named, undo
        self._clock = SystemClock()

    def of_job(self, name: str) -> _DrainRequest:
        """Ask one job, which need not run."""
        return self._ask(_job(self._settings, name))

    def of_all_jobs(self) -> tuple[CordonedHost, list[_DrainRequest]]:
        """Note beside the jobs that all are to leave a host, or not any more; ask those that run.

        Returns:
            The host, and the jobs that were asked.
        """
        from headrace.coordinator.drain import CordonedHosts, parts_with_host
        from headrace.files import Files

        note = CordonedHosts(self._settings.jobs_dir, Files())
        jobs = list(_jobs(self._settings))
        hosts = {name: one for job in jobs for name, one in job.state.hosts.items()}
        found = self._resolved(hosts, note)
        runs = [
            job
            for job in jobs
            if job.runs and any(found.means(*one) for one in job.state.hosts.items())
        ]
        for job in () if self._undo else runs:  # one that cannot do without it refuses for all
            parts_with_host({job.readers[0].root: job.state}, self._named, undo=False)
        if self._undo:
            for one in note.read():
                if one == found or one.means(found.host, _held(hosts, found)):
                    note.remove(one)
        else:
            note.add(found)
        return found, [self._ask(job, cordon=True) for job in runs]

    def _resolved(self, hosts: Hosts, note: CordonedHosts) -> CordonedHost:
        """Return the host: one of a job, of those drained, or of the cluster here."""
        from headrace.coordinator.drain import CordonedHost, find_host
        from headrace.errors import InvalidInputError

        named, now_ms = self._named, self._clock.now_ms()
        try:
            host = find_host(hosts, named)
        except InvalidInputError:
            for one in note.read():
                if named in (one.host, one.address):
                    return one
            if named in _cluster_addresses(self._settings):
                return CordonedHost("", named, now_ms)
            raise
        return CordonedHost(host, named if named == hosts[host].address else "", now_ms)

    def _ask(self, job: _Job, *, cordon: bool = False) -> _DrainRequest:
        from headrace.cli.jobs.access import show_notice
        from headrace.control.job_handle import RunningHandle
        from headrace.coordinator.commands import Drain
        from headrace.coordinator.drain import parts_with_host
        from headrace.errors import UnavailableError
        from headrace.files import Files

        named, undo = self._named, self._undo
        command = Drain(named, undo, cordon)
        states = {reader.root: reader.state() for reader in job.readers}
        if not job.runs:
            host = self._mark(states, job.name, command)
            return _DrainRequest(job.name, job.readers, host, runs=False)
        try:
            running = RunningHandle(self._settings, job.name, states, Files(), self._clock)
            host = running.drain(command, ANSWER_S)
        except UnavailableError:
            if not cordon:
                raise
            show_notice(
                f"job {job.name} does not answer now; it follows what is noted, in its time"
            )
            found = parts_with_host(states, named, undo=undo, cordon=True)
            host = next(name for _, name in found.values())
            return _DrainRequest(job.name, job.readers, host, runs=True, answers=False)
        return _DrainRequest(job.name, job.readers, host, runs=True)

    def _mark(self, states: dict[Path, JobState], job: str, command: Drain) -> str:
        """Set the mark in the manifests of a job that does not run."""
        from headrace.cli.jobs.access import show_notice
        from headrace.control.job_handle import stopped_job
        from headrace.coordinator.job_storage import DriverLock, JobContext
        from headrace.files import Files

        lock = DriverLock(next(iter(states)), job, self._clock)
        with lock, open_home_bus(self._settings) as bus:
            context = JobContext(self._settings, job, bus, Files(), self._clock, show_notice)
            return stopped_job(context, states).drain(command, 0)

    def await_empty(self, asked: list[_DrainRequest], wait_s: float, *, quiet: bool) -> None:
        """Wait until no job has anything on the host, and show how far it is when that changes."""
        from headrace.clock import Deadline
        from headrace.errors import UnavailableError

        deadline, said = Deadline(self._clock, wait_s), ""
        while busy := [(one, view) for one in asked if not (view := _view_of(one)).is_empty]:
            left = "; ".join(f"{one.job}: {_left(view)}" for one, view in busy)
            if left != said and not quiet:
                typer.echo(f"{left} to move", err=True)
            said = left
            if deadline.expired:
                raise UnavailableError(
                    f"after {wait_s:g} s the host still has {left}; the mark stays and tasks "
                    "continue moving: wait with --wait, look with headrace jobs describe, or take "
                    "it back with --undo. A job that is paused moves nothing"
                )
            self._clock.sleep(POLL_S)


def _held(hosts: Hosts, found: CordonedHost) -> HostState:
    from headrace.coordinator.host_state import HostState

    return hosts.get(found.host, HostState(found.address))


def _cluster_addresses(settings: Settings) -> list[str]:
    from headrace.errors import InvalidInputError
    from headrace.testing.cluster import SparkCluster

    try:
        cluster = SparkCluster.attach(settings.home / "cluster")
    except InvalidInputError:
        return []
    return [cluster.address(number) for number in range(cluster.workers)]


def _show_drained_hosts(
    found: CordonedHost, asked: list[_DrainRequest], *, undo: bool, as_json: bool
) -> None:
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


def _left(view: HostStatus) -> str:
    return f"{count_text(view.tasks, 'task')} and {count_text(view.standbys, 'standby')}"


def _view_of(one: _DrainRequest) -> HostStatus:
    from headrace.control.job_status import placement_status
    from headrace.coordinator.job_parts import group_state

    state = group_state([reader.state() for reader in one.readers])
    return next(host for host in placement_status(state).hosts if host.host == one.host)


def _drain_object(one: _DrainRequest, view: HostStatus) -> dict[str, Any]:
    return {
        "job": one.job,
        "host": view.host,
        "address": view.address,
        "status": view.status,
        "tasks": view.tasks,
        "standbys": view.standbys,
    }


def _line(one: _DrainRequest, view: HostStatus, *, undo: bool) -> str:
    name = view.address or view.host
    if undo and not one.answers:
        return f"{one.job}: host {name} is used again as soon as its driver continues"
    if undo:
        return f"{one.job}: host {name} is used again, {count_text(view.tasks, 'task')} so far"
    if view.is_empty:
        return f"{one.job}: host {name} is empty, and nothing is placed there until --undo"
    return f"{one.job}: host {name} is marked; it has {_left(view)}, which move when the job runs"


if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import Settings
    from headrace.control.job_status import HostStatus
    from headrace.testing.cluster import SparkCluster

    Jobs = dict[str, list[tuple[str, HostStatus]]]
    """What jobs have on hosts, by address."""

app = typer.Typer(
    name="cluster",
    help="Run a Spark cluster on this machine and kill parts of it; drain hosts of any cluster.",
    no_args_is_help=True,
)

SPARKS_MEMORY = 1024
"""MiB that an executor asks for by default."""

Host = Annotated[int, typer.Argument(metavar="HOST", help="Number of the host.", min=0)]


@app.command()
def up(
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Number of hosts.")] = 3,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores of each host.")] = 1,
    memory: Annotated[
        int,
        typer.Option(
            "--memory", metavar="MIB", min=512, help="Memory of each host's executor, MiB."
        ),
    ] = SPARKS_MEMORY,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Start a Spark cluster of several hosts on this machine, to test the loss of hosts.

    Prints the master's address for `headrace run --master`. Each host has its own address
    (127.0.0.2 and so on) and, in its own mount namespace, its own disk as `state.dir`. If the
    system does not allow namespaces, `HEADRACE_STATE_DIR` names that disk for its processes. Linux
    only.

    For example:

        headrace cluster up --workers 3 --cores 2
    """
    from headrace.testing.cluster import SparkCluster

    settings = settings_of(home)
    folder = settings.home / "cluster"
    cluster = SparkCluster(folder, workers, memory, cores, settings.state_dir)
    if cluster.processes():
        raise InvalidInputError(
            f"a cluster runs in {folder} already; look at it with headrace cluster ls, or end it "
            "with headrace cluster down"
        )
    try:
        cluster.start()
    except BaseException:
        cluster.stop()
        raise
    if as_json:
        show_json(_cluster_object(cluster, {}))
        return
    _show(cluster, {})
    fits = "" if memory >= SPARKS_MEMORY else f" --set spark.conf.spark.executor.memory={memory}m"
    typer.echo(f"\nrun a job on it: headrace run MODULE:JOB --master {cluster.url}{fits}")
    typer.echo("lose a host: headrace cluster kill 0; end it all: headrace cluster down")


app.command()(drain)


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """Show the master and the hosts of the cluster, and what jobs have on them.

    Shows for each host its address, whether it is up, its executors, what running jobs have on it,
    whether they drain it, and the disk that its jobs see as `state.dir`.

    For example:

        headrace cluster ls
    """
    cluster, jobs = _attached(home), _jobs_on(settings_of(home))
    if as_json:
        show_json(_cluster_object(cluster, jobs))
    else:
        _show(cluster, jobs)


@app.command()
def kill(host: Host, as_json: Json = False, home: Home = None) -> None:
    """Kill a host's worker and everything that runs on it; its disk stays.

    This is like the loss of the host, without warning.

    For example:

        headrace cluster kill 2
    """
    cluster = _attached(home)
    _check_host(cluster, host)
    count = len(cluster.of(f"worker-{host}"))
    if not count:
        raise InvalidInputError(f"host {host} is down already; bring it back with cluster start")
    cluster.kill_worker(host)
    if as_json:
        show_json({"host": host, "killed": count})
    else:
        typer.echo(f"host {host}: {count} processes killed")
        typer.echo(f"bring it back: headrace cluster start {host}")


@app.command()
def start(host: Host, as_json: Json = False, home: Home = None) -> None:
    """Start a killed host again, with its disk.

    For example:

        headrace cluster start 2
    """
    cluster = _attached(home)
    _check_host(cluster, host)
    if cluster.of(f"worker-{host}"):
        raise InvalidInputError(f"host {host} is up; lose it with headrace cluster kill {host}")
    cluster.start_worker(host)
    cluster.await_worker(host)
    address = cluster.address(host)
    facts = {"host": host, "address": address}
    show_answer(facts, f"host {host} is up at {address}", as_json=as_json)


@app.command()
def down(as_json: Json = False, home: Home = None) -> None:
    """Kill all processes of the cluster.

    The disks stay, and the next cluster in this home uses them.

    For example:

        headrace cluster down
    """
    cluster = _attached(home)
    count = len(cluster.processes())
    cluster.stop()
    line = f"the cluster is down; {count} processes ended"
    show_answer({"killed": count}, line, as_json=as_json)


def _attached(home: Path | None) -> SparkCluster:
    from headrace.testing.cluster import SparkCluster

    return SparkCluster.attach(settings_of(home).home / "cluster")


def _check_host(cluster: SparkCluster, host: int) -> None:
    if host >= cluster.workers:
        raise InvalidInputError(f"no host {host}; the cluster has hosts 0 to {cluster.workers - 1}")


def _jobs_on(settings: Settings) -> Jobs:
    """Return what running jobs have on each host, by its address."""
    from headrace.control.job_status import placement_status

    found: Jobs = {}
    for job in _jobs(settings):
        if job.runs:
            for host in placement_status(job.state).hosts:
                found.setdefault(host.address, []).append((job.name, host))
    return found


def _cluster_object(cluster: SparkCluster, jobs: Jobs) -> dict[str, Any]:
    return {
        "master": cluster.url,
        "is_up": bool(cluster.of("master")),
        "folder": str(cluster.home),
        "hosts": [
            {
                "host": number,
                "address": cluster.address(number),
                "is_up": bool(cluster.of(f"worker-{number}")),
                "executors": len(cluster.executors(number)),
                "state": str(cluster.state_dir(number)),
                "jobs": [
                    {
                        "job": job,
                        "status": view.status,
                        "tasks": view.tasks,
                        "standbys": view.standbys,
                    }
                    for job, view in jobs.get(cluster.address(number), ())
                ],
            }
            for number in range(cluster.workers)
        ],
    }


def _show(cluster: SparkCluster, jobs: Jobs) -> None:
    found = _cluster_object(cluster, jobs)
    status = "up" if found["is_up"] else "down; end the rest with headrace cluster down"
    show_facts([("master", found["master"]), ("status", status), ("logs", found["folder"])])
    typer.echo()
    rows = [
        [
            f"{one['host']}",
            one["address"],
            "up" if one["is_up"] else "down",
            f"{one['executors']}",
            ", ".join(map(_job_text, one["jobs"])) or "-",
            one["state"],
        ]
        for one in found["hosts"]
    ]
    titles = ("host", "address", "status", "executors", "jobs", "state")
    show_table(titles, rows, right=("executors",), spare=("state",))


def _job_text(one: dict[str, Any]) -> str:
    more = "" if one["status"] in ("up", "lost") else f", {one['status']}"
    return f"{one['job']}: {count_text(one['tasks'], 'task')}{more}"
