"""What a process gives the slots that run in it, and what it keeps of them between epochs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.files import Files
from headrace.plan.stages import JobPlan
from headrace.state.chain import SegmentSource
from headrace.state.registry import Registry
from headrace.state.task_state import TaskState
from headrace.task.asynchronous.loop import CallLoop
from headrace.task.merges import Merges
from headrace.task.orders import SlotOrder, StateTarget, TaskOrder
from headrace.task.stage_task import StageTask
from headrace.task.standbys import StandbyStores
from headrace.task.tables import Tables


@dataclass(frozen=True)
class KeptTask:
    """A task's nodes after an epoch, and what must have been committed for them to go on."""

    task: StageTask
    plan: str
    lineage: str
    epoch: int
    expected: tuple[int, str]
    state: TaskState | None

    def fits(self, order: SlotOrder, task: TaskOrder, state: TaskState | None) -> bool:
        """Say whether what the nodes hold in memory is what the manifest says."""
        committed: StateTarget = task.state
        same = self.plan == order.plan and self.lineage == order.lineage
        return (
            same
            and self.state is state
            and self.epoch < order.epoch
            and (committed.epoch, committed.attempt) == self.expected
        )


@dataclass(frozen=True)
class SlotHost:
    """What a process gives the slots that run in it.

    Args:
        files, clock, bus: where bytes, time and streams come from.
        storage: the job's storage, which all hosts reach.
        state_dir: of this host.
        host: identity of ``state_dir``.
        plans: returns the plan of a digest.
        segments: returns the committed segments, for stores that are behind.
        registry: the stores that this process has open.
        runtimes: the tasks that this process has built, by job, stage and task.
        merges: what this process merges beside the epochs.
        tables: the broadcast stores that this process holds.
        should_stop: says that the driver of a generation wants its epoch to end early.
        standbys: the standbys that this process keeps.
        loop: runs the asynchronous calls of all its tasks.
        mend: puts a good copy in the place of a damaged committed file, where there is one.
        adopt_bytes: from this size on an output part gets a file of its own.
        hot_keys: whether heavy keys are looked for.
    """

    files: Files
    clock: Clock
    bus: Bus
    storage: Path
    state_dir: Path
    host: str
    plans: Callable[[str], JobPlan]
    segments: Callable[[SlotOrder], SegmentSource]
    registry: Registry
    runtimes: dict[tuple[str, str, int], KeptTask]
    merges: Merges
    tables: Tables
    should_stop: Callable[[int], bool]
    standbys: StandbyStores
    mend: Callable[[SlotOrder, Path], bool]
    loop: CallLoop
    adopt_bytes: int = 4 << 20
    hot_keys: bool = True


def release(host: SlotHost) -> None:
    """Close the tasks and stores that a process keeps, so that another one may open them."""
    for kept in host.runtimes.values():
        with suppress(HeadraceError):  # of the user's close(): the task is over
            kept.task.close()
    host.runtimes.clear()
    host.standbys.close()
    host.loop.close()
    host.merges.close()
    host.registry.close_all()


def let_go(host: SlotHost, order: SlotOrder) -> None:
    """Close the tasks that an order names, and their standbys, for another process opens them."""
    if order.renew:
        release(host)
        return
    for stage, task in order.leaves:
        key = (order.job, stage, task)
        kept = host.runtimes.pop(key, None)
        if kept is not None:
            with suppress(HeadraceError):  # of the user's close(): the task is over
                kept.task.close()
        host.standbys.stop(key)
        host.registry.close(key)
