"""``headrace version``."""

from __future__ import annotations

import platform
from importlib import metadata

import typer


def version() -> None:
    """Print the versions of Headrace and of what it runs on."""
    names = ("headrace", "pyspark", "pyarrow", "polars", "rocksdict")
    parts = [f"{name} {_installed(name)}" for name in names]
    typer.echo(", ".join([*parts, f"python {platform.python_version()}"]))


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
