"""Starts the Python processes of an executor, with the installed PySpark and not Spark's zip.

Spark puts ``pyspark.zip`` first on the path of its processes. Python keeps nothing that it
compiles from a zip, so each process would compile PySpark again: half a second, in which a slot
that was lost is not back. For the same reason what runs slots is imported here, once, and not by
each process that is forked: a second of a core. ``spark.python.daemon.module`` names this module.

A slot has a daemon of its own, and Spark starts those of an executor one after the other, each with
its first process. So that process is forked at once, and loads by itself, beside those of the other
slots; what the daemon loads, a while later, is for those that take its place.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from itertools import count
from pathlib import Path
from zipfile import BadZipFile, ZipFile

SLOT_VARIABLE = "HEADRACE_SLOT"
PRELOAD_AFTER_S = 30.0
"""A run that is over by then needs no second process, and what it loads would be for nothing."""
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


PRELOADED = (
    "pandas",
    "pyarrow.dataset",
    "pyspark.worker",
    "headrace.runtime.slot",
    "headrace.runtime.slot_host",
    "headrace.spark.worker",
)
"""None of them starts a thread that works, or opens anything, when it is imported."""


def preload() -> None:
    """Import what each process needs, so that those that are forked have it."""
    for name in PRELOADED:
        with suppress(Exception):  # the process that needs it says what is wrong
            importlib.import_module(name)
    if "numpy" in sys.modules:
        # As Python does for its own: else all processes would draw the same numbers.
        os.register_at_fork(after_in_child=importlib.import_module("numpy.random").seed)
    gc.collect()
    gc.freeze()  # pages that no collection writes to stay shared


def preload_after_first_fork() -> None:
    """Have this process fork once as it is, and import what each needs a while later.

    What is forked first has the processor to itself meanwhile. A second fork waits for the
    imports, or does them.
    """
    daemon, forks, lock, loaded = os.getpid(), count(1), threading.Lock(), threading.Event()

    def load() -> None:
        with lock:
            if not loaded.is_set():
                preload()
                loaded.set()

    later = threading.Timer(PRELOAD_AFTER_S, load)
    later.daemon = True

    def before() -> None:
        if os.getpid() == daemon and next(forks) > 1:
            load()

    def after() -> None:
        if os.getpid() == daemon and later.ident is None:
            later.start()

    os.register_at_fork(before=before, after_in_parent=after)


def start() -> None:
    """Serve as Spark's own daemon does: a worker for each connection."""
    sys.path[:] = without_zips(sys.path)
    if SLOT_VARIABLE in os.environ:
        preload_after_first_fork()
    else:
        preload()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    start()
