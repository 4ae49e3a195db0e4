"""The changelog segment of a slot's attempt: what all its tasks changed, in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.files import Files
from headrace.state.backend import Changes
from headrace.state.columnar.table import TableChanges
from headrace.state.segment import SegmentHeader, SegmentInfo
from headrace.state.segment_writer import SegmentWriter
from headrace.state.task_state import TaskState
from headrace.task.orders import FileRef, TaskOrder

TaskId = tuple[str, int]


class Size(NamedTuple):
    """One task's part of a file."""

    bytes: int = 0
    rows: int = 0


class Changed(NamedTuple):
    """A task whose stores are sealed, and what each of them changed."""

    order: TaskOrder
    state: TaskState
    changes: Mapping[str, Changes | TableChanges]


def write_changes(
    files: Files,
    storage: Path,
    name: str,
    header: SegmentHeader,
    changed: Sequence[Changed],
    groups: int,
) -> tuple[FileRef, dict[TaskId, Size]]:
    """Write a segment durably, and tell each task's stores where it is.

    Args:
        files: the file system.
        storage: of the job.
        name: of the segment, below the storage.
        header: where it belongs.
        changed: the tasks, in the order of the slot.
        groups: number of key groups of the job.

    Returns:
        The file, and each task's part of it.
    """
    writer = SegmentWriter(files, storage / name, header)
    for task, _, changes in changed:
        for store, own in changes.items():
            if isinstance(own, TableChanges):
                rows = (own.schema, own.batches)
                writer.add_table(task.stage, task.task, store, *rows, groups)
            else:
                writer.add(task.stage, task.task, store, *own)
    info = writer.close()
    files.sync_folder((storage / name).parent)
    for _, state, _ in changed:
        state.written(storage / name, info.checksum)
    return FileRef(name, info.bytes, header.epoch, header.attempt, info.checksum), _sizes(info)


def _sizes(info: SegmentInfo) -> dict[TaskId, Size]:
    sizes: dict[TaskId, Size] = {}
    for section in info.sections:
        task = (section.stage, section.task)
        held = sizes.get(task, Size())
        size = section.end - section.begin
        sizes[task] = Size(held.bytes + size, held.rows + section.rows)
    return sizes
