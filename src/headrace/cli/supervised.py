"""What a supervised command says to its parent, and how it ends when that is gone.

Both have one end of a socket pair, so neither needs to poll: the child reads to the end of the
stream, which comes when the parent dies, however. The parent reads lines of JSON, each one
``ChildReport``. The child's end is not inherited by what the child starts.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.cli.failures import code_of, message

LINK = "HEADRACE_SUPERVISOR"
"""Environment variable with the number of the child's end."""

ORPHAN_S = 20.0
"""So long a command whose parent has died has to end as after SIGTERM; then it is killed."""


class ChildReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that the child has come to.

    Args:
        restored: it has begun from the savepoint that its command line names.
        storage: of the job, once it drives.
        lineage: of that run.
        bounded: the run has an end.
        log: of Spark; empty where there is none.
        error: the message that it ends with.
        code: of that error, such as ``HR200``.
        details: the file that has more about it.
    """

    restored: bool = False
    storage: str = ""
    lineage: str = ""
    bounded: bool = False
    log: str = ""
    error: str = ""
    code: str = ""
    details: str = ""


_link: socket.socket | None = None


def follow_parent() -> None:
    """End this process when its supervisor does, if it has one; call first of all."""
    global _link  # noqa: PLW0603 - one for each process, as its environment is
    number = os.environ.pop(LINK, "")
    if not number.isdigit():
        return
    try:
        _link = socket.socket(fileno=int(number))
    except OSError:  # a variable that was left over, without its descriptor
        return
    _link.set_inheritable(False)
    threading.Thread(target=_wait, args=(_link,), name="headrace-parent", daemon=True).start()


def report(what: ChildReport) -> None:
    """Say something to the supervisor, if there is one."""
    if _link is not None:
        with suppress(OSError):
            _link.sendall(msgspec.json.encode(what) + b"\n")


def report_failure(error: BaseException, details: Path | None) -> None:
    """Say with which error this command ends.

    Args:
        error: what it failed with.
        details: the file that has more about it, if any.
    """
    if _link is not None:
        where = "" if details is None else str(details)
        report(ChildReport(error=message(error), code=code_of(error), details=where))


def _wait(link: socket.socket) -> None:
    with suppress(OSError):
        while link.recv(64):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGKILL)
