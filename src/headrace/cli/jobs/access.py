"""Where a job's files are, and its driver: asked by its API, else read from the job's files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli.options import open_home_bus, settings_of

if TYPE_CHECKING:
    from headrace.bus import Bus
    from headrace.config import Settings
    from headrace.control.client import Client
    from headrace.control.job_handle import JobHandle
    from headrace.control.job_status import JobStatus
    from headrace.coordinator.inspection.job_reader import JobReader
    from headrace.coordinator.job_storage import JobContext
    from headrace.coordinator.manifest import JobState


class JobLocation(NamedTuple):
    """A job as its last driver left it.

    ``settings`` have its durability; ``storage`` is where its epochs commit, on this host or in
    job_dir; ``newest`` holds its newest epoch, which is a copy where this host has none.
    """

    settings: Settings
    storage: Path
    newest: Path
    state: JobState


def locate_job(
    job: str, home: Path | None, config: Path | None, overrides: list[str] | None
) -> JobLocation:
    """Find a job that is to be changed, however it was run: a command need not know that."""
    from headrace.coordinator.inspection.job_reader import JobReader
    from headrace.coordinator.job_storage import check_job_name, job_storages, newest_storage
    from headrace.files import Files

    newest = newest_storage(settings_of(home, config, overrides), check_job_name(job))
    state = JobReader(newest, job, Files(sync=False)).state()
    same = [*(overrides or []), f"state.durability={state.durability}"]
    settings = settings_of(home, config, same)
    return JobLocation(settings, job_storages(settings, job).storage, newest, state)


def require_stopped(settings: Settings, job: str, *, elsewhere: bool = False) -> None:
    """Make sure that no driver of the job runs; with ``elsewhere``, none of another host."""
    from headrace.clock import SystemClock
    from headrace.coordinator.job_storage import newest_storage
    from headrace.coordinator.leader_lease import driver_of
    from headrace.errors import NotOwnerError

    folder = settings.jobs_dir / job
    driver = driver_of(newest_storage(settings, job), folder, job, SystemClock())
    if driver is not None and not (elsewhere and driver.is_here):
        raise NotOwnerError(
            f"job {job!r} is driven by {driver}; stop it first: headrace jobs stop {job}", job=job
        )


@contextmanager
def open_stopped(
    job: str, home: Path | None, config: Path | None, overrides: list[str] | None
) -> Iterator[tuple[JobContext, dict[Path, JobReader]]]:
    """Yield a job that no driver runs, locked, with a reader of each of its parts by storage."""
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.job_reader import JobReader, readers_of_other_parts
    from headrace.coordinator.job_storage import DriverLock, JobContext
    from headrace.files import Files

    clock, files = SystemClock(), Files()
    found = locate_job(job, home, config, overrides)
    require_stopped(found.settings, job)
    with DriverLock(found.storage, job, clock), open_home_bus(found.settings) as bus:
        others = {one.root: one for one in readers_of_other_parts(found.settings, job)}
        readers = {found.storage: JobReader(found.newest, job, files), **others}
        yield JobContext(found.settings, job, bus, files, clock, show_notice), readers


@contextmanager
def open_located(
    job: str, home: Path | None, config: Path | None, overrides: list[str] | None
) -> Iterator[tuple[JobContext, JobHandle]]:
    """Yield a job that runs on this host, or nowhere, and what commands are given to."""
    from headrace.clock import SystemClock
    from headrace.control.job_handle import StoppedHandle, open_job
    from headrace.coordinator.inspection.job_reader import readers_of_other_parts
    from headrace.coordinator.job_storage import JobContext
    from headrace.errors import InvalidInputError
    from headrace.files import Files

    found = locate_job(job, home, config, overrides)
    settings = found.settings
    if found.storage != settings.jobs_dir / job:  # a driver elsewhere cannot be asked
        require_stopped(settings, job, elsewhere=True)
    states = {found.storage: found.state}
    states |= {one.root: one.state() for one in readers_of_other_parts(settings, job)}
    with open_home_bus(settings) as bus:
        context = JobContext(settings, job, bus, Files(), SystemClock(), show_notice)
        with open_job(context, states) as handle:
            if isinstance(handle, StoppedHandle) and found.storage != found.newest:
                raise InvalidInputError(
                    f"this host has no storage of job {job!r}, only its copy in {found.newest}; "
                    "start it here once, which brings it back, or do this where it ran",
                    job=job,
                )
            yield context, handle


def newest_epochs(settings: Settings, job: str) -> Path:
    """Return the storage that has the newest epochs of a job.

    Raises:
        InvalidInputError: there is no such job.
    """
    from headrace.coordinator.inspection.job_reader import part_readers

    return part_readers(settings, job)[0].root


def show_notice(line: str) -> None:
    """Say on stderr what is wrong although the command continues."""
    import typer

    typer.echo(line, err=True)


AT_ONCE = 16
"""So many drivers are asked at the same time."""


ANSWER_S = 10.0
"""How long a driver is waited for, by default."""


def driver_api(job: str, home: Path | None) -> Client:
    """Return the API of the driver of a job, for what only a driver can do.

    Raises:
        InvalidInputError: there is none, or it cannot be asked from this host.
    """
    from headrace.control.client import client_of

    return client_of(settings_of(home), job, ANSWER_S)


def find_status(settings: Settings, job: str, bus: Bus) -> JobStatus:
    """Return the status of a job, of its driver or else of its files.

    Raises:
        InvalidInputError: there is no such job.
    """
    (found,) = find_statuses(settings, [job], bus)
    return found


def find_statuses(settings: Settings, jobs: Sequence[str], bus: Bus) -> list[JobStatus]:
    """Return the status of several jobs; drivers that do not answer are waited for together.

    Raises:
        InvalidInputError: there is no such job.
    """
    from concurrent.futures import ThreadPoolExecutor

    from headrace.clock import SystemClock
    from headrace.control.client import asked
    from headrace.control.job_status import JobStatus, job_status

    def ask(job: str) -> JobStatus | None:
        return asked(settings, job, "/v1/description", JobStatus)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, jobs))
    clock = SystemClock()
    return [
        answer or job_status(settings, job, bus, clock)
        for job, answer in zip(jobs, answers, strict=True)
    ]
