"""What ``state ls`` says of a job: its stores, how much they hold, in how many files."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.coordinator.inspection.inspection import JobReader, Kept
from headrace.coordinator.inspection.store_view import StoreView
from headrace.coordinator.manifest import JobState


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


def summarise(
    reader: JobReader, epoch: int | None = None, *, count: bool = False
) -> tuple[JobState, Kept, list[StoreSummary]]:
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
