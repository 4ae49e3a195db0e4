"""``headrace run --from-savepoint``: a job that begins where another one was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.bus.bus import Bus
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.graph.jobs import Job

FromSavepoint = Annotated[
    str | None,
    typer.Option(
        "--from-savepoint",
        metavar="PATH",
        help="Begin from a savepoint: its folder, or the name of one of the job's own.",
        show_default=False,
    ),
]
AsName = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="NAME", help="Run it as another job of this name.", show_default=False
    ),
]


def begin_from(
    word: str, saved_job: str, job: Job, settings: Settings, bus: Bus, clock: Clock
) -> str:
    """Make a job what it goes on from; return a line about that.

    Args:
        word: a savepoint's folder, or the name of one of ``saved_job``'s own.
        saved_job: whose savepoints are looked through.
        job: that begins.
        settings: of the run.
        bus: its streams.
        clock: time and names.
    """
    from headrace.coordinator.savepoints.places import find_savepoint
    from headrace.coordinator.savepoints.starting import Beginning
    from headrace.files import Files

    folder = find_savepoint(settings, saved_job, word)
    states = Beginning(job.build(), settings, bus, Files(), clock).begin(folder)
    return (
        f"job {job.name} begins with epoch {states[0].epoch:,}, from savepoint {folder}; leave "
        "--from-savepoint out to go on with it later"
    )
