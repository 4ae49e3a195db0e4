"""Runs of a bounded job: each explicit start after the end of one begins the next (seed 004).

A run is known by its number, which the manifest holds. 1. What the last run sent is published.
2. Of each part, a base manifest begins the next run: without state, at the begin of its inputs.
3. Internal streams are removed; files of the last run are swept by the first epochs of the next.

A driver that dies, at whichever step, is followed by one that goes on with the same run. So that
a start after the last commit is told from one after the end, the driver notes that it got there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.backup.places import newest_of, places
from headrace.coordinator.catalog import load_catalog
from headrace.coordinator.changes.resetting import NEWEST, reset_parts
from headrace.coordinator.changes.rewinding import emptied
from headrace.coordinator.deploy import open_copier
from headrace.coordinator.inspection.inspection import JobReader
from headrace.coordinator.inspection.part_readers import other_parts
from headrace.coordinator.manifest import JobState
from headrace.coordinator.parts import RUN, UNFINISHED
from headrace.coordinator.reprocessing.unmerged import check_merged
from headrace.faults import fault
from headrace.files import Files

CONCLUDED = "concluded"
"""A file in a job's storage with the lineage of the last run whose driver saw its end.

Not its number: a run that is rewound ends once more, under another lineage.
"""


def begin_run(
    settings: Settings,
    job: str,
    bus: Bus,
    files: Files,
    clock: Clock,
    check: Callable[[], None] | None = None,
) -> JobState | None:
    """Begin the next run of a bounded job, if its last one is over.

    Call before the job is planned, for a job without state is planned like a new one. The caller
    holds the ``DriverLock``.

    Args:
        settings: of the run; with ``job.replace_outputs`` the output streams begin anew.
        job: its name.
        bus: the streams.
        files: the file system.
        clock: time and names.
        check: refuses a run that could not go on, before anything of the last one goes.

    Returns:
        The state that the run begins with; ``None`` where there was none to begin: the job is
        new, or in the middle of a run.

    Raises:
        NotOwnerError: a driver elsewhere runs the job.
        InvalidInputError: a sink has not confirmed the end of the last run, or a merge of its
            results was begun and is not complete; what ``check`` raises.
    """
    readers = _readers(settings, job, clock)
    if readers is None:
        return None
    root = next(iter(readers))
    states = [reader.state() for reader in readers.values()]
    if not _is_broken_off(root, files) and not _is_over(root, states, files):
        if settings.job.replace_outputs and not any(state.fingerprint for state in states):
            _empty_outputs(readers, bus, files)  # a reset began the run, which has sent nothing
        return None
    check_merged(settings, job, clock)
    if check is not None:
        check()
    number = max(state.run + state.ended for state in states)
    if settings.job.replace_outputs:
        _empty_outputs(readers, bus, files)
        fault("run.outputs_emptied")

    def fresh(state: JobState, reader: JobReader) -> JobState:
        del reader
        return msgspec.structs.replace(emptied(state, {}, clock.new_id()), run=number)

    copier = open_copier(settings, job, clock, files)
    return reset_parts(readers, fresh, bus=bus, files=files, clock=clock, copier=copier, what=RUN)


def conclude(root: Path, state: JobState, files: Files, clock: Clock) -> None:
    """Note that a driver has seen the end of a run; the next explicit start begins another."""
    if state.ended and _concluded(root, files) != state.lineage:
        files.replace(root / CONCLUDED, state.lineage.encode(), clock.new_id())


def _readers(settings: Settings, job: str, clock: Clock) -> dict[Path, JobReader] | None:
    newest = newest_of(settings, job)
    if not any((newest / "manifests").glob("[0-9]*.json")):
        return None
    files = Files(sync=False)
    others = other_parts(settings, job, clock)
    first = JobReader(newest, job, files, clock)
    return {places(settings, job).storage: first} | {one.root: one for one in others}


def _is_broken_off(root: Path, files: Files) -> bool:
    note = root / UNFINISHED
    return note.exists() and files.read(note) == RUN.encode()


def _is_over(root: Path, states: Sequence[JobState], files: Files) -> bool:
    return all(state.ended for state in states) and _concluded(root, files) == states[0].lineage


def _concluded(root: Path, files: Files) -> str:
    path = root / CONCLUDED
    return files.read(path).decode() if path.exists() else ""


def _empty_outputs(readers: Mapping[Path, JobReader], bus: Bus, files: Files) -> None:
    """Drop the rows of all streams that the job sends to."""
    catalogs = [load_catalog(root, NEWEST, files) for root in readers]
    names = {name for one in catalogs if one is not None for name in one.outputs}
    for name in sorted(names & set(bus.names())):
        stream = bus.stream(name)
        for partition, end in enumerate(stream.ends()):
            stream.trim(partition, end)
