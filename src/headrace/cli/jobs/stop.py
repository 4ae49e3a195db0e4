"""``headrace jobs stop``, ``savepoint`` and ``savepoints``: end a job, and keep its state."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.jobs.access import open_located
from headrace.cli.options import Config, Home, JobName, Json, Set, Wait, open_home_bus, settings_of
from headrace.cli.output import (
    count_text,
    show_answer,
    show_json,
    show_line,
    show_table,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.config import Settings
    from headrace.control.client import Client
    from headrace.control.job_status import JobStatus
    from headrace.coordinator.leader_lease import DriverProcess, MemberInfo
    from headrace.coordinator.operations.savepoint_format import FoundSavepoint


SAVEPOINT_ANSWER_S = 5.0
MOST_S = 3_600.0

To = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        file_okay=False,
        help="Folder to write to. Default: the job's own savepoints.",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name", help="Name of the savepoint. Default: made of the time.", show_default=False
    ),
]


def savepoint(
    job: JobName,
    name: Name = None,
    to: To = None,
    wait: Wait = 60.0,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Create a savepoint: one committed epoch in a folder, from which other jobs can start.

    The job can be running or stopped. The savepoint goes to `_savepoints/JOB` of the storage, or
    to `--dir`. A driver on this host creates it between two epochs and continues. With `--dir`, or
    with settings of its own, the command creates it itself while the driver waits.

    Guide: savepoints.

    For example:

        headrace jobs savepoint shop --name before-v2
    """
    saved = save(job, name, to, wait, home, config, overrides)
    show_answer(saved, saved_line(saved), as_json=as_json)


def save(
    job: str,
    name: str | None,
    to: Path | None,
    wait: float,
    home: Path | None,
    config: Path | None = None,
    overrides: list[str] | None = None,
) -> dict[str, Any]:
    """Save a job; return what is shown about the savepoint, with the folder that it is as ``path``.

    The driver does it where one answers. With ``to`` it does not, for that folder may be of this
    host; nor with settings of one's own.
    """
    is_plain = not (to or config or overrides)
    if is_plain and (facts := _asked(job, name, wait, home)) is not None:
        return {**facts, "live": True}
    from headrace.coordinator.operations.savepoint_format import SavepointInfo
    from headrace.coordinator.operations.savepoint_writer import save_job

    with open_located(job, home, config, overrides) as (context, handle):
        path, saved = save_job(context, handle.ask_part, name, wait, to and to.absolute())
        return {**asdict(SavepointInfo.of(path, saved)), "live": False}


def _asked(job: str, name: str | None, wait_s: float, home: Path | None) -> dict[str, Any] | None:
    """Return what the driver answers; ``None``: none takes the request."""
    from headrace.control.client import UnreachableError, reachable

    client = reachable(settings_of(home), job, wait_s + SAVEPOINT_ANSWER_S)
    if client is None:
        return None
    try:
        facts: dict[str, Any] = client.post("/v1/savepoint", name=name, wait_s=min(wait_s, MOST_S))
    except UnreachableError:
        return None
    return facts


def _delete(job: str, name: str, folder: Path, *, as_json: bool) -> None:
    from headrace.coordinator.operations.savepoint_format import delete_savepoint
    from headrace.files import Files
    from headrace.remote import address_of

    path = delete_savepoint(folder, name, Files())
    facts = {"job": job, "deleted": address_of(path)}
    show_answer(facts, f"savepoint {name}: deleted", as_json=as_json)


def savepoints(
    job: JobName,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            file_okay=False,
            help="Folder of savepoints. Default: the job's own.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        str | None,
        typer.Option("--delete", metavar="NAME", help="Savepoint to delete.", show_default=False),
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """List the savepoints of a job, or delete one.

    Shows epoch, time and size. Savepoints stay when the job is deleted.

    Guide: savepoints.

    For example:

        headrace jobs savepoints shop --delete before-v2
    """
    from headrace.coordinator.operations.savepoint_format import list_savepoints, savepoints_dir
    from headrace.remote import address_of

    settings = settings_of(home)
    there = folder or savepoints_dir(settings, job)
    if delete is not None:
        _delete(job, delete, there, as_json=as_json)
        return
    found = list(list_savepoints(there))
    if not found:
        _check_job(settings, job)
    if as_json:
        kept = [_kept_json(one) for one in found]
        show_json({"job": job, "folder": address_of(there), "savepoints": kept})
    elif found:
        _show(found)
    else:
        typer.echo(
            f"no savepoints in {address_of(there)}; make one with: headrace jobs savepoint {job}"
        )


def _check_job(settings: Settings, job: str) -> None:
    from headrace.coordinator.inspection.job_reader import part_readers

    part_readers(settings, job)  # says which jobs there are


def _kept_json(found: FoundSavepoint) -> dict[str, Any]:
    from headrace.coordinator.operations.savepoint_format import SavepointInfo
    from headrace.remote import address_of

    facts = {} if found.saved is None else asdict(SavepointInfo.of(found.path, found.saved))
    return {**facts, "path": address_of(found.path), "problem": found.problem or None}


def saved_line(saved: Mapping[str, Any]) -> str:
    """Return what is said of a savepoint that was made."""
    files = count_text(saved["files"], "file")
    return (
        f"job {saved['job']}: savepoint {saved['name']} of epoch {saved['epoch']:,}, {files}, "
        f"{size_text(saved['bytes'])}; begin from it with: headrace run MODULE:JOB --name NAME "
        f"--from-savepoint {saved['path']}"
    )


def _show(found: Sequence[FoundSavepoint]) -> None:
    numbers = ("epoch", "files", "size")
    rows = [
        [one.path.name, "damaged: " + one.problem, "-", "-", "-"]
        if one.saved is None
        else [
            one.saved.name,
            time_text(one.saved.time_ms, with_ms=False),
            f"{one.saved.epoch:,}",
            f"{len(one.saved.members()):,}",
            size_text(one.saved.bytes),
        ]
        for one in found
    ]
    show_table(("savepoint", "made (UTC)", *numbers), rows, right=numbers)


if TYPE_CHECKING:
    How = Literal["api", "signal"]

POLL_S = 0.1
STOP_ANSWER_S = 10.0


def stop(
    job: JobName,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait for the driver to end."
        ),
    ] = 60.0,
    with_savepoint: Annotated[
        bool, typer.Option("--savepoint", help="Create a savepoint after the stop.")
    ] = False,
    name: Name = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Stop a running job after its current epoch; nothing is lost.

    Asks the driver by its API, and waits until it has ended. A driver on this host without an API
    gets SIGTERM. A driver on another host is stopped if it can be asked; otherwise the command
    names it.

    If you run the command again while the driver stops, a driver on this host ends at once, with
    its process. If several processes share the job, only the driving process stops; the command
    names the others, one of which drives next. Standby drivers on this host are stopped first; of
    those on other hosts one drives next. With `--json`, `by` is `api` or `signal`, and
    `goes_on_in` lists the processes in which the job continues.

    Guide: control, savepoints, standalone.

    For example:

        headrace jobs stop shop --savepoint --name before-v2
    """
    stopping = _Stopping(settings_of(home), job, wait)
    before, elsewhere = stopping.members(), stopping.end_standbys()
    how, process = stopping.end()
    epoch = stopping.status().epoch
    continues_in = [*_left(before, process), *elsewhere]
    if not as_json:
        show_line(_line(job, epoch, process, continues_in))
    facts: dict[str, object] = {"job": job, "process": process, "epoch": epoch, "by": how}
    facts["goes_on_in"] = continues_in
    if with_savepoint:
        saved = save(job, name, None, wait, home)
        facts["savepoint"] = saved
        if not as_json:
            show_line(saved_line(saved))
    if as_json:
        show_json(facts)


def end_drivers(settings: Settings, job: str, wait: float) -> int:
    """Have a job end, whichever of the processes that share it drives; return how many drove.

    Raises:
        HeadraceError: a driver cannot be asked, or does not end in time.
    """
    stopping, ended = _Stopping(settings, job, wait), 0
    stopping.end_standbys()
    while stopping.driver() or stopping.client():
        before = stopping.members()
        _, process = stopping.end()
        ended += 1
        if _left(before, process):
            stopping.await_next()
    return ended


class _Stopping:
    """Has the drivers of a job end.

    Args:
        settings: of the home.
        job: its name.
        wait_s: how long a driver may take.
    """

    def __init__(self, settings: Settings, job: str, wait_s: float) -> None:
        from headrace.clock import SystemClock

        self._settings, self._job, self._wait_s = settings, job, wait_s
        self._clock = SystemClock()

    def members(self) -> list[MemberInfo]:
        """Return the processes that share the job."""
        from headrace.coordinator.job_storage import check_job_name, newest_storage
        from headrace.coordinator.leader_lease import read_members

        return read_members(newest_storage(self._settings, check_job_name(self._job)))

    def driver(self) -> DriverProcess | None:
        """Return what drives the job now."""
        from headrace.coordinator.job_storage import check_job_name, newest_storage
        from headrace.coordinator.leader_lease import driver_of

        storage = newest_storage(self._settings, check_job_name(self._job))
        return driver_of(storage, self._settings.jobs_dir / self._job, self._job, self._clock)

    def client(self) -> Client | None:
        """Return the API of what drives the job, where it can be reached."""
        from headrace.control.client import reachable

        return reachable(self._settings, self._job, STOP_ANSWER_S)

    def status(self) -> JobStatus:
        """Return the status of the job by its files."""
        from headrace.control.job_status import job_status

        with open_home_bus(self._settings) as bus:
            return job_status(self._settings, self._job, bus, self._clock)

    def end(self) -> tuple[How, int | None]:
        """Have the driver end; return how, and its process."""
        driver, client = self.driver(), self.client()
        how = self._ask(driver, client)
        if how == "signal":  # the process whose API said no need not be the one that got the signal
            client = None
        process = client.place.process if client is not None else driver and driver.process
        self._await_end(driver, client)
        return how, process

    def end_standbys(self) -> list[int]:
        """End the standby drivers of this host, which would drive next; return those of others."""
        from headrace.clock import Deadline
        from headrace.coordinator.driver_standby import standby_drivers
        from headrace.coordinator.job_storage import check_job_name, job_storages

        where = job_storages(self._settings, check_job_name(self._job))
        shared, own = where.copy or where.storage, os.uname().nodename
        deadline = Deadline(self._clock, self._wait_s)
        for one in standby_drivers(shared, self._clock):
            if one.host == own:
                with suppress(ProcessLookupError):
                    os.kill(one.process, signal.SIGTERM)
        while (left := standby_drivers(shared, self._clock)) and not deadline.expired:
            if all(one.host != own for one in left):
                break
            self._clock.sleep(POLL_S)
        return [one.process for one in left]

    def await_next(self) -> None:
        """Wait until another process drives that shares the job."""
        from headrace.clock import Deadline

        deadline = Deadline(self._clock, self._wait_s)
        while self.driver() is None and not deadline.expired:
            self._clock.sleep(POLL_S)

    def _ask(self, driver: DriverProcess | None, client: Client | None) -> How:
        """Ask the driver to stop: by its API, else on this host by a signal; return how.

        One that is stopping already gets the signal, which then ends it at once, as a second
        Ctrl-C.
        """
        from headrace.control.client import SilentError, UnreachableError
        from headrace.control.job_handle import STOP
        from headrace.errors import InvalidInputError, NotOwnerError

        job = self._job
        if client is not None:
            try:
                is_stopping = STOP.ask(client).was == "stopping"
                if not (is_stopping and client.is_here):
                    return "api"
            except SilentError:  # it is busy, or frozen: a signal might come on top of the request
                return "api"
            except (UnreachableError, InvalidInputError):  # it goes, or this is not its API
                pass
        if driver is None:
            status = self.status().status
            raise InvalidInputError(f"job {job!r} does not run; its status is {status}")
        if not driver.is_here:
            raise NotOwnerError(
                f"job {job!r} is driven by {driver}, whose API this host cannot ask; stop it "
                f"there, with: headrace jobs stop {job}",
                job=job,
            )
        if self.driver() == driver:  # it may have ended while its API was asked
            with suppress(ProcessLookupError):
                os.kill(driver.process, signal.SIGTERM)
        return "signal"

    def _await_end(self, driver: DriverProcess | None, client: Client | None) -> None:
        from headrace.clock import Deadline
        from headrace.errors import UnavailableError

        deadline = Deadline(self._clock, self._wait_s)
        while not self._is_gone(driver, client):
            if deadline.expired:
                who = driver or "the driver"
                raise UnavailableError(
                    f"{who} of job {self._job!r} was asked to stop and still runs after "
                    f"{self._wait_s:.0f} s; wait longer with --wait, or ask again: the second "
                    "time it ends at once",
                    job=self._job,
                )
            self._clock.sleep(POLL_S)

    def _is_gone(self, driver: DriverProcess | None, client: Client | None) -> bool:
        if driver is not None and self.driver() == driver:
            return False
        # Of a driver elsewhere its word may be all that is seen from here.
        return client is None or client.has_ended


def _left(members: list[MemberInfo], process: int | None) -> list[int]:
    """Return the processes that share the job of a driver that has gone."""
    from headrace.files import is_alive

    own = os.uname().nodename
    is_theirs = any(one.drives and one.process == process for one in members)
    return [
        one.process
        for one in (members if is_theirs else ())
        if not one.drives and (one.host != own or is_alive(one.process))
    ]


def _line(job: str, epoch: int | None, process: int | None, continues_in: list[int]) -> str:
    from headrace.cli.jobs.inspect import stopped_line

    if not continues_in:
        return stopped_line(job, epoch)
    is_one = len(continues_in) == 1
    others = f"process{'' if is_one else 'es'} {', '.join(map(str, continues_in))}"
    return (
        f"job {job}: process {process} has left it after epoch {epoch}; {others}, which "
        f"share{'s' if is_one else ''} it, {'goes' if is_one else 'go'} on: headrace jobs stop "
        f"{job}, once more, stops the one that drives next"
    )
