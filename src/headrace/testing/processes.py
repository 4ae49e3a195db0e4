"""Processes of tests: waiting for what they do, and leaving none behind. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.clock import Clock, Deadline, SystemClock

POLL_S = 0.02
END_S = 10.0


def wait_until(
    condition: Callable[[], object],
    deadline: Deadline,
    what: str,
    clock: Clock | None = None,
) -> None:
    """Return as soon as a condition holds.

    Args:
        condition: asked again and again.
        deadline: when to give up.
        what: is waited for, for the error.
        clock: for the pauses.

    Raises:
        TimeoutError: it did not hold in time.
    """
    clock = clock or SystemClock()
    while not condition():
        if deadline.expired:
            raise TimeoutError(f"waited in vain for {what}")
        clock.sleep(POLL_S)


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that is dead but not yet buried does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def parents(pid: int) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on."""
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
        yield pid


def command(pid: int) -> str:
    """Return a process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def with_variable(name: str, value: str) -> list[int]:
    """Return the processes that were started with a variable: a family, however scattered."""
    wanted = f"{name}={value}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return sorted(pid for pid in found if is_alive(pid))


def kill(pid: int) -> None:
    """Kill a process, if it is there, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not is_alive(pid), Deadline(SystemClock(), END_S), f"the end of process {pid}"
    )


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill what is left of a process that was started in a session of its own, and bury it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
