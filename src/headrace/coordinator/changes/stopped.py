"""Drives a stopped job for a moment, so that something can be done to it beside its epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.publishing import publish_outputs
from headrace.coordinator.receivers import check_confirmed
from headrace.coordinator.reign import Reign
from headrace.errors import InvalidInputError
from headrace.files import Files


@contextmanager
def reigning(
    root: Path, job: str, bus: Bus, files: Files, clock: Clock, copier: Copier | None
) -> Iterator[tuple[Reign, Callable[[], None]]]:
    """Take a generation of a job for a block; the caller holds its ``DriverLock``.

    When the block has ended the copy in job_dir follows, where there is one, so that the loss
    of this host takes nothing of it back; then the lease is let go of.

    Args:
        root: the job's storage.
        job: its name.
        bus: where outputs go.
        files: the file system.
        clock: time and names.
        copier: where epochs commit to this host's disk.

    Yields:
        The reign, and what brings out the outputs of its last epoch: call it before anything
        that begins a lineage is published.

    Raises:
        InvalidInputError: the job has no epoch yet; or, by the second, a sink has not
            confirmed the last one.
        NotOwnerError: a driver elsewhere runs the job.
        RecoveryStalledError: job_dir hangs; what the block did stands.
    """
    reign = Reign(job, FileCommitLog(root, files, clock), clock, copier)
    if not reign.begin():
        raise InvalidInputError(f"job {job!r} has not committed an epoch yet; run it", job=job)

    def publish() -> None:
        check_confirmed(reign.state, root)
        publish_outputs(reign.state, bus, root)

    before = reign.state
    try:
        yield reign, publish
    except Exception:
        if copier is not None:
            copier.finish(before)
        raise
    if copier is not None:
        copier.finish(reign.state)
