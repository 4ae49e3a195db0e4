"""``headrace submit``: a job on a cluster that has nothing but Spark."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.options import Bounded, Config, Home, Json, Set, Target, settings_of
from headrace.cli.output import show_json
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from headrace.spark.submission import Packed, Submission

NO_ENVIRONMENT = "none"


def submit(  # noqa: PLR0913, PLR0917 - one for each option
    target: Target,
    master: Annotated[
        str,
        typer.Option(metavar="URL", help="spark://host:7077, yarn or k8s://https://host:port."),
    ],
    deploy_mode: Annotated[
        Literal["client", "cluster"],
        typer.Option(help="Where the driver runs: here (client), or on the cluster."),
    ] = "client",
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of Spark.", show_default=False),
    ] = None,
    config: Config = None,
    overrides: Set = None,
    bounded: Bounded = False,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            metavar="FILE",
            help="Archive of an environment; none: the hosts have one at the same path. "
            "Default: pack the environment of this command.",
            show_default=False,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE", help="Package to leave out of the environment.", show_default=False
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Path of the interpreter on the hosts. Default: as on this host.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Pack, and print the command instead of running it.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Run a job with spark-submit, on a cluster that has only Spark installed.

    Packs the job's code and the environment of this command. If the driver runs here, the first
    Ctrl-C or SIGTERM ends the job after the current epoch, the second one at once. The exit code
    is that of `spark-submit`. With `--dry-run --json`, the output also contains the paths of the
    archives.

    Guide: deployment.

    For example:

        headrace submit shop.py:shop --master yarn --deploy-mode cluster --home /shared/headrace
    """
    from headrace.cli.job_loader import load_job
    from headrace.coordinator.job_storage import job_storages
    from headrace.redaction import remember_setting
    from headrace.spark.submission import Submission, checked_master, find_spark_submit, launch

    settings = settings_of(home, config, overrides, {})
    given = _pairs(conf or [])
    remember_setting("spark.conf", given)
    where = checked_master(master, deploy_mode, {**settings.spark.conf, **given}, os.environ)
    spark_submit = find_spark_submit(os.environ)
    job = load_job(target)
    module, _, name = target.partition(":")
    module = _module(module)
    folder = settings.home / "submitted"
    storage = job_storages(settings, job.name).storage
    options = [*(["--bounded"] if bounded else []), *(["--json"] if as_json else [])]
    submission = Submission(
        job=job.name,
        target=f"{module}:{name}" if name else module,
        master=where,
        settings=settings,
        conf=given,
        packed=_packed(module, folder, environment, python, exclude or []),
        folder=folder,
        log_file=storage / "logs" / "spark.log",
        options=options,
    )
    submission.write()
    command = submission.command(spark_submit)
    if dry_run:
        _show(submission, command, as_json=as_json)
        return
    try:
        code = launch(command, storage if where.is_here else None)
    finally:
        submission.remove()
    if code:
        raise typer.Exit(code if code > 0 else 1)


def _pairs(conf: list[str]) -> dict[str, str]:
    from headrace.config.inputs import without_secret

    found = {}
    for entry in conf:
        name, equals, value = entry.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidInputError(
                f"--conf {without_secret(entry)}: expected spark.KEY=VALUE; settings of Headrace "
                "go by --set"
            )
        found[name] = value
    return found


def _module(place: str) -> str:
    """Return the name by which the module of a target was imported."""
    if not (place.endswith(".py") or "/" in place):
        return place
    path = str(Path(place).resolve())
    return next(
        name
        for name, module in sys.modules.items()
        if (file := getattr(module, "__file__", None)) and os.path.realpath(file) == path
    )


def _packed(
    module: str, folder: Path, environment: str | None, python: str | None, without: list[str]
) -> Packed:
    from headrace.spark.submission import Packed, pack_environment, pack_project, project_of

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    root = project_of(module)
    project = None if root is None else pack_project(root, folder)
    if environment == NO_ENVIRONMENT:
        return Packed(project, None)
    if environment is None:
        return Packed(project, pack_environment(folder, python, without))
    if not Path(environment).is_file():
        raise InvalidInputError(
            f"--environment: no file {environment}; name an archive with bin/python, or none"
        )
    return Packed(project, Path(environment).resolve())


def _show(submission: Submission, command: list[str], *, as_json: bool) -> None:
    if not as_json:
        typer.echo(shlex.join(command))
        return
    packed = submission.packed
    show_json(
        {
            "job": submission.job,
            "master": submission.master.url,
            "deploy_mode": submission.master.deploy_mode,
            "command": command,
            "project": None if packed.project is None else str(packed.project),
            "environment": None if packed.environment is None else str(packed.environment),
        }
    )
