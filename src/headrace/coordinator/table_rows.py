"""Committed rows of a columnar store, read straight from the files that the manifests name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headrace.coordinator.inspection import open_sources
from headrace.coordinator.manifest import JobState
from headrace.files import Files
from headrace.state.columnar.files import open_runs
from headrace.state.columnar.merge import merge_runs


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
    runs = [
        run
        for source in open_sources(state, root, files)
        for run in open_runs(source.reader, store, groups=source.groups)
    ]
    if runs:
        yield from merge_runs(runs, runs[0].layout, drop_deleted=True, now_ms=state.time_ms)
