"""The steps of a rescale, taken by a driver between two epochs or for a job that has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.changes.rescaling import rescaled, wanted_counts
from headrace.coordinator.changes.stopped import reigning
from headrace.coordinator.manifest import JobState
from headrace.coordinator.reign import Reign
from headrace.faults import fault
from headrace.files import Files


def commit_rescale(
    reign: Reign, tasks: int, stage: str | None, clock: Clock, publish: Callable[[], object]
) -> bool:
    """Commit a rescale; False when the job has so many tasks already.

    Args:
        reign: that has begun.
        tasks: of each keyed stage, or of the one that is named.
        stage: its name; all when left out.
        clock: for the name of the lineage.
        publish: brings out the outputs of the last epoch, unless that was done.

    Raises:
        InvalidInputError: no such stage, or a number that cannot be.
        NotOwnerError: a newer driver has taken over.
    """
    while True:
        publish()
        state = reign.state
        counts = wanted_counts(state, tasks, stage)
        if counts == state.task_counts:
            return False
        fault("rescale.published")
        if reign.publish_next(rescaled(state, counts, clock.new_id())):
            fault("rescale.committed")
            return True


def rescale_stopped(
    root: Path,
    job: str,
    tasks: int,
    stage: str | None,
    *,
    bus: Bus,
    files: Files,
    clock: Clock,
    copier: Copier | None = None,
) -> JobState:
    """Give a job another number of tasks; the caller holds its ``DriverLock``.

    Args:
        root: the job's storage.
        job: its name.
        tasks: of each keyed stage, or of the one that is named.
        stage: its name; all when left out.
        bus: outputs of the last epoch may have to be published first.
        files: the file system.
        clock: time and names.
        copier: where epochs commit to this host's disk.

    Raises:
        InvalidInputError: no such job or stage, or a number that cannot be.
        NotOwnerError: a driver elsewhere took over meanwhile.
    """
    with reigning(root, job, bus, files, clock, copier) as (reign, publish):
        commit_rescale(reign, tasks, stage, clock, publish)
    return reign.state
