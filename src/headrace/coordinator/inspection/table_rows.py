"""Committed rows of a columnar store, read straight from the files that the manifests name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headrace.coordinator.inspection.inspection import open_sources
from headrace.coordinator.manifest import JobState
from headrace.files import Files
from headrace.state.merged_table import MergedTable


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
