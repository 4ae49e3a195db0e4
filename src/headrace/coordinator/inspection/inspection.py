"""Committed state read straight from the files that the manifests name.

Needs neither the job's code nor its local stores, and takes nothing from a driver that runs
meanwhile. Any epoch that is still kept can be read. ``store_view`` is one store of one epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headrace.clock import Clock
from headrace.coordinator.catalog import Catalog, StoreEntry, load_catalog
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.inspection.store_view import StoreView
from headrace.coordinator.inspection.table_view import TableView
from headrace.coordinator.manifest import JobState, decode_manifest
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.graph.operators import COLUMNAR
from headrace.records.keys import group_range
from headrace.state.merged import MergedEntries, Source
from headrace.state.segment_reader import SegmentReader

TRIES = 20


class Kept(NamedTuple):
    """The epochs that can be read, first and last."""

    oldest: int
    newest: int


class JobReader:
    """One job's committed epochs, while a driver runs or not.

    Args:
        root: the job's storage.
        job: its name.
        files: the file system.
        clock: for the commit log.

    Raises:
        InvalidInputError: there is no such job; names those that are there.
    """

    def __init__(self, root: Path, job: str, files: Files, clock: Clock) -> None:
        if not files.names(root / "manifests"):
            raise InvalidInputError(
                f"no committed epoch of job {job!r} in {root.parent}; {_move(root, files)}", job=job
            )
        self.root, self.job, self._files = root, job, files
        self.log = FileCommitLog(root, files, clock)

    def kept(self, newest: JobState | None = None) -> Kept:
        """Return which epochs can be read now; without the newest state it is read, too."""
        state = newest or self._newest()
        return Kept(max(state.kept_from, self.log.epochs()[0]), state.epoch)

    def _newest(self) -> JobState:
        state = load_state(self.log)
        if state is None:
            raise CorruptDataError(f"job {self.job!r} has no manifest", job=self.job)
        return state

    def state(self, epoch: int | None = None) -> JobState:
        """Return the job's state after an epoch.

        Args:
            epoch: its number; the newest when left out, below zero counted back from it.

        Raises:
            InvalidInputError: it is not kept any more, or not yet committed.
        """
        if epoch is None:
            return self._newest()
        kept = self.kept()
        wanted = kept.newest + epoch if epoch < 0 else epoch
        if wanted > kept.newest:
            raise InvalidInputError(
                f"epoch {wanted} of job {self.job!r} is not committed; the newest is {kept.newest}"
            )
        if wanted < kept.oldest:
            raise InvalidInputError(
                f"epoch {wanted} of job {self.job!r} is no longer kept; the oldest that is kept is "
                f"{kept.oldest}, the newest {kept.newest}: state.keep_epochs says how many are"
            )
        state = load_state(self.log, wanted)
        if state is None or state.epoch != wanted:
            return self.state(epoch)  # pruned since: say so
        return state

    def is_half(self, epoch: int) -> bool:
        """Say whether an epoch holds state without its offsets, or offsets without their state."""
        return decode_manifest(self.log.read(epoch), f"of epoch {epoch}")[0].is_half

    def catalog(self, state: JobState) -> Catalog:
        """Return what the stores hold as of an epoch.

        Raises:
            InvalidInputError: no driver has written it yet.
        """
        found = load_catalog(self.root, state.generation, self._files)
        if found is None:
            raise InvalidInputError(
                f"job {self.job!r} does not say what its stores hold: an older version ran it; "
                "start it once with this one",
                job=self.job,
            )
        return found

    def entry(self, state: JobState, store: str) -> StoreEntry:
        """Return what a store holds; by its name, or the end of it where that is enough.

        Raises:
            InvalidInputError: no such store; names those that are there.
        """
        stores = self.catalog(state).stores
        exact = [one for one in stores if one.name == store]
        found = exact or [one for one in stores if one.name.endswith(f".{store}")]
        if len(found) != 1:
            names = ", ".join(one.name for one in (found or stores)) or "none"
            raise InvalidInputError(
                f"job {self.job!r} has {'several stores' if found else 'no store'} {store!r}; "
                f"it has {names}",
                job=self.job,
            )
        return found[0]

    def view(self, store: str, epoch: int | None = None, *, partials: bool = False) -> StoreView:
        """Return a store as of an epoch, with all of its files open.

        A driver may sweep files between the look at the manifests and the opening; then the
        manifests are looked at again. Once open, files stay readable.

        Args:
            store: its name.
            epoch: see ``state``.
            partials: show the partial columns of aggregates, too.

        Raises:
            InvalidInputError: no such store, or the epoch is no longer kept.
            CorruptDataError: a file that is still needed is damaged or missing.
        """
        for _ in range(TRIES):
            state = self.state(epoch)
            entry = self.entry(state, store)
            try:
                sources = open_sources(state, self.root, self._files, entry.stage)
            except CorruptDataError:
                if state.epoch >= self.kept().oldest:
                    raise
                continue
            kind = TableView if entry.kind == COLUMNAR else StoreView
            now_ms = state.watermarks.get(entry.stage, 0) if entry.by_event else state.time_ms
            return kind(entry, now_ms, state.epoch, state.key_groups, sources, partials=partials)
        raise UnavailableError(
            f"job {self.job!r} swept its files {TRIES} times before they could be opened; raise "
            "state.keep_epochs",
            job=self.job,
        )


def _move(root: Path, files: Files) -> str:
    """What to do where a job has no manifest."""
    if (root / "logs").is_dir():
        return "it was started and has not committed its first one yet: try again in a moment"
    near = root.parent
    jobs = [name for name in files.names(near) if (near / name / "manifests").is_dir()]
    known = f"found {', '.join(jobs)}" if jobs else "there are no jobs yet"
    return f"{known}: check the name and --home"


def open_sources(
    state: JobState, root: Path, files: Files, stage: str | None = None
) -> list[Source]:
    """Return the files of a stage's tasks, or of all, in the order in which they count.

    Raises:
        CorruptDataError: one is damaged or missing.
    """
    readers: dict[str, SegmentReader] = {}
    sources = []
    for name, task in state.tasks.items():
        of, _, number = name.rpartition("/")
        if stage not in (None, of):
            continue
        own = group_range(int(number), state.task_counts[of], state.key_groups)
        for ref in task.files:
            if ref.path not in readers:
                readers[ref.path] = SegmentReader(files, root / ref.path, ref.checksum)
            sources.append(Source(readers[ref.path], ref.groups or own, of))
    return sources


def committed_entries(state: JobState, root: Path, store: str, files: Files) -> dict[bytes, bytes]:
    """Return the entries of a store by full key (two bytes of key group, then the key).

    Args:
        state: which epoch.
        root: the job's storage.
        store: its name.
        files: the file system.

    Raises:
        CorruptDataError: a segment is damaged or missing.
    """
    entries: dict[bytes, bytes] = {}
    for keys, values in MergedEntries(store, open_sources(state, root, files)).batches():
        entries.update(zip(keys, values, strict=True))
    return entries
