"""``headrace version``."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from headrace.cli.options import Json
from headrace.cli.screen import show_json


def version(as_json: Json = False) -> None:
    """Print the versions of Headrace and of what it runs on."""
    names = ("headrace", "pyspark", "pyarrow", "polars", "rocksdict")
    found = {name: _installed(name) for name in names} | {"python": platform.python_version()}
    if as_json:
        show_json(found)
    else:
        typer.echo(", ".join(f"{name} {told or 'not installed'}" for name, told in found.items()))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
