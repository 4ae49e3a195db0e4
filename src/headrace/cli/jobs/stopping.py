"""``headrace jobs stop``: asks the driver of a job to end its epoch and go, and waits for it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.jobs.savepoints import Name
from headrace.cli.options import Home, JobName, Json, open_home_bus, settings_of
from headrace.cli.screen import show_json, show_line

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.control.client import Client
    from headrace.coordinator.drivers import Driver
    from headrace.coordinator.running.members import MemberInfo

    How = Literal["api", "signal"]

POLL_S = 0.1
ANSWER_S = 10.0


def stop(
    job: JobName,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="For the driver to end.")
    ] = 60.0,
    with_savepoint: Annotated[
        bool, typer.Option("--savepoint", help="Save the job when it has stopped.")
    ] = False,
    name: Name = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Let a running job end its epoch and stop; nothing is lost."""
    from headrace.cli.jobs.savepoints import save, saved_line
    from headrace.clock import SystemClock
    from headrace.control.client import reachable
    from headrace.coordinator.inspection.job_list import view_job

    settings, clock = settings_of(home), SystemClock()
    before = _members(settings, job)
    driver, client = _driver(settings, job, clock), reachable(settings, job, ANSWER_S)
    how = _ask(settings, job, driver, client, clock)
    if how == "signal":  # whoever left the word of an API need not be whom the signal went to
        client = None
    process = client.place.process if client is not None else driver and driver.process
    _await(settings, job, driver, client, wait, clock)
    with open_home_bus(settings) as bus:
        after = view_job(settings, job, bus, clock)
    epoch = None if after.state is None else after.state.epoch
    goes_on = _left(before, process)
    if not as_json:
        show_line(_line(job, epoch, process, goes_on))
    told: dict[str, object] = {"job": job, "process": process, "epoch": epoch, "by": how}
    told["goes_on_in"] = goes_on
    if with_savepoint:
        saved = save(job, name, None, wait, home)
        told["savepoint"] = saved
        if not as_json:
            show_line(saved_line(saved))
    if as_json:
        show_json(told)


def _members(settings: Settings, job: str) -> list[MemberInfo]:
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.running.members import read_members
    from headrace.coordinator.storage import check_job_name

    return read_members(newest_of(settings, check_job_name(job)))


def _left(members: list[MemberInfo], process: int | None) -> list[int]:
    """Return the processes that share the job of a driver that has gone."""
    from headrace.coordinator.storage import is_alive

    own = os.uname().nodename
    is_theirs = any(one.drives and one.process == process for one in members)
    return [
        one.process
        for one in (members if is_theirs else ())
        if not one.drives and (one.host != own or is_alive(one.process))
    ]


def _driver(settings: Settings, job: str, clock: Clock) -> Driver | None:
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.drivers import driver_of
    from headrace.coordinator.storage import check_job_name

    return driver_of(newest_of(settings, check_job_name(job)), settings.jobs_dir / job, job, clock)


def _ask(
    settings: Settings, job: str, driver: Driver | None, client: Client | None, clock: Clock
) -> How:
    """Ask the driver to stop: by its API, else on this host by a signal; return how.

    One that is stopping already gets the signal, which then ends it at once, as a second Ctrl-C.
    """
    from headrace.control.client import SilentError, UnreachableError
    from headrace.errors import InvalidInputError, NotOwnerError

    if client is not None:
        try:
            is_stopping = client.post("/v1/stop").get("was") == "stopping"
            if not (is_stopping and client.is_here):
                return "api"
        except SilentError:  # it is busy, or frozen: a signal might come on top of the request
            return "api"
        except (UnreachableError, InvalidInputError):  # it goes, or this is not its API
            pass
    if driver is None:
        status = _status(settings, job, clock)
        raise InvalidInputError(f"job {job!r} does not run; its status is {status}")
    if not driver.is_here:
        raise NotOwnerError(
            f"job {job!r} is driven by {driver}, whose API this host cannot ask; stop it there, "
            f"with: headrace jobs stop {job}",
            job=job,
        )
    if _driver(settings, job, clock) == driver:  # it may have ended while its API was asked
        with suppress(ProcessLookupError):
            os.kill(driver.process, signal.SIGTERM)
    return "signal"


def _status(settings: Settings, job: str, clock: Clock) -> str:
    from headrace.coordinator.inspection.job_list import view_job

    with open_home_bus(settings) as bus:
        return view_job(settings, job, bus, clock).status


def _await(
    settings: Settings,
    job: str,
    driver: Driver | None,
    client: Client | None,
    wait_s: float,
    clock: Clock,
) -> None:
    from headrace.clock import Deadline
    from headrace.errors import UnavailableError

    deadline = Deadline(clock, wait_s)
    while not _is_gone(settings, job, driver, client, clock):
        if deadline.expired:
            who = driver or "the driver"
            raise UnavailableError(
                f"{who} of job {job!r} was asked to stop and still runs after {wait_s:.0f} s; "
                "wait longer with --wait, or ask again: the second time it ends at once",
                job=job,
            )
        clock.sleep(POLL_S)


def _is_gone(
    settings: Settings, job: str, driver: Driver | None, client: Client | None, clock: Clock
) -> bool:
    if driver is not None and _driver(settings, job, clock) == driver:
        return False
    # Of a driver elsewhere its word may be all that is seen from here.
    return client is None or client.has_ended


def _line(job: str, epoch: int | None, process: int | None, goes_on: list[int]) -> str:
    from headrace.cli.jobs.text import stopped_line

    if not goes_on:
        return stopped_line(job, epoch)
    is_one = len(goes_on) == 1
    others = f"process{'' if is_one else 'es'} {', '.join(map(str, goes_on))}"
    return (
        f"job {job}: process {process} has left it after epoch {epoch}; {others}, which "
        f"share{'s' if is_one else ''} it, {'goes' if is_one else 'go'} on: headrace jobs stop "
        f"{job}, once more, stops the one that drives next"
    )
