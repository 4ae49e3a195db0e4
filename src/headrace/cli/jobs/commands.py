"""``headrace jobs``: list and describe jobs, and pause, resume, watch, restart and rescale them."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.jobs import history, inspect, reset, stop, versions
from headrace.cli.jobs.access import ANSWER_S, driver_api, newest_epochs, open_located
from headrace.cli.jobs.history import replay
from headrace.cli.jobs.inspect import why
from headrace.cli.options import Config, Home, JobName, Json, Set, Wait, open_home_bus, settings_of
from headrace.cli.output import (
    count_text,
    seconds_text,
    show_answer,
    show_json,
    show_table,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Group

    from headrace.control.client import Client
    from headrace.control.job_handle import ControlCommand, Done
    from headrace.coordinator.commands import RescaleAnswer


def restart(
    job: JobName,
    rolling: Annotated[
        bool,
        typer.Option(
            "--rolling",
            help="One host after the other, with an epoch of all tasks between. Default: "
            "all at once.",
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait until it is done."),
    ] = 600.0,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Replace the Python processes that run a job's tasks; the driver stays.

    The processes end between two epochs, and new ones continue with the stores on the same hosts.
    They load libraries again. The job's own code and its settings come with its driver: to change
    these, stop the job and run it again. What is not done when `--wait` is over, or at Ctrl-C, is
    not done at all.

    Guide: placement.

    For example:

        headrace jobs restart shop --rolling
    """
    from headrace.clock import SystemClock
    from headrace.control.job_handle import RunningHandle
    from headrace.control.job_status import job_status
    from headrace.coordinator.commands import Restart
    from headrace.coordinator.inspection.job_reader import part_readers
    from headrace.errors import InvalidInputError
    from headrace.files import Files

    settings, clock = settings_of(home), SystemClock()
    with open_home_bus(settings) as bus:
        found = job_status(settings, job, bus, clock)
    if found.process is None:
        raise InvalidInputError(
            f"job {job!r} does not run; its status is {found.status}, and it gets new processes "
            "when it is run"
        )
    states = {reader.root: reader.state() for reader in part_readers(settings, job)}
    hosts = RunningHandle(settings, job, states, Files(), clock).restart(Restart(rolling), wait)
    names = {one.host: one.address for one in found.placement.hosts} if found.placement else {}
    said = ", ".join(names.get(host) or host for host in hosts)
    line = f"{job} has new processes on {count_text(len(hosts), 'host')}: {said}"
    show_answer({"job": job, "hosts": hosts}, line, as_json=as_json)


EPOCHS = 10
TITLES = ("epoch", "rows", "rows out", "took", "of it levels", "commit", "behind", "state")


def pause(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Pause a running job after its current epoch.

    Driver, stores and Spark stay, so `resume` continues at once. You can still query, rescale and
    stop a paused job. A driver that is started again is not paused.

    Guide: control.

    For example:

        headrace jobs pause shop
    """
    from headrace.control.job_handle import PAUSE

    _command_driver(job, PAUSE, home, as_json=as_json)


def resume(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Continue a paused job.

    Guide: control.

    For example:

        headrace jobs resume shop
    """
    from headrace.control.job_handle import RESUME

    _command_driver(job, RESUME, home, as_json=as_json)


def accept_clock(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Accept the clock of the driver's host after it has jumped.

    A clock that is more than `epoch.clock_jump_s` ahead of or behind the time that has passed is
    not believed, and the alert `clock` fires. If the clock is right now, accept it. If no driver
    answers, the command accepts the clock of this host, for all processes on it that use the home.

    Guide: time.

    For example:

        headrace jobs accept-clock shop
    """
    from headrace.control.client import reachable
    from headrace.control.job_handle import ACCEPT_CLOCK
    from headrace.coordinator.epoch_clock import accept_clock as accept
    from headrace.coordinator.epoch_clock import driver_clock
    from headrace.files import Files

    settings = settings_of(home)
    client = reachable(settings, job, ANSWER_S)
    if client is not None:
        off_ms = ACCEPT_CLOCK.ask(client).was_off_ms
    else:
        storage = newest_epochs(settings, job)
        doubt = accept(driver_clock(settings), storage, Files())
        off_ms = 0 if doubt is None else doubt.off_ms
    facts = {"job": job, "was_off_ms": off_ms, "by_driver": client is not None}
    who = f"the driver of {job} believes" if client is not None else "this host believes"
    far = seconds_text(abs(off_ms) / 1000)
    was = (
        "was believed already" if not off_ms else f"was {far} {'ahead' if off_ms > 0 else 'behind'}"
    )
    show_answer(facts, f"{who} its clock, which {was}", as_json=as_json)


def _command_driver(
    job: str, command: ControlCommand[Done], home: Path | None, *, as_json: bool
) -> None:
    status = command.ask(driver_api(job, home)).status
    show_answer({"job": job, "status": status}, f"{job} is {status}", as_json=as_json)


def top(
    job: JobName,
    once: Annotated[bool, typer.Option("--once", help="Print once, and exit.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="Interval of updates.")
    ] = 1.0,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Watch a running job: its last epochs, their durations, and its lag.

    Queries the driver's API and redraws its last ten epochs: rows in and out, the duration of each
    level and of the commit, the lag. Ctrl-C ends it. Without a terminal, prints once.

    Guide: control.

    For example:

        headrace jobs top shop --every 5
    """
    client = driver_api(job, home)
    if as_json:
        show_json({**client.get("/v1/job"), "epochs": client.get(f"/v1/epochs?last={EPOCHS}")})
    elif once or not sys.stdout.isatty():
        typer.echo(_headline(client.get("/v1/job")))
        typer.echo()
        rows = [_epoch_row(one) for one in client.get(f"/v1/epochs?last={EPOCHS}")]
        show_table(TITLES, rows, right=TITLES)
    else:
        _watch(client, every)


def _headline(info: dict[str, Any]) -> str:
    at = info["epoch_ms"]
    when = "no epoch yet" if at is None else f"epoch {info['epoch']:,} of {time_text(at)}"
    lag = "" if info["lag"] is None else f", {count_text(info['lag'], 'row')} behind"
    eta = "" if info["eta_s"] is None else f", {seconds_text(info['eta_s'])} left"
    return f"{info['job']} is {info['status']}: {when}{lag}{eta}"


def _epoch_row(one: dict[str, Any]) -> list[str]:
    steps = one["steps_ms"]
    levels = [f"{took:.0f}" for name, took in steps.items() if name.startswith("level")]
    return [
        f"{one['epoch']:,}",
        f"{one['rows']:,}",
        f"{one['output_rows']:,}",
        f"{one['took_ms']:.0f} ms",
        " + ".join(levels),
        f"{steps.get('commit', 0):.0f} ms",
        f"{one['lag']:,}",
        size_text(one["state_bytes"]),
    ]


def _watch(client: Client, every: float) -> None:
    """Draw it again until Ctrl-C, or until the driver is gone."""
    from rich.live import Live

    from headrace.clock import SystemClock
    from headrace.errors import UnavailableError

    clock = SystemClock()
    with suppress(KeyboardInterrupt), Live(_drawn(client), auto_refresh=False, screen=True) as live:
        while True:
            clock.sleep(every)
            try:
                live.update(_drawn(client), refresh=True)
            except UnavailableError:
                break
    typer.echo(f"no longer watching {client.job}")


def _drawn(client: Client) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in TITLES:
        table.add_column(title, justify="right")
    for one in client.get(f"/v1/epochs?last={EPOCHS}"):
        table.add_row(*_epoch_row(one))
    return Group(Text(_headline(client.get("/v1/job")), style="bold"), Text(), table)


app = typer.Typer(name="jobs", help="Inspect, control and change jobs.", no_args_is_help=True)


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """List the jobs with status, last epoch, driver, rows read, lag and size of state.

    Queries running drivers. If a job has no driver, or its driver does not answer within two
    seconds, reads the job's files, and says so. Needs neither Spark nor the job's code. With
    `--json`, `live` shows whether a driver answered. Each line of `--json` is the object of
    `headrace jobs describe`.

    - *running*: a driver has the job; `driver` shows which
    - *paused*, *stopping*: the same, as reported by the driver
    - *stopped*: no driver; `headrace run` continues where it was
    - *ended*: a bounded run that is over
    - *reset*: emptied by `jobs reset`, and not run since
    - *damaged*: its manifests cannot be read; `describe` shows why

    For example:

        headrace jobs ls --json
    """
    from headrace.cli.jobs.access import find_statuses
    from headrace.cli.jobs.inspect import show_jobs
    from headrace.control.status_schema import status_json
    from headrace.coordinator.job_parts import job_names

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = find_statuses(settings, job_names(settings), bus)
    if as_json:
        show_json(*map(status_json, found))
    elif found:
        show_jobs(found)
    else:
        typer.echo(f"no jobs in {settings.jobs_dir}; start one with: headrace run MODULE:JOB")


@app.command()
def describe(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Show everything about a job.

    Shows status, epochs, counts, durability, outputs and storage. For each input: rows read, lag,
    watermark and next offsets. For each keyed stage: tasks and state. For each sink: committed
    rows, up to which epoch, and what still waits for it. For each host: status, slots, tasks and
    standbys. Also recent events. If several processes share the job, it shows them, and which one
    drives.

    A job in parts is one job here: epoch, lineage and status are those of the first part; rows,
    inputs, stages and lag those of all. A line is added for each part. `jobs why`, `state ls` and
    `state plan` answer for each part.

    Guide: placement, hot-standby, sinks, standalone, via-bus.

    For example:

        headrace jobs describe shop
    """
    from headrace.cli.jobs.access import find_status
    from headrace.cli.jobs.inspect import show_job
    from headrace.control.status_schema import status_json

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = find_status(settings, job, bus)
    if as_json:
        show_json(status_json(found))
    else:
        show_job(found)


app.command()(why)
app.command()(replay)
app.command()(top)
app.command()(history.history)
app.command(name="hot-keys")(inspect.hot_keys)
app.command()(pause)
app.command()(resume)
app.command(name="accept-clock")(accept_clock)
app.command()(stop.stop)
app.command()(restart)
app.command()(stop.savepoint)
app.command()(stop.savepoints)
app.command()(versions.compare)
app.command()(versions.swap)
app.command()(versions.merge)
app.command()(reset.reset)
app.command(context_settings=reset.NEGATIVE)(reset.rewind)
app.command()(reset.accept_streams)
app.command()(reset.delete)


@app.command()
def rescale(
    job: JobName,
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, help="Tasks of each keyed stage.", show_default=False)
    ],
    stage: Annotated[
        str | None,
        typer.Option("--stage", metavar="NAME", help="Only this stage.", show_default=False),
    ] = None,
    wait: Wait = 60.0,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Change the number of tasks of a job, running or stopped; no state is rewritten.

    A driver on this host does it between two epochs and continues. Otherwise the command does it
    itself, and needs the job's own `state.durability` and `state.dir`. A stage that reads an
    internal stream accepts numbers that divide its partitions.

    Guide: state, via-bus.

    For example:

        headrace jobs rescale shop --tasks 8
    """
    from headrace.coordinator.commands import Rescale
    from headrace.errors import InvalidInputError

    command = Rescale(tasks, stage or "")
    with open_located(job, home, config, overrides) as (_, handle):
        states = handle.states()
        answers = handle.ask(command, wait)
    for root, answer in answers.items():
        if answer.error:
            raise InvalidInputError(answer.error, job=job)
        _show_answer(states[root].job, states[root].task_counts, answer, as_json=as_json)


def _show_answer(
    job: str, before: Mapping[str, int], answer: RescaleAnswer, *, as_json: bool
) -> None:
    if as_json:
        facts = {"job": job, "epoch": answer.epoch, "before": before}
        show_json({**facts, "tasks": answer.counts})
        return
    for name, count in answer.counts.items():
        held = before[name]
        change = f"has {count} tasks already" if held == count else f"{held} to {count} tasks"
        typer.echo(f"stage {name}: {change}, epoch {answer.epoch}")
