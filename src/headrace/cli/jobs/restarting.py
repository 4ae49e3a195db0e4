"""``jobs restart``: new processes for the tasks of a running job, while its driver goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Home, JobName, Json, open_home_bus, settings_of
from headrace.cli.screen import show_json
from headrace.cli.words import count_text


def restart(
    job: JobName,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="One host after the other, an epoch between.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="For it to be over.")
    ] = 600.0,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """End the processes that run a job's tasks, and have new ones go on; the driver stays.

    They load libraries anew. The job's own code and its settings come with its driver: to change
    these, stop the job and run it again.
    """
    from headrace.clock import SystemClock
    from headrace.coordinator.hosts.asking import ask_restart
    from headrace.coordinator.inspection.host_views import host_views
    from headrace.coordinator.inspection.job_list import view_job
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.coordinator.joined import joined_state
    from headrace.errors import InvalidInputError
    from headrace.files import Files

    settings, clock = settings_of(home), SystemClock()
    with open_home_bus(settings) as bus:
        view = view_job(settings, job, bus, clock)
    if view.driver is None:
        raise InvalidInputError(
            f"job {job!r} does not run; its status is {view.status}, and it gets new processes "
            "when it is run"
        )
    states = {reader.root: reader.state() for reader in part_readers(settings, job, clock)}
    hosts = ask_restart(states, Files(), clock, wait, rolling=rolling)
    if as_json:
        show_json({"job": job, "hosts": hosts})
        return
    names = {one.host: one.address for one in host_views(joined_state(list(states.values())))}
    said = ", ".join(names.get(host) or host for host in hosts)
    typer.echo(f"{job} has new processes on {count_text(len(hosts), 'host')}: {said}")
