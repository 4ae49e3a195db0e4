"""``headrace init``: a project to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    name: Annotated[
        Path,
        typer.Argument(metavar="NAME", help="Folder to make; the job's name.", show_default=False),
    ],
) -> None:
    """Make a folder with a job, a test that passes, sample data and a notebook."""
    from headrace.cli.project import module_of, write_project

    for path in write_project(name):
        typer.echo(f"made {path}")
    module = module_of(name.name)
    typer.echo(f"next: cd {name} && headrace dev {module}.py   (README.md has the rest)")
