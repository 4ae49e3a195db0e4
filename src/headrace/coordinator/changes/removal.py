"""Removes a job for good: its storage, the copy of it, and in time the state on this host."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.backup.places import STORAGES
from headrace.coordinator.changes.resetting import inner_streams, remove_streams
from headrace.coordinator.collector import TRASH, collect
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.holding import release_all
from headrace.coordinator.parts import UNFINISHED, made_folders
from headrace.coordinator.publishing import publish_outputs
from headrace.errors import HeadraceError
from headrace.faults import fault
from headrace.files import Files


def storages_of(settings: Settings, job: str) -> list[Path]:
    """Return the folders that hold epochs of a job: here, then in job_dir, then of other parts."""
    found = (settings.state_dir / STORAGES / job, settings.jobs_dir / job)
    return [*(path for path in found if path.is_dir()), *made_folders(settings, job)]


def remove_job(settings: Settings, job: str, bus: Bus, files: Files, clock: Clock) -> list[Path]:
    """Remove a job; the caller holds the ``DriverLock`` of each of its storages.

    1. The outputs of its last epoch are published, as far as they can be read. Of several parts
    a note says that they go, and their internal streams do. 2. Each storage takes another name,
    those of other parts and the copy first: without the other one, a job would step back to it.
    When the last one has its new name the job is gone; whoever dies before that has to ask
    again. 3. What has that name is removed, with what earlier removals left when they died.
    4. The job lets go of streams that it holds; the local state is marked, and goes
    ``state.keep_unused_s`` later.

    Args:
        settings: where everything is.
        job: its name.
        bus: where outputs go.
        files: the file system.
        clock: for names.

    Returns:
        The folders that are gone.
    """
    found = storages_of(settings, job)
    for path in found:
        _publish_last(path, bus, files, clock)
    fault("delete.published")
    inner = inner_streams(found, files)
    if inner:
        files.replace(settings.jobs_dir / job / UNFINISHED, b"delete", clock.new_id())
        remove_streams(inner, bus)
    for path in reversed(found):
        path.rename(path.with_name(f"{TRASH}{clock.new_id()}"))
        fault("delete.renamed")
    fault("delete.gone")
    for path in found:
        release_all(bus, path.name)
    for folder in {path.parent for path in found}:
        for path in folder.glob(f"{TRASH}*"):
            shutil.rmtree(path, ignore_errors=True)
    collect(settings.state_dir, files, clock, settings.state.keep_unused_s)
    return found


def _publish_last(storage: Path, bus: Bus, files: Files, clock: Clock) -> None:
    try:
        state = load_state(FileCommitLog(storage, files, clock))
        if state is not None and not state.copy_of:
            publish_outputs(state, bus, storage)
    except (HeadraceError, OSError):  # what cannot be read any more is no reason to keep the rest
        return
