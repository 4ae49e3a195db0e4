"""Where a job that is to be changed is, and whether somebody drives it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli.options import settings_of

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.manifest import JobState


class FoundJob(NamedTuple):
    """A job as its last driver left it.

    ``settings`` have its durability; ``storage`` is where its epochs commit, on this host or in
    job_dir; ``newest`` holds its newest epoch, which is a copy where this host has none.
    """

    settings: Settings
    storage: Path
    newest: Path
    state: JobState


def find_job(
    job: str, home: Path | None, config: Path | None, overrides: list[str] | None, clock: Clock
) -> FoundJob:
    """Find a job that is to be changed, however it was run: a command need not know that."""
    from headrace.coordinator.backup.places import newest_of, places
    from headrace.coordinator.inspection.inspection import JobReader
    from headrace.coordinator.storage import check_job_name
    from headrace.files import Files

    newest = newest_of(settings_of(home, config, overrides), check_job_name(job))
    state = JobReader(newest, job, Files(sync=False), clock).state()
    same = [*(overrides or []), f"state.durability={state.durability}"]
    settings = settings_of(home, config, same)
    return FoundJob(settings, places(settings, job).storage, newest, state)


def refuse_driven(settings: Settings, job: str, clock: Clock, *, elsewhere: bool = False) -> None:
    """Make sure that no driver of the job runs; with ``elsewhere``, none of another host."""
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.drivers import driver_of
    from headrace.errors import NotOwnerError

    driver = driver_of(newest_of(settings, job), settings.jobs_dir / job, job, clock)
    if driver is not None and not (elsewhere and driver.is_here):
        raise NotOwnerError(
            f"job {job!r} is driven by {driver}; stop it first: headrace jobs stop {job}", job=job
        )


def tell_notice(line: str) -> None:
    """Say on stderr what is wrong although the command goes on."""
    import typer

    typer.echo(line, err=True)
