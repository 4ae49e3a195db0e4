"""Committed state of a job and its parts, read straight from the files that manifests name.

Needs neither the job's code nor its local stores, and takes nothing from a driver that runs
meanwhile. Any epoch that is still kept can be read. ``store_view`` is one store of one epoch;
``state_figures`` is what a job's files cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.config import Settings
from headrace.coordinator.catalog import Catalog, StoreEntry, load_catalog
from headrace.coordinator.commit_log import CommitLog, FileCommitLog, load_state, retained_states
from headrace.coordinator.inspection.store_view import StoreView, TableView
from headrace.coordinator.job_parts import part_folders
from headrace.coordinator.job_storage import check_job_name, newest_storage
from headrace.coordinator.manifest import (
    JobState,
    decode_manifest,
    next_compaction,
    snapshot_reason,
    state_bytes,
)
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.graph.operators import COLUMNAR
from headrace.records.keys import group_range
from headrace.runtime.orders import NO_WATERMARK
from headrace.state.compaction import MergedEntries, MergedTable, SegmentRange
from headrace.state.compaction_policy import CostModel
from headrace.state.segment import SegmentReader

TRIES = 20


class RetainedEpochs(NamedTuple):
    """The epochs that can be read, first and last."""

    oldest: int
    newest: int


class JobReader:
    """One job's committed epochs, while a driver runs or not.

    Args:
        root: the job's storage.
        job: its name.
        files: the file system.

    Raises:
        InvalidInputError: there is no such job; names those that are there.
    """

    def __init__(self, root: Path, job: str, files: Files) -> None:
        if not files.names(root / "manifests"):
            raise InvalidInputError(
                f"no committed epoch of job {job!r} in {root.parent}; {_move(root, files)}", job=job
            )
        self.root, self.job, self._files = root, job, files
        self.log = FileCommitLog(root, files)

    def kept(self, newest: JobState | None = None) -> RetainedEpochs:
        """Return which epochs can be read now; without the newest state it is read, too."""
        state = newest or self._newest()
        return RetainedEpochs(max(state.kept_from, self.log.epochs()[0]), state.epoch)

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
            InvalidInputError: no such store; names the existing ones.
        """
        stores = [(self, one) for one in self.catalog(state).stores]
        return _named(stores, store, self.job)[1]

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
            now_ms = state.time_ms
            if entry.by_event:
                now_ms = state.watermarks.get(entry.stage, NO_WATERMARK)
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
    jobs = [name for name in files.names(near) if files.exists(near / name / "manifests")]
    known = f"found {', '.join(jobs)}" if jobs else "there are no jobs yet"
    return f"{known}: check the name and --home"


def open_sources(
    state: JobState,
    root: Path,
    files: Files,
    stage: str | None = None,
    readers: dict[str, SegmentReader] | None = None,
) -> list[SegmentRange]:
    """Return the files of a stage's tasks, or of all, in the order in which they count.

    Args:
        state: which epoch.
        root: the job's storage.
        files: the file system.
        stage: of which tasks; ``None``: of all.
        readers: files that are open, by path; those that are opened are added.

    Raises:
        CorruptDataError: one is damaged or missing.
    """
    readers = {} if readers is None else readers
    sources = []
    for name, task in state.tasks.items():
        of, _, number = name.rpartition("/")
        if stage not in (None, of):
            continue
        own = group_range(int(number), state.task_counts[of], state.key_groups)
        for ref in task.files:
            if ref.path not in readers:
                readers[ref.path] = SegmentReader(files, root / ref.path, ref.checksum)
            sources.append(SegmentRange(readers[ref.path], ref.groups or own, of))
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


def part_readers(settings: Settings, job: str) -> list[JobReader]:
    """Return the readers of a job's parts, the first part's first; most jobs have one.

    Raises:
        InvalidInputError: there is no such job; names those that are there.
    """
    root = newest_storage(settings, check_job_name(job))
    return [
        JobReader(root, job, Files(sync=False)),
        *readers_of_other_parts(settings, job),
    ]


def readers_of_other_parts(settings: Settings, job: str) -> list[JobReader]:
    """Return the readers of the parts of a job but for the first."""
    folders = part_folders(settings, job)
    return [JobReader(folder, folder.name, Files(sync=False)) for folder in folders]


def reader_of(readers: Sequence[JobReader], store: str) -> JobReader:
    """Return the reader of the part that has a store.

    Raises:
        InvalidInputError: no part has it, or several do; names what is there.
    """
    if len(readers) == 1:
        return readers[0]  # which says itself what it does not have
    stores = [(own, one) for own in readers for one in own.catalog(own.state()).stores]
    return _named(stores, store, readers[0].job)[0]


def _named(
    stores: Sequence[tuple[JobReader, StoreEntry]], store: str, job: str
) -> tuple[JobReader, StoreEntry]:
    exact = [one for one in stores if one[1].name == store]
    found = exact or [one for one in stores if one[1].name.endswith(f".{store}")]
    if len(found) == 1:
        return found[0]
    raise InvalidInputError(
        f"job {job!r} has {'several stores' if found else 'no store'} {store!r}; it has "
        f"{', '.join(one.name for _, one in found or stores) or 'none'}",
        job=job,
    )


def table_rows(state: JobState, root: Path, store: str, files: Files) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of a table in bounded batches: what beside them, keys, values.

    Args:
        state: which epoch.
        root: the job's storage.
        store: its name.
        files: the file system.

    Raises:
        CorruptDataError: a file is damaged or missing.
    """
    sources = open_sources(state, root, files)
    yield from MergedTable(store, sources, state.time_ms, watermarks=state.watermarks).batches()


@dataclass(frozen=True)
class StoreSummary:
    """One store as of an epoch.

    ``entries`` is exact where ``exact``, else an upper bound: what was overwritten and deleted
    counts in each file that has it. ``changed`` is the last epoch with changes, ``None``
    before any; ``snapshots`` and ``segments`` are files.
    """

    stage: str
    store: str
    kind: str
    form: str
    tasks: int
    entries: int
    exact: bool
    bytes: int
    snapshots: int
    segments: int
    changed: int | None


def summarise_stores(
    reader: JobReader, epoch: int | None = None, *, count: bool = False
) -> tuple[JobState, RetainedEpochs, list[StoreSummary]]:
    """Return a job's state, the epochs that are kept, and its stores.

    Args:
        reader: of the job.
        epoch: see ``JobReader.state``.
        count: read all keys, so that the number of entries is exact.
    """
    state = reader.state(epoch)
    found = []
    for entry in reader.catalog(state).stores:
        tasks = state.task_counts.get(entry.stage, 0)
        if not entry.in_files:
            summary = StoreSummary(
                entry.stage, entry.name, entry.kind, entry.form, tasks, 0, False, 0, 0, 0, None
            )
        else:
            view = reader.view(entry.name, epoch)
            summary = _summary(view, tasks, count=count)
        found.append(summary)
    return state, reader.kept(), found


def _summary(view: StoreView, tasks: int, *, count: bool) -> StoreSummary:
    entry, held = view.entry, view.held
    headers = held.headers
    is_exact = count or held.is_exact
    snapshots = sum(header.kind == "snapshot" for header in headers)
    return StoreSummary(
        entry.stage,
        entry.name,
        entry.kind,
        entry.form,
        tasks,
        view.count() if count else held.rows,
        is_exact,
        held.size,
        snapshots,
        len(headers) - snapshots,
        max((header.epoch for header in headers), default=None),
    )


@dataclass(frozen=True)
class TaskFigures:
    """What a rebuild of one task reads, and why its files are as they are.

    ``reason`` weighs a snapshot; ``due`` says which merge comes next, empty for none.
    """

    name: str
    state_bytes: int
    files: int
    snapshot_bytes: int
    segment_bytes: int
    reason: str
    due: str


@dataclass(frozen=True)
class StateFigures:
    """A job's state over its newest epochs.

    ``epochs`` and ``seconds`` are of the stretch that is looked at; ``rows`` and
    ``changelog_bytes`` were written in it, ``merged_bytes`` written again by merges.
    """

    job: str
    epoch: int
    epochs: int
    seconds: float
    rows: int
    changelog_bytes: int
    merged_bytes: int
    tasks: tuple[TaskFigures, ...]

    @property
    def state_bytes(self) -> int:
        """About how much the live entries of all stores take."""
        return sum(task.state_bytes for task in self.tasks)

    @property
    def interval_s(self) -> float | None:
        """Seconds from one epoch to the next; ``None`` where there was one only."""
        return self.seconds / self.epochs if self.epochs and self.seconds else None

    @property
    def rebuild_bytes(self) -> int:
        """What all tasks together read when their local state is lost."""
        return sum(task.snapshot_bytes + task.segment_bytes for task in self.tasks)

    @property
    def model(self) -> CostModel:
        """The cost model with these figures."""
        rate = self.rows / self.seconds if self.seconds else 0.0
        entry = self.changelog_bytes / self.rows if self.rows else 0.0
        return CostModel(self.state_bytes, rate, entry)


def state_figures(log: CommitLog, job: str, epochs: int) -> StateFigures:
    """Read a job's figures.

    Args:
        log: its manifests.
        job: its name.
        epochs: at most so many of the newest are looked at.

    Raises:
        InvalidInputError: the job has no epoch yet.
        CorruptDataError: a manifest is damaged or missing.
    """
    known = log.epochs()
    found = list(retained_states(log, known[-1]))[-epochs - 1 :] if known else []
    if not found:
        raise InvalidInputError(f"job {job!r} has no epoch; run it first, or check its name")
    newest = found[-1]
    written = [_written(before, after) for before, after in pairwise(found)]
    return StateFigures(
        job,
        newest.epoch,
        len(written),
        (newest.time_ms - found[0].time_ms) / 1000,
        sum(rows for rows, _, _ in written),
        sum(logged for _, logged, _ in written),
        sum(merged for _, _, merged in written),
        _tasks(newest),
    )


def _written(before: JobState, after: JobState) -> tuple[int, int, int]:
    """Return the rows and bytes that an epoch logged, and the bytes that it had merged."""
    rows = logged = merged = 0
    for name, task in after.tasks.items():
        held = before.tasks.get(name)
        known = {ref.path for ref in held.files} if held is not None else set()
        for ref in task.files:
            if ref.path in known:
                continue
            if ref.first_epoch == ref.epoch == after.epoch:
                rows, logged = rows + ref.rows, logged + ref.bytes
            else:
                merged += ref.bytes
    return rows, logged, merged


def _tasks(state: JobState) -> tuple[TaskFigures, ...]:
    found = []
    for name, task in sorted(state.tasks.items(), key=lambda item: _order(item[0])):
        merge = next_compaction(task, state.time_ms)
        due = ""
        if merge is not None:
            what = "a snapshot" if merge.snapshot else "one segment"
            size = sum(ref.bytes for ref in merge.sources)
            due = f"{len(merge.sources)} files of {size / 1e6:.1f} MB into {what}"
        found.append(
            TaskFigures(
                name,
                state_bytes(task),
                len(task.files),
                task.snapshot_bytes,
                task.segment_bytes,
                str(snapshot_reason(task)),
                due,
            )
        )
    return tuple(found)


def _order(name: str) -> tuple[str, int]:
    stage, _, number = name.rpartition("/")
    return (stage, int(number))
