"""Bounded inputs of a run: fixed when it begins, the same until it is over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock, SystemClock
from headrace.config import Settings
from headrace.coordinator.backup.places import places
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.files import Files
from headrace.graph.operators import JobGraph
from headrace.sources.listing import load_listing, save_listing
from headrace.sources.sourced import SourcedBus, fix, plain


def sourced_bus(graph: JobGraph, bus: Bus, settings: Settings, files: Files, clock: Clock) -> Bus:
    """Return the bus as the run of a job is to have it, with what stands for its inputs.

    Call before the job is planned, and after its next run has begun, if it is to begin one.

    Args:
        graph: of the job.
        bus: the streams.
        settings: of the run.
        files: the file system.
        clock: for names.

    Raises:
        InvalidInputError: an input cannot be what the settings say, or is another than that which
            the run began with.
    """
    where = places(settings, graph.name)
    shared = where.copy or where.storage  # what the next host finds, should this one be lost
    if not settings.inputs and not load_listing(shared):
        return plain(bus)
    found = SourcedBus(plain(bus))
    has_state = _has_state(where.readable)
    fix(graph, found, settings, shared, files, clock, has_state=has_state)
    return found


def _has_state(root: Path) -> bool:
    """Say whether a run has begun that is not over; after a reset there is none."""
    if not (root / "manifests").exists():
        return False
    state = load_state(FileCommitLog(root, Files(sync=False), SystemClock()))
    return state is not None and bool(state.fingerprint)


def tell_parts(bus: Bus, storages: Iterable[Path], files: Files, clock: Clock) -> None:
    """Let the slots of all parts find what stands for streams."""
    if isinstance(bus, SourcedBus):
        for storage in storages:
            save_listing(storage, bus.sources, files, clock.new_id())
