"""Finds an epoch of each part of a job, so that together they are one state of the job.

A driver is asked for its last epoch once all that it sent is out; of a stopped job that is brought
out here. Parts are asked readers first: what a reader has taken in, its sender had sent before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.catalog import Catalog
from headrace.coordinator.changes.requests import CutRequest, cuts
from headrace.coordinator.changes.stopped import reigning
from headrace.coordinator.history import load_state
from headrace.coordinator.inspection.inspection import JobReader
from headrace.coordinator.manifest import JobState
from headrace.errors import InvalidInputError
from headrace.files import Files

Ends = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Cut:
    """An epoch of one part.

    Args:
        root: the part's storage.
        state: after the epoch.
        catalog: what its stores hold.
        ends: of each internal stream that it sends to, where the rows of the epoch end.
    """

    root: Path
    state: JobState
    catalog: Catalog
    ends: Ends


Cutting = Callable[[JobReader], Cut | None]
"""Finds an epoch of a part; ``None``: look again, for it is none that can be used."""


def asked(files: Files, clock: Clock, wait_s: float) -> Cutting:
    """Return what asks the driver of each part.

    Args:
        files: the file system.
        clock: for names and waiting.
        wait_s: how long the driver of a part may take to answer.
    """

    def cut(reader: JobReader) -> Cut | None:
        host, now = os.uname().nodename, clock.now_ms()
        request = CutRequest(clock.new_id(), os.getpid(), host, now)
        answer = cuts(reader.root, files, clock).ask(request, wait_s)
        if reader.is_half(answer.epoch):  # the other half is the next epoch
            return None
        state = load_state(reader.log, answer.epoch)  # though it may not be kept any more by now
        if state is None or state.epoch != answer.epoch:
            return None
        return Cut(reader.root, state, reader.catalog(state), answer.ends)

    return cut


def stopped(bus: Bus, files: Files, clock: Clock, copier: Copier | None = None) -> Cutting:
    """Return what looks at each part of a job that nobody drives.

    The caller holds the ``DriverLock`` of the first part.

    Args:
        bus: outputs of the last epoch may have to be published first.
        files: the file system.
        clock: time and names.
        copier: where epochs commit to this host's disk.
    """

    def cut(reader: JobReader) -> Cut:
        newest = reader.state()
        if reader.is_half(newest.epoch):
            raise InvalidInputError(
                f"the last epoch of job {reader.job!r}, {newest.epoch}, is the first half of a "
                "commit, in which state and offsets do not belong together; start the job, which "
                "goes on from it, and try again",
                job=reader.job,
            )
        catalog = reader.catalog(newest)
        with reigning(reader.root, reader.job, bus, files, clock, copier) as (reign, publish):
            publish()
            ends = {name: bus.stream(name).ends() for name in catalog.sends}
            return Cut(reader.root, reign.state, catalog, ends)

    return cut


def cut_of_parts(readers: Sequence[JobReader], cutting: Cutting, tries: int) -> list[Cut]:
    """Return an epoch of each part of a job, in the order given, that belong together.

    Args:
        readers: of the parts.
        cutting: finds an epoch of one.
        tries: how often to look at a part.

    Raises:
        InvalidInputError: the job has ended, or a part of it; or it has not begun since a reset.
    """
    found: dict[str, Cut] = {}
    for reader in _readers_first(readers):
        looks = (cutting(reader) for _ in range(tries))
        cut = next((one for one in looks if one is not None), None)
        if cut is None:
            raise InvalidInputError(
                f"job {reader.job!r} commits no epoch with state and offsets together; see "
                "state_semantics",
                job=reader.job,
            )
        _check(cut.state)
        found[reader.job] = cut
    return [found[reader.job] for reader in readers]


def _readers_first(readers: Sequence[JobReader]) -> list[JobReader]:
    if len(readers) == 1:
        return list(readers)
    catalogs = {reader: reader.catalog(reader.state()) for reader in readers}
    takes = {
        reader: {catalog.inputs[name] for name in catalog.feeds}
        for reader, catalog in catalogs.items()
    }
    after = {
        sender: {reader for reader in readers if takes[reader] & set(catalog.sends)}
        for sender, catalog in catalogs.items()
    }
    return list(TopologicalSorter(after).static_order())


def _check(state: JobState) -> None:
    if state.ended:
        raise InvalidInputError(
            f"job {state.job!r} has ended with epoch {state.epoch}: all its windows are closed, "
            "and nothing could go on from there",
            job=state.job,
        )
    if not state.fingerprint:
        raise InvalidInputError(
            f"job {state.job!r} was reset and not started since; there is no state to save",
            job=state.job,
        )
