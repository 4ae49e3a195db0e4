"""Committed state read straight from the segments that the manifests name.

Needs neither the job nor its local stores; any epoch that is still kept can be read.
"""

from __future__ import annotations

from pathlib import Path

from headrace.coordinator.manifest import JobState
from headrace.files import Files
from headrace.state.segment_reader import SegmentReader


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
    for name, task in state.tasks.items():
        stage, _, number = name.rpartition("/")
        for ref in task.files:
            reader = SegmentReader(files, root / ref.path, ref.checksum)
            for keys, values in reader.task_batches(stage, int(number), store):
                for key, value in zip(keys, values, strict=True):
                    if value is None:
                        entries.pop(key, None)
                    else:
                        entries[key] = value
    return entries
