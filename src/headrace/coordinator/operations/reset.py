"""Sets back all parts of a job, or removes it with its internal streams.

1. A generation of every part is taken, so a command that freezes here is refused all that
follows once somebody else has done it. What the parts had committed is published. 2. A note in
the first part's storage says what is being done: a driver that finds it refuses to start. 3.
Each part is set back, senders first. 4. The internal streams are removed; readers begin at
offset 0 of new ones. 5. The note goes. A command that dies in between is followed by one that
does it all again.

Removal takes the storage, the copy of it, and in time the state on this host.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from headrace.bus import Bus, Fence
from headrace.config import Settings
from headrace.coordinator.catalog import load_catalog
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.inputs import release_pins
from headrace.coordinator.inspection.job_reader import JobReader
from headrace.coordinator.job_parts import UNFINISHED, group_state, made_folders
from headrace.coordinator.job_storage import STORAGES, JobContext
from headrace.coordinator.manifest import JobState
from headrace.coordinator.manifest_writer import fenced_writer, generation_of, take_fence
from headrace.coordinator.operations.rewind import chosen_state, commit_position
from headrace.coordinator.outputs import publish_outputs
from headrace.coordinator.worker_host import collect_garbage
from headrace.errors import CorruptDataError, HeadraceError, InvalidInputError, PartsError
from headrace.faults import fault
from headrace.fencing import FOLDER as FENCE
from headrace.fencing import FencedFiles
from headrace.files import TRASH, Files

NEWEST_EPOCH = 1 << 62


def own_inputs(state: JobState, reader: JobReader) -> JobState:
    """Return the state of a part without what other parts send it."""
    try:
        inputs = reader.catalog(state).own(state.inputs)
    except InvalidInputError:  # an older version ran it, which had no parts
        return state
    return msgspec.structs.replace(state, inputs=inputs)


def check_one_part(readers: Sequence[JobReader]) -> None:
    """Refuse to take back a job of several parts.

    Raises:
        PartsError: it has several.
    """
    if len(readers) > 1:
        job = readers[0].job
        raise PartsError(
            f'job {job!r} has {len(readers)} parts, joined by via="bus", each with epochs of its '
            "own: what one has sent and another has taken in cannot be taken back; start over "
            f"with: headrace jobs reset {job}",
            job=job,
        )


@contextmanager
def unfinished_note(files: FencedFiles, what: str) -> Iterator[None]:
    """Leave a note while a block does something to the parts of a job, one after the other.

    Args:
        files: of the process that has taken a generation of the first part.
        what: is being done.

    Raises:
        NotOwnerError: a newer driver has taken over, and may be at it itself.
    """
    files.replace(files.root / UNFINISHED, what.encode())
    yield
    files.remove(files.root / UNFINISHED)


def internal_streams_of(folders: Sequence[Path], files: Files) -> list[str]:
    """Return the internal streams that the parts in these storages send to."""
    found: set[str] = set()
    for folder in folders:
        try:
            catalog = load_catalog(folder, NEWEST_EPOCH, files)
        except CorruptDataError:  # of a job that is to go; the stream is left
            continue
        found.update(catalog.sends if catalog is not None else ())
    return sorted(found)


def remove_streams(names: Sequence[str], bus: Bus, fence: Fence | None) -> None:
    """Remove streams that are there.

    Raises:
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    for name in names:
        if name in bus.names():
            bus.remove(name, fence=fence)
            fault("parts.stream_removed")


def reset_parts(
    context: JobContext,
    readers: Mapping[Path, JobReader],
    choose: Callable[[JobState, JobReader], JobState],
    what: str = "reset",
) -> JobState:
    """Set back every part of a job; the caller holds the ``DriverLock`` of the first.

    Args:
        context: of the job.
        readers: of the parts, the first part's first, by the storage that epochs commit to.
        choose: makes the new state of a part.
        what: is being done; for one that finds it half done.

    Returns:
        The state since, of all parts together.

    Raises:
        InvalidInputError: a part has no epoch yet, or ``choose`` refuses.
        NotOwnerError: a driver elsewhere took over meanwhile.
    """
    streams = internal_streams_of(list(readers), context.files)
    group = generation_of(context, next(iter(readers)))
    with ExitStack() as held:
        taken = [
            (held.enter_context(fenced_writer(context, root, group)), reader)
            for root, reader in readers.items()
        ]
        for (_, publish), _ in taken:  # refused while nothing is half done
            publish()
        (first, _), _ = taken[0]
        if len(taken) > 1 or streams:
            held.enter_context(unfinished_note(first.files, what))
        states = []
        for (writer, publish), reader in taken:
            states.append(commit_position(writer, publish, partial(chosen_state, choose, reader)))
            fault("parts.set_back")
        remove_streams(streams, context.bus, first.fence)
    return group_state(states)


def storages_of(settings: Settings, job: str) -> list[Path]:
    """Return the storages of a job: here, then in job_dir, then of other parts."""
    found = (settings.state_dir / STORAGES / job, settings.jobs_dir / job)
    return [*(path for path in found if path.is_dir()), *made_folders(settings, job)]


def remove_job(context: JobContext, streams: Sequence[str] = ()) -> list[Path]:
    """Remove a job; the caller holds the ``DriverLock`` of each of its storages.

    1. A generation of each storage is taken, so a driver elsewhere is refused from here on, and so
    is one that freezes in here while another removes the job, or begins one of its name. 2. The
    outputs of its last epoch are published, as far as they can be read. Of several parts a note
    says that they go, and their internal streams do. 3. The manifests of each storage go, in one
    step, those of other parts and the copy first: without the other one, a job would step back to
    it. With the last ones the job is gone; if it dies before, one has to ask again. 4. All else
    goes, generations last. 5. The job releases streams that it holds, and ``streams`` go; the
    local state is marked, and goes ``state.keep_unused_s`` later.

    Args:
        context: of the job.
        streams: that are the job's own, and go too.

    Returns:
        The folders that are gone.

    Raises:
        NotOwnerError: another process has begun the job, or removes it.
    """
    settings, job, bus = context.settings, context.job, context.bus
    files, clock = context.files, context.clock
    found = storages_of(settings, job)
    logs = [FileCommitLog(path, files) for path in found]
    group = generation_of(context, settings.jobs_dir / job)
    fences = [
        take_fence(log, path.name, bus, clock, group) for log, path in zip(logs, found, strict=True)
    ]
    newest = {fence.job: fence for fence in fences}  # of here, and of the copy
    for log in logs:
        _publish_last(log, bus, newest[log.files.root.name])
    fault("delete.published")
    inner = internal_streams_of(found, files)
    if inner:
        first = next(log for log in logs if log.files.root == settings.jobs_dir / job)
        first.files.replace(first.files.root / UNFINISHED, b"delete")
        remove_streams(inner, bus, newest.get(job))
    for log in reversed(logs):
        log.files.remove_tree(log.files.root / "manifests")
        fault("delete.renamed")
    fault("delete.gone")
    for log in reversed(logs):
        _remove_rest(log.files)
    for path in found:
        release_pins(bus, path.name, newest[path.name])
    remove_streams(streams, bus, newest.get(job))
    for folder in {path.parent for path in found}:
        for path in folder.glob(f"{TRASH}*"):  # of removals by former versions that died
            shutil.rmtree(path, ignore_errors=True)
    collect_garbage(settings.state_dir, files, clock, settings.state.keep_unused_s)
    return found


def _remove_rest(files: FencedFiles) -> None:
    """Remove what is left of a storage that has no manifests any more, and the folder itself."""
    last = ["generations", "driver.lock"]
    names = sorted(
        os.listdir(files.root), key=lambda name: last.index(name) if name in last else -1
    )
    for name in names:
        path = files.root / name
        if name == FENCE:
            continue
        if path.is_dir():
            files.remove_tree(path)
        else:
            files.remove(path)
    files.leave()
    for folder in (files.root / FENCE, files.root):
        with suppress(OSError):  # somebody has begun a job of that name
            folder.rmdir()


def _publish_last(log: FileCommitLog, bus: Bus, fence: Fence) -> None:
    try:
        state = load_state(log)
        if state is not None and not state.copy_of:
            publish_outputs(state, bus, log.files.root, fence)
    except (HeadraceError, OSError):  # what cannot be read any more is no reason to keep the rest
        return
