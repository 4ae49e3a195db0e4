"""``headrace init``: a project to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import Json
from headrace.cli.screen import show_json


def init(
    name: Annotated[
        Path,
        typer.Argument(metavar="NAME", help="Folder to make; the job's name.", show_default=False),
    ],
    as_json: Json = False,
) -> None:
    """Make a folder with a job, a test that passes, sample data and a notebook."""
    from headrace.cli.project import module_of, write_project

    made = write_project(name)
    module = module_of(name.name)
    if as_json:
        show_json({"folder": str(name), "job": f"{module}.py", "files": [str(p) for p in made]})
        return
    for path in made:
        typer.echo(f"made {path}")
    typer.echo(f"next: cd {name} && headrace dev {module}.py   (README.md has the rest)")
