"""``headrace run --from-savepoint``: a job that begins where another one was."""

from __future__ import annotations

import dataclasses
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

Apart = Annotated[
    str | None,
    typer.Option(
        "--apart",
        metavar="SUFFIX",
        help="Send to streams of its own, OUTPUT.SUFFIX; later runs do so, too.",
        show_default=False,
    ),
]


def with_own_outputs(job: Job, suffix: str | None, settings: Settings, clock: Clock) -> Job:
    """Return a job with the outputs that it has had from its first run on.

    Args:
        job: to be run.
        suffix: of its outputs, as it is wanted now; ``None``: as before.
        settings: of the run.
        clock: for names.

    Raises:
        InvalidInputError: it began with other outputs.
    """
    from headrace.bus.spec import check_name
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.reprocessing.pairs import apart_note, apart_of
    from headrace.errors import InvalidInputError
    from headrace.files import Files

    held = apart_of(settings, job.name)
    if suffix is None:
        return job if held is None else dataclasses.replace(job, apart=held)
    check_name(suffix)
    has_begun = any((newest_of(settings, job.name) / "manifests").glob("[0-9]*.json"))
    if held != suffix and (held is not None or has_begun):
        before = "without --apart" if held is None else f"with --apart {held}"
        raise InvalidInputError(
            f"job {job.name!r} began {before}, and rows of one job belong together; run it so, or "
            "as another one with --as NAME"
        )
    apart = dataclasses.replace(job, apart=suffix)
    apart.build()  # refused before it is noted
    if held is None:
        path = apart_note(settings, job.name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        Files().publish(path, suffix.encode(), clock.new_id())
    return apart


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
