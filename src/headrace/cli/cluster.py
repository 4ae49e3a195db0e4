"""``headrace cluster``: a Spark standalone cluster on this machine, to try things on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.draining import drain
from headrace.cli.options import Home, Json, settings_of
from headrace.cli.screen import show_facts, show_json, show_table
from headrace.cli.words import count_text
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import Settings
    from headrace.coordinator.inspection.host_views import HostView
    from headrace.testing.cluster import SparkCluster

    Jobs = dict[str, list[tuple[str, HostView]]]
    """What jobs have on hosts, by address."""

app = typer.Typer(
    name="cluster",
    help="Start a Spark cluster of hosts on this machine, kill parts of it, drain hosts of any.",
    no_args_is_help=True,
)

SPARKS_MEMORY = 1024
"""MiB that an executor asks for unless it is told otherwise."""

Host = Annotated[int, typer.Argument(metavar="HOST", help="Number of the host.", min=0)]


@app.command()
def up(
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Hosts.")] = 3,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Of each host.")] = 1,
    memory: Annotated[
        int, typer.Option("--memory", metavar="MIB", min=512, help="Of each host's executor.")
    ] = SPARKS_MEMORY,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Start a master and workers, each with an address and a disk for state of its own."""
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
        show_json(_as_object(cluster, {}))
        return
    _show(cluster, {})
    fits = "" if memory >= SPARKS_MEMORY else f" --set spark.conf.spark.executor.memory={memory}m"
    typer.echo(f"\nrun a job on it: headrace run MODULE:JOB --master {cluster.url}{fits}")
    typer.echo("lose a host: headrace cluster kill 0; end it all: headrace cluster down")


app.command()(drain)


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """Tell which hosts are up, and what jobs have on them."""
    cluster, jobs = _attached(home), _jobs_on(settings_of(home))
    if as_json:
        show_json(_as_object(cluster, jobs))
    else:
        _show(cluster, jobs)


@app.command()
def kill(host: Host, as_json: Json = False, home: Home = None) -> None:
    """Lose a host: end its worker and all that runs on it, without warning; its disk stays."""
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
    """Bring a host back that was killed, with what its disk holds."""
    cluster = _attached(home)
    _check_host(cluster, host)
    if cluster.of(f"worker-{host}"):
        raise InvalidInputError(f"host {host} is up; lose it with headrace cluster kill {host}")
    cluster.start_worker(host)
    cluster.await_worker(host)
    if as_json:
        show_json({"host": host, "address": cluster.address(host)})
    else:
        typer.echo(f"host {host} is up at {cluster.address(host)}")


@app.command()
def down(as_json: Json = False, home: Home = None) -> None:
    """End the cluster; the disks of its hosts stay, and a new cluster finds them."""
    cluster = _attached(home)
    count = len(cluster.processes())
    cluster.stop()
    if as_json:
        show_json({"killed": count})
    else:
        typer.echo(f"the cluster is down; {count} processes ended")


def _attached(home: Path | None) -> SparkCluster:
    from headrace.testing.cluster import SparkCluster

    return SparkCluster.attach(settings_of(home).home / "cluster")


def _check_host(cluster: SparkCluster, host: int) -> None:
    if host >= cluster.workers:
        raise InvalidInputError(f"no host {host}; the cluster has hosts 0 to {cluster.workers - 1}")


def _jobs_on(settings: Settings) -> Jobs:
    """Return what running jobs have on each host, by its address."""
    from headrace.cli.options import open_home_bus
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.host_views import host_views
    from headrace.coordinator.inspection.job_list import job_names, view_job

    found: Jobs = {}
    with open_home_bus(settings) as bus:
        views = [view_job(settings, name, bus, SystemClock()) for name in job_names(settings)]
    for view in views:
        if view.driver is not None and view.state is not None:
            for host in host_views(view.state):
                found.setdefault(host.address, []).append((view.job, host))
    return found


def _as_object(cluster: SparkCluster, jobs: Jobs) -> dict[str, Any]:
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
    found = _as_object(cluster, jobs)
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
