"""A standby driver: waits until a job has no driver, and says that it waits.

1. It leaves a file in the job's storage by which status and ``jobs stop`` know it. 2. It looks at
the lease and the lock of the driver. 3. Where that has gone, or has not renewed its lease for as
long as it counts, it is time to drive. As with elections, safety is not here: who drives takes a
generation, and what an older driver still does is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.leader_lease import (
    LeaderLease,
    LeaseHolder,
    is_locked,
    lock_holder,
    this_machine,
)
from headrace.coordinator.worker_host import host_identity
from headrace.errors import CorruptDataError
from headrace.files import Files, is_alive

FOLDER = "drivers"
"""Of a job's storage: a file for each standby driver."""

CHECK_S = 0.1
WARM_S = 20.0
"""Spark ends a Python process that had nothing to do for a minute."""

GONE_S = 60.0
"""A standby driver of another host that has not written its file for so long is not shown."""


class StandbyDriver(msgspec.Struct, frozen=True):
    """A process that drives a job as soon as nobody does.

    Args:
        process: its number.
        host: its host.
        warm: its Spark session, if it needs one, and what it has of workers have begun.
        machine: what its process number means something in.
    """

    process: int
    host: str
    warm: bool = False
    machine: str = ""


class StandbyStep(StrEnum):
    """What a standby driver does next."""

    WAIT = "wait"
    """Somebody drives, or is about to."""
    DRIVE = "drive"
    """Nobody does."""
    FENCE = "fence"
    """Who drives has said nothing for as long as its lease counts: drive, and fence it."""


@dataclass(frozen=True)
class LeaderView:
    """What is seen of the driver of a job.

    Args:
        holder: of the lease; ``None``: there is none.
        age_s: since it was renewed.
        is_dead: the holder's process is known to have ended.
        locked_by: the process of this host that has the job's lock; 0: none.
    """

    holder: LeaseHolder | None = None
    age_s: float = 0.0
    is_dead: bool = False
    locked_by: int = 0


def next_step(seen: LeaderView) -> StandbyStep:
    """Say what a standby driver does next.

    Args:
        seen: as things are now.
    """
    holder = seen.holder
    is_over = holder is None or seen.is_dead or seen.age_s > holder.lasts_s
    if not is_over:
        return StandbyStep.WAIT
    if not seen.locked_by:
        # Of a driver elsewhere that may only be frozen, nothing but a generation is sure.
        return StandbyStep.DRIVE if holder is None or seen.is_dead else StandbyStep.FENCE
    is_frozen = holder is not None and not seen.is_dead and holder.process == seen.locked_by
    return StandbyStep.FENCE if is_frozen else StandbyStep.WAIT  # it has just begun


class DriverStandby:
    """Waits for its turn to drive a job.

    Args:
        context: of the job.
        control: ends the waiting.
        warm: makes ready what the driver will need; called first, and every ``WARM_S`` after.
            Returns whether it is ready.
    """

    def __init__(self, context: JobContext, control: JobControl, warm: Callable[[], bool]) -> None:
        self._context, self._control, self._warm = context, control, warm
        where = context.storages
        self._shared = where.copy or where.storage
        host = host_identity(context.settings.state_dir, context.clock, context.files)
        self._lease = LeaderLease(self._shared, context.job, host, Files(sync=False), context.clock)
        self._seen_driver = False

    def wait(self) -> StandbyStep | None:
        """Return how to begin to drive; ``None``: asked to stop, or the job has ended meanwhile.

        Raises:
            OSError: the storage does not answer.
        """
        clock = self._context.clock
        with self._shown() as show:
            show(warm=False)
            warmed: float | None = None
            while not self._control.stop.is_set():
                step = next_step(self._look())
                if step is StandbyStep.WAIT:
                    self._seen_driver = True
                elif self._seen_driver and self._has_ended():
                    return None
                else:
                    return step
                if warmed is None or clock.monotonic() - warmed >= WARM_S:
                    show(warm=self._warm())
                    warmed = clock.monotonic()
                self._control.stop.wait(CHECK_S)
        return None

    def _look(self) -> LeaderView:
        holder, age = self._lease.holder()
        lock = self._context.storage / "driver.lock"
        locked_by = (lock_holder(lock) or 0) if is_locked(lock) else 0
        is_here = holder is not None and holder.machine == this_machine()
        is_dead = holder is not None and is_here and not is_alive(holder.process)
        return LeaderView(holder, age, is_dead, locked_by)

    def _has_ended(self) -> bool:
        with suppress(OSError, CorruptDataError):
            state = load_state(FileCommitLog(self._context.storages.readable, Files(sync=False)))
            return state is not None and state.ended
        return False

    @contextmanager
    def _shown(self) -> Iterator[Callable[..., None]]:
        """Have a file of this process while a block runs."""
        folder, files = self._shared / FOLDER, Files(sync=False)
        own = StandbyDriver(os.getpid(), os.uname().nodename, machine=this_machine())
        path = folder / f"{own.host}-{own.process}.json"

        def show(*, warm: bool) -> None:
            files.make_folder(folder, 0o700)
            files.replace(path, msgspec.json.encode(msgspec.structs.replace(own, warm=warm)))

        try:
            yield show
        finally:
            with suppress(OSError):
                files.remove(path)


def standby_drivers(shared: Path, clock: Clock) -> list[StandbyDriver]:
    """Return the standby drivers of a job that live, as far as this host can know.

    Args:
        shared: the job's folder in job_dir.
        clock: the time.
    """
    found = []
    for path in sorted((shared / FOLDER).glob("*.json")):
        with suppress(OSError, msgspec.DecodeError):
            one = msgspec.json.decode(path.read_bytes(), type=StandbyDriver)
            age_s = clock.now_ms() / 1000 - path.stat().st_mtime
            is_here = one.machine == this_machine()
            if is_alive(one.process) if is_here else age_s <= GONE_S:
                found.append(one)
    return found
