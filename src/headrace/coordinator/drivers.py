"""Whether a driver runs a job now, and which: seen from outside, disturbing nobody."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from headrace.clock import Clock
from headrace.coordinator.backup.lease import LEASE_S, Lease
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.storage import is_alive
from headrace.files import Files


class Driver(NamedTuple):
    """A driver that runs: its process, the host it is on, and whether that is this one."""

    process: int
    host: str
    is_here: bool

    def __str__(self) -> str:
        """Return ``process N``, with the host when it is another."""
        return f"process {self.process}" + ("" if self.is_here else f" on host {self.host}")


def driver_of(storage: Path, shared: Path, job: str, clock: Clock) -> Driver | None:
    """Return who drives a job; ``None``: nobody.

    A driver of another host is known by its lease, or by the lock where the file system
    tells of it, and then by its generation.

    Args:
        storage: of the job.
        shared: its folder in job_dir, which may be the same.
        job: its name.
        clock: for names.
    """
    here = os.uname().nodename
    process = _process(storage / "driver.lock")
    if process is not None and is_alive(process) and _is_locked(storage / "driver.lock"):
        return Driver(process, here, is_here=True)
    if (shared / "lease.json").exists():
        holder, age = Lease(shared, job, "", Files(sync=False), clock).holder()
        if holder is not None and age <= LEASE_S and holder.host != here:
            return Driver(holder.process, holder.host, is_here=False)
    if not (storage / "generations").is_dir():
        return None
    log = FileCommitLog(storage, Files(sync=False), clock)
    _, taken = log.newest_generation()
    host = str(taken.get("host", here))
    if host != here and _is_locked(storage / "driver.lock"):
        return Driver(int(taken.get("process", 0)), host, is_here=False)
    return None


def _process(lock: Path) -> int | None:
    try:
        said = lock.read_text().strip()
    except OSError:
        return None
    return int(said) if said.isdigit() else None


def _is_locked(lock: Path) -> bool:
    """Say whether somebody drives; shared, and for so short that a driver is not in its way."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
