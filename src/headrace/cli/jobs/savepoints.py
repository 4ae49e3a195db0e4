"""``headrace jobs savepoint|savepoints``: named copies of a job that others begin from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.jobs.finding import find_job, refuse_driven, tell_notice
from headrace.cli.options import Config, Home, JobName, Json, Set, open_home_bus, settings_of
from headrace.cli.screen import show_json, show_line, show_table
from headrace.cli.words import count_text, size_text, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.config import Settings
    from headrace.coordinator.savepoints.form import Savepoint
    from headrace.coordinator.savepoints.places import KeptSavepoint

ANSWER_S = 5.0
MOST_S = 3_600.0

To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        file_okay=False,
        help="Put it there. Default: with the job's own savepoints.",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Its name. Default: made of the time.", show_default=False),
]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="For a driver that runs.")
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
    """Save a job, running or not: a folder with all that another one needs to go on from it."""
    saved = save(job, name, to, wait, home, config, overrides)
    if as_json:
        show_json(saved)
    else:
        show_line(saved_line(saved))


def save(
    job: str,
    name: str | None,
    to: Path | None,
    wait: float,
    home: Path | None,
    config: Path | None = None,
    overrides: list[str] | None = None,
) -> dict[str, Any]:
    """Save a job; return what is told of the savepoint, with the folder that it is as ``path``.

    The driver does it where one answers. With ``to`` it does not, for that folder may be of this
    host; nor with settings of one's own.
    """
    is_plain = not (to or config or overrides)
    if is_plain and (told := _asked(job, name, wait, home)) is not None:
        return {**told, "live": True}
    from headrace.clock import SystemClock
    from headrace.coordinator.savepoints.saving import JobSaver
    from headrace.files import Files

    clock = SystemClock()
    found = find_job(job, home, config, overrides, clock)
    settings = found.settings
    if found.storage != settings.jobs_dir / job:  # a driver elsewhere cannot be asked
        refuse_driven(settings, job, clock, elsewhere=True)
    with open_home_bus(settings) as bus:
        folder = to and to.absolute()
        saver = JobSaver(settings, job, bus, Files(), clock, folder, tell_notice)
        path, saved = saver.save(name, wait)
        return {**savepoint_json(saved), "path": str(path), "live": False}


def _asked(job: str, name: str | None, wait_s: float, home: Path | None) -> dict[str, Any] | None:
    """Return what the driver answers; ``None``: none takes the request."""
    from headrace.control.client import UnreachableError, reachable

    client = reachable(settings_of(home), job, wait_s + ANSWER_S)
    if client is None:
        return None
    try:
        told: dict[str, Any] = client.post("/v1/savepoint", name=name, wait_s=min(wait_s, MOST_S))
    except UnreachableError:
        return None
    return told


def _delete(job: str, name: str, folder: Path, *, as_json: bool) -> None:
    from headrace.clock import SystemClock
    from headrace.coordinator.savepoints.places import delete_savepoint
    from headrace.files import Files

    path = delete_savepoint(folder, name, Files(), SystemClock())
    if as_json:
        show_json({"job": job, "deleted": str(path)})
    else:
        show_line(f"savepoint {name}: deleted")


def savepoints(
    job: JobName,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--in", metavar="DIR", file_okay=False, help="Look there.", show_default=False
        ),
    ] = None,
    delete: Annotated[
        str | None,
        typer.Option("--delete", metavar="NAME", help="Remove this one.", show_default=False),
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """List the savepoints of a job, which outlive it, or remove one."""
    from headrace.coordinator.savepoints.places import kept_savepoints, savepoints_dir

    settings = settings_of(home)
    there = folder or savepoints_dir(settings, job)
    if delete is not None:
        _delete(job, delete, there, as_json=as_json)
        return
    found = list(kept_savepoints(there))
    if not found:
        _check_job(settings, job)
    if as_json:
        show_json({"job": job, "folder": str(there), "savepoints": [_kept_json(o) for o in found]})
    elif found:
        _show(found)
    else:
        typer.echo(f"no savepoints in {there}; make one with: headrace jobs savepoint {job}")


def _check_job(settings: Settings, job: str) -> None:
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.part_readers import part_readers

    part_readers(settings, job, SystemClock())  # tells which jobs there are


def _kept_json(found: KeptSavepoint) -> dict[str, Any]:
    told = {} if found.saved is None else savepoint_json(found.saved)
    return {**told, "path": str(found.path), "problem": found.problem or None}


def savepoint_json(saved: Savepoint) -> dict[str, Any]:
    """Return a savepoint ready for JSON; times in ms."""
    return {
        "job": saved.job,
        "name": saved.name,
        "epoch": saved.epoch,
        "time_ms": saved.time_ms,
        "bytes": saved.bytes,
        "files": len(saved.members()),
        "parts": [part.state.job for part in saved.parts],
    }


def saved_line(saved: Mapping[str, Any]) -> str:
    """Return what is said of a savepoint that was made."""
    files = count_text(saved["files"], "file")
    return (
        f"job {saved['job']}: savepoint {saved['name']} of epoch {saved['epoch']:,}, {files}, "
        f"{size_text(saved['bytes'])}; begin from it with: headrace run MODULE:JOB --as NAME "
        f"--from-savepoint {saved['path']}"
    )


def _show(found: Sequence[KeptSavepoint]) -> None:
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
