"""Runs of a bounded job: inputs fixed from begin to end, each explicit start the next run.

A run is known by its number, which the manifest holds. 1. What the last run sent is published.
2. Of each part, a base manifest begins the next run: without state, at the begin of its inputs.
3. Internal streams are removed; files of the last run are swept by the first epochs of the next.

A driver that dies, at whichever step, is followed by one that continues the same run. So that
a start after the last commit differs from one after the end, the driver notes that it got there
(seed 004).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from headrace.bus import Bus
from headrace.config import Settings
from headrace.coordinator.catalog import load_catalog
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.hooks import JobHook
from headrace.coordinator.inspection.job_reader import JobReader, part_readers
from headrace.coordinator.job_parts import RUN, UNFINISHED
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.manifest import JobState
from headrace.coordinator.manifest_writer import take_fence
from headrace.coordinator.operations.paired_jobs import check_no_merge
from headrace.coordinator.operations.reset import NEWEST_EPOCH, reset_parts
from headrace.coordinator.operations.rewind import without_state
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.operators import JobGraph
from headrace.plan.stages import job_of
from headrace.sources.bounded_bus import (
    BoundedInputBus,
    check_bounded_inputs,
    matched_sources,
    resolve_inputs,
    underlying_bus,
)
from headrace.sources.listing import BoundedSource, load_listing
from headrace.sources.wanted_inputs import input_settings


def bounded_bus(
    graph: JobGraph, context: JobContext, frames: Mapping[str, BoundedSource] | None = None
) -> Bus:
    """Return the bus as the run of a job is to have it, with what stands for its inputs.

    Call before the job is planned, and after its next run has begun, if it is to begin one.

    Args:
        graph: of the job.
        context: of the job.
        frames: rows of DataFrames that the run has in files, by their internal streams.

    Raises:
        InvalidInputError: an input cannot be what the settings say, or is another than that which
            the run began with.
    """
    settings, bus, where = context.settings, context.bus, context.storages
    shared = where.copy or where.storage  # what the next host finds, should this one be lost
    if not frames and not input_settings(graph, settings) and not load_listing(shared):
        return underlying_bus(bus)
    found = BoundedInputBus(underlying_bus(bus))
    has_state = _has_state(where.readable)
    files = context.files
    resolve_inputs(graph, found, settings, shared, files, has_state=has_state, frames=frames)
    if any(one.pattern for one in found.sources.values()):
        found.follow(partial(matched_sources, graph, settings), context.clock)
    return found


def _has_state(root: Path) -> bool:
    """Say whether a run has begun that is not over; after a reset there is none."""
    if not Files(sync=False).exists(root / "manifests"):
        return False
    state = load_state(FileCommitLog(root, Files(sync=False)))
    return state is not None and bool(state.fingerprint)


CONCLUDED_FILE = "concluded"
"""A file in a job's storage with the lineage of the last run whose driver saw its end.

Not its number: a run that is rewound ends once more, under another lineage.
"""


def begin_bounded_run(
    context: JobContext, check: Callable[[], None] | None = None
) -> JobState | None:
    """Begin the next run of a bounded job, if its last one is over.

    Call before the job is planned, for a job without state is planned like a new one. The caller
    holds the ``DriverLock``.

    Args:
        context: of the job; with ``job.replace_outputs`` the output streams start over.
        check: refuses a run that could not continue, before anything of the last one goes.

    Returns:
        The state that the run begins with; ``None`` where there was none to begin: the job is
        new, or in the middle of a run.

    Raises:
        NotOwnerError: a driver elsewhere runs the job.
        InvalidInputError: a sink has not confirmed the end of the last run, or a merge of its
            results was begun and is not complete; what ``check`` raises.
    """
    settings, job, files, clock = context.settings, context.job, context.files, context.clock
    readers = _readers(context)
    if readers is None:
        return None
    root = next(iter(readers))
    states = [reader.state() for reader in readers.values()]
    if not _is_broken_off(root, files) and not _is_over(root, states, files):
        if settings.job.replace_outputs and not any(state.fingerprint for state in states):
            # A reset began the run, which has sent nothing.
            _empty_outputs(context, readers)
        return None
    check_no_merge(settings, job)
    if check is not None:
        check()
    number = max(state.run + state.ended for state in states)
    if settings.job.replace_outputs:
        _empty_outputs(context, readers)
        fault("run.outputs_emptied")

    seen = {state.job: state.lineage for state in states}

    def fresh(state: JobState, reader: JobReader) -> JobState:
        if state.lineage != seen[state.job]:
            raise NotOwnerError(
                f"another process has begun run {state.run} of job {reader.job!r} meanwhile; look "
                "who drives it: headrace jobs ls",
                job=job,
            )
        return msgspec.structs.replace(without_state(state, {}, clock.new_id()), run=number)

    return reset_parts(context, readers, fresh, RUN)


def begin_run(graph: JobGraph, context: JobContext) -> JobState | None:
    """Begin the next run of a job that is to end, once it is known that it could be run.

    Call before the job is planned; see ``begin_bounded_run``.

    Args:
        graph: of the job.
        context: of the job.

    Returns:
        The state that the run begins with; ``None`` where there was none to begin.
    """
    if not context.settings.job.bounded:
        return None
    check = partial(check_bounded_inputs, graph, underlying_bus(context.bus), context.settings)
    return begin_bounded_run(context, check)


class BoundedRun(JobHook):
    """A run that reads its inputs up to where they ended when it began."""

    def begun(self, end_inputs: Callable[[], None]) -> None:
        """Fix the end of the inputs, which a driver before may have done."""
        end_inputs()


def bounded_run_hooks(settings: Settings) -> tuple[JobHook, ...]:
    """Return what lets a run end; nothing where it follows its inputs."""
    return (BoundedRun(),) if settings.job.bounded else ()


def check_end(state: JobState, settings: Settings) -> None:
    """Refuse to follow the inputs of a run that was given an end and has not reached it.

    Raises:
        InvalidInputError: the settings do not let the run end.
    """
    if state.until is not None and not state.ended and not settings.job.bounded:
        raise InvalidInputError(
            f"job {job_of(state.job)!r} is in the middle of a bounded run, whose inputs end where "
            "they did at its start; complete it with --bounded, or follow the inputs under another "
            "name",
            job=state.job,
        )


def conclude_bounded_run(root: Path, state: JobState, files: Files) -> None:
    """Note that a driver has seen the end of a run; the next explicit start begins another."""
    if state.ended and _concluded(root, files) != state.lineage:
        fault("run.conclude_due")
        files.replace(root / CONCLUDED_FILE, state.lineage.encode())


def is_concluded(root: Path, lineage: str) -> bool:
    """Say whether a driver has seen the end of a run; a start after that is the next run."""
    return bool(lineage) and _concluded(root, Files(sync=False)) == lineage


def _readers(context: JobContext) -> dict[Path, JobReader] | None:
    if not context.files.names(context.newest / "manifests"):
        return None
    first, *others = part_readers(context.settings, context.job)
    return {context.storage: first} | {one.root: one for one in others}


def _is_broken_off(root: Path, files: Files) -> bool:
    note = root / UNFINISHED
    return files.exists(note) and files.read(note) == RUN.encode()


def _is_over(root: Path, states: Sequence[JobState], files: Files) -> bool:
    return all(state.ended for state in states) and _concluded(root, files) == states[0].lineage


def _concluded(root: Path, files: Files) -> str:
    path = root / CONCLUDED_FILE
    return files.read(path).decode() if files.exists(path) else ""


def _empty_outputs(context: JobContext, readers: Mapping[Path, JobReader]) -> None:
    """Drop the rows of all streams that the job sends to."""
    bus, files = context.bus, context.files
    log = FileCommitLog(next(iter(readers)), files)
    fence = take_fence(log, context.job, bus, context.clock)
    catalogs = [load_catalog(root, NEWEST_EPOCH, files) for root in readers]
    names = {name for one in catalogs if one is not None for name in one.outputs}
    for name in sorted(names & set(bus.names())):
        stream = bus.stream(name)
        for partition, end in enumerate(stream.ends()):
            fault("run.empty_due")
            stream.trim(partition, end, fence=fence)
