"""The demo's own folder: made fresh for each run, and nobody else's files are touched."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import InvalidInputError, NotOwnerError

MARK, OLD = ".headrace-demo", ".old"


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """Hold an empty folder for one run; what an earlier run of the demo left there is removed.

    Args:
        path: made when missing.

    Raises:
        InvalidInputError: it holds files that no demo made.
        NotOwnerError: another demo is running in it.
    """
    mark = path / MARK
    if path.exists() and not mark.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidInputError(
            f"{path} was not made by the demo, which begins with an empty folder; move it away, "
            "or set HEADRACE_HOME to another place"
        )
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotOwnerError(
                f"another demo is running in {path}; wait for it, or set HEADRACE_HOME"
            ) from None
        _empty(path)
        yield path
    finally:
        os.close(descriptor)


def _empty(path: Path) -> None:
    """Remove all but the mark.

    The JVM of a run that was killed may still be writing its log. So everything is moved
    out of its way first, and what it adds meanwhile goes with the next run.
    """
    old = path / OLD
    old.mkdir(exist_ok=True)
    taken = len(list(old.iterdir()))
    for number, entry in enumerate(path.iterdir(), start=taken):
        if entry.name not in (MARK, OLD):
            entry.rename(old / str(number))
    shutil.rmtree(old, ignore_errors=True)
