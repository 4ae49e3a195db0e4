"""How a failed command ends: one message on the screen, its details in a file, an exit code.

0 done, 1 the user's mistake, 2 wrong usage (from typer), 3 unavailable, 4 not the owner,
5 corrupt data, 6 done but for lines set aside, 70 a fault of Headrace, 130 interrupted,
141 nobody reads the output.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from headrace import extras
from headrace.clock import Clock, SystemClock
from headrace.errors import (
    CorruptDataError,
    HeadraceError,
    InvalidInputError,
    NotOwnerError,
    UnavailableError,
)
from headrace.redaction import redacted

MISTAKE, UNAVAILABLE, NOT_OWNER, CORRUPT, SET_ASIDE = 1, 3, 4, 5, 6
INTERNAL, INTERRUPTED, NO_READER = 70, 130, 141

_CODES: tuple[tuple[type[HeadraceError], int], ...] = (
    (InvalidInputError, MISTAKE),
    (UnavailableError, UNAVAILABLE),
    (NotOwnerError, NOT_OWNER),
    (CorruptDataError, CORRUPT),
)
_KEPT_BYTES = 4 << 20
_REFUSALS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
}


def as_headrace_error(error: Exception) -> Exception:
    """Return an error as users see it.

    What the system refuses, or an extra would install, is no fault of Headrace.
    """
    if (found := extras.missing(error, "this command")) is not None:
        found.__cause__ = error
        return found
    if not isinstance(error, OSError) or error.errno not in _REFUSALS:
        return error
    from headrace.files import DiskFullError, is_full

    where = error.filename or "a file"
    reason = (error.strerror or str(error)).lower()
    if is_full(error):
        return DiskFullError(f"no room for {where}: {reason}; make room, then try again")
    refused = UnavailableError(
        f"{where} cannot be used: {reason}; check that path, its rights, and --home"
    )
    refused.__cause__ = error
    return refused


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)


def message(error: BaseException) -> str:
    """Return what the screen says about an error: no traceback, never empty."""
    if isinstance(error, HeadraceError):
        return str(error)
    message = redacted(str(error)).strip() or "no further words"
    return (
        f"an unexpected {type(error).__name__}: {message}; this is a fault of headrace: "
        "report it with the details"
    )


def code_of(error: BaseException) -> str:
    """Return the code of an error as the guide lists it."""
    return error.code if isinstance(error, HeadraceError) else "HR900"


def show(error: BaseException, details: Path | None, console: Console | None = None) -> None:
    """Print an error on stderr in red, with the file that has the details, if any."""
    console = console or Console(stderr=True, highlight=False)
    console.soft_wrap = not console.is_terminal  # a log or a pipe has no edge to break lines at
    text = Text.assemble((f"error {code_of(error)}: ", "bold red"), (message(error), "red"))
    console.print(text)
    if isinstance(error, HeadraceError) and error.advice:
        console.print(Text(f"next: {error.advice}"))
    if details is not None:
        console.print(Text(f"details: {_near(details)}", style="dim"))


def _near(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def record(error: BaseException, home: Path, clock: Clock | None = None) -> Path | None:
    """Append an error's traceback to ``logs/headrace.log`` below home; return the file.

    A mistake made where there is no home yet leaves nothing behind. A log that cannot be
    written must not hide the error itself. Past 4 MiB the file becomes ``headrace.log.1``.
    """
    from headrace.config.inputs import without_secret

    if exit_code(error) == MISTAKE and not home.exists():
        return None
    path = home / "logs" / "headrace.log"
    now = datetime.fromtimestamp((clock or SystemClock()).now_ms() / 1000, UTC)
    words = " ".join(map(without_secret, sys.argv))
    head = f"--- {now:%Y-%m-%d %H:%M:%S} UTC, process {os.getpid()}: {words}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > _KEPT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
        details = redacted(head + "".join(traceback.format_exception(error)))
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(target, "a", encoding="utf-8", errors="backslashreplace") as file:
            os.fchmod(target, 0o600)  # one of before may be for all to read
            file.write(details + "\n")
    except OSError:
        return None
    return path
