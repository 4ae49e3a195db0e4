"""Starts the Python processes of an executor, with the installed PySpark and not Spark's zip.

Spark puts ``pyspark.zip`` first on the path of its processes. Python keeps nothing that it
compiles from a zip, so each process would compile PySpark again: half a second, in which a slot
that was lost is not back. ``spark.python.daemon.module`` names this module.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from zipfile import BadZipFile, ZipFile

_ZIPS = re.compile(r"(pyspark|py4j-.*-src)\.zip")
_VERSIONS = ("pyspark/version.py", "py4j/version.py")


def without_zips(path: Sequence[str]) -> list[str]:
    """Return a module path without Spark's zips of which the same version is installed."""
    installed = [place for place in path if not _ZIPS.fullmatch(Path(place).name)]
    return [place for place in path if place in installed or not _is_installed(place, installed)]


def _is_installed(archive: str, path: Sequence[str]) -> bool:
    try:
        with ZipFile(archive) as file:
            held = {name: file.read(name) for name in _VERSIONS if name in file.namelist()}
    except (OSError, BadZipFile):
        return False
    return bool(held) and all(_installed(name, path) == data for name, data in held.items())


def _installed(name: str, path: Sequence[str]) -> bytes | None:
    package, file = name.split("/")
    spec = PathFinder.find_spec(package, path)
    if spec is None or spec.origin is None:
        return None
    try:
        return (Path(spec.origin).parent / file).read_bytes()
    except OSError:
        return None


def start() -> None:
    """Serve as Spark's own daemon does: a worker for each connection."""
    sys.path[:] = without_zips(sys.path)
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    start()
