"""Sets back all parts of a job, whose internal streams begin anew with them.

1. A note in the first part's storage says what is being done: a driver that finds it refuses to
start. 2. Each part is set back, senders first, once what it had committed is published. 3. The
internal streams are removed; readers begin at offset 0 of new ones. 4. The note goes. Whoever
dies in between is followed by one that does it all again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.catalog import load_catalog
from headrace.coordinator.changes.rewinding import set_back
from headrace.coordinator.inspection.inspection import JobReader
from headrace.coordinator.joined import joined_state
from headrace.coordinator.manifest import JobState
from headrace.coordinator.parts import UNFINISHED
from headrace.errors import CorruptDataError, InvalidInputError, PartsError
from headrace.faults import fault
from headrace.files import Files

NEWEST = 1 << 62


def own_inputs(state: JobState, reader: JobReader) -> JobState:
    """Return the state of a part without what other parts send it."""
    try:
        feeds = reader.catalog(state).feeds
    except InvalidInputError:  # an older version ran it, which had no parts
        return state
    inputs = {name: held for name, held in state.inputs.items() if name not in feeds}
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
            "own: what one has sent and another has taken in cannot be taken back; begin anew "
            f"with: headrace jobs reset {job}",
            job=job,
        )


@contextmanager
def unfinished(root: Path, what: str, files: Files, clock: Clock) -> Iterator[None]:
    """Leave a note while a block does something to the parts of a job, one after the other."""
    files.replace(root / UNFINISHED, what.encode(), clock.new_id())
    yield
    files.remove(root / UNFINISHED)


def inner_streams(folders: Sequence[Path], files: Files) -> list[str]:
    """Return the internal streams that the parts in these storages send to."""
    found: set[str] = set()
    for folder in folders:
        try:
            catalog = load_catalog(folder, NEWEST, files)
        except CorruptDataError:  # of a job that is to go; the stream is left
            continue
        found.update(catalog.sends if catalog is not None else ())
    return sorted(found)


def remove_streams(names: Sequence[str], bus: Bus) -> None:
    """Remove streams that are there."""
    for name in names:
        if name in bus.names():
            bus.remove(name)
            fault("parts.stream_removed")


def reset_parts(
    readers: Mapping[Path, JobReader],
    choose: Callable[[JobState, JobReader], JobState],
    *,
    bus: Bus,
    files: Files,
    clock: Clock,
    copier: Copier | None = None,
    what: str = "reset",
) -> JobState:
    """Set back every part of a job; the caller holds the ``DriverLock`` of the first.

    Args:
        readers: of the parts, the first part's first, by the storage that epochs commit to.
        choose: makes the new state of a part.
        bus: the streams.
        files: the file system.
        clock: time and names.
        copier: of a job with one part, where epochs commit to this host's disk.
        what: is being done; for whoever finds it half done.

    Returns:
        The state since, of all parts together.

    Raises:
        InvalidInputError: a part has no epoch yet, or ``choose`` refuses.
        NotOwnerError: a driver elsewhere took over meanwhile.
    """

    def one(root: Path, reader: JobReader) -> JobState:
        state = set_back(
            root,
            reader.job,
            lambda before: choose(before, reader),
            bus=bus,
            files=files,
            clock=clock,
            copier=copier,
        )
        fault("parts.set_back")
        return state

    roots = list(readers)
    streams = inner_streams(roots, files)
    if len(roots) == 1 and not streams:
        return one(roots[0], readers[roots[0]])
    with unfinished(roots[0], what, files, clock):
        states = [one(root, reader) for root, reader in readers.items()]
        remove_streams(streams, bus)
    return joined_state(states)
