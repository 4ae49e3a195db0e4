"""A job that appends nothing for a moment, whether it runs or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.holds import hold
from headrace.control.merge_lock import MergeLock
from headrace.coordinator.backup.places import places
from headrace.coordinator.changes.requests import cut_request, cuts
from headrace.coordinator.changes.stopped import reigning
from headrace.coordinator.deploy import open_copier
from headrace.coordinator.inspection.part_readers import part_readers
from headrace.coordinator.storage import DriverLock
from headrace.errors import NotOwnerError
from headrace.files import Files


@contextmanager
def still(
    settings: Settings,
    job: str,
    other: str,
    bus: Bus,
    files: Files,
    clock: Clock,
    wait_s: float,
) -> Iterator[None]:
    """Let a job have all of its outputs out, and send none, for a block.

    A running driver begins no epoch as long as this process holds the lock of merges, which ends
    with it: killed in the block, it leaves nothing behind.

    Args:
        settings: with the durability that the job was last run with.
        job: its name.
        other: whose results come; told to those who ask why the job is still.
        bus: the streams.
        files: the file system.
        clock: time and names.
        wait_s: for the epoch under way.

    Raises:
        InvalidInputError: there is no such job, or its driver does not see the lock.
        NotOwnerError: another process merges into it.
        UnavailableError: the driver does not answer.
    """
    readers = part_readers(settings, job, clock)
    with MergeLock(settings, job, other, clock):
        try:
            lock = DriverLock(places(settings, job).storage, job, clock)
        except NotOwnerError:
            hold(settings, job, places(settings, job).storage, files, clock, wait_s)
            for reader in readers:
                cuts(reader.root, files, clock).ask(cut_request(clock, still=True), wait_s)
            yield
            return
        with lock:
            copier = open_copier(settings, job, clock, files)
            for reader in readers:
                with reigning(reader.root, reader.job, bus, files, clock, copier) as (_, publish):
                    publish()
            yield
