"""The demo's own folder: made fresh for each run, and nobody else's files are touched."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import InvalidInputError, NotOwnerError

MARK = ".headrace-demo"


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
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != mark:
                entry.unlink()
        yield path
    finally:
        os.close(descriptor)
