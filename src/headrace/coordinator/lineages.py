"""Begins a new lineage of a job: the same state, under a history that no other one continues."""

from __future__ import annotations

import msgspec

from headrace.coordinator.manifest import JobState
from headrace.coordinator.standby.placing import Standby
from headrace.coordinator.task_files import TaskState


def begin_lineage(state: JobState, lineage: str) -> JobState:
    """Return a state as the begin of a lineage.

    What was committed so far becomes what a store begins with; a store of another lineage is
    thrown away when it is next caught up. Outputs are published under the new lineage, so
    none passes for one of the old.
    """
    return msgspec.structs.replace(
        state,
        lineage=lineage,
        origin=state.origin or state.lineage,
        copy_of="",
        tasks={name: _based(task) for name, task in state.tasks.items()},
        standbys={
            name: tuple(Standby(standby.host) for standby in held)
            for name, held in state.standbys.items()
        },
    )


def _based(task: TaskState) -> TaskState:
    return msgspec.structs.replace(
        task,
        snapshots=task.files,
        snapshot_epoch=task.epoch,
        snapshot_attempt=task.attempt,
        segments=(),
        shape=task.shape + 1,
    )
